"""The guests' endpoint: it answers polls from memory, and hands approvals to the service."""
