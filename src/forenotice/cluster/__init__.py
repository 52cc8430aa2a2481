"""What crosses NATS between the service and its edges, and the service's side of it."""
