"""What the service and its edges share: messages, subjects and streams in NATS, the connection to it, and keys."""
