"""The web console of operators and tenants: pages made on the server, live by server-sent events."""
