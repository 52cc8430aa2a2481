"""The service's side of its edges: it publishes the states of hosts, and takes in what edges send."""
