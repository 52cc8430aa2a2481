"""The process on a host that answers its guests from memory, fed through NATS."""
