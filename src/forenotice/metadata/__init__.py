"""The guests' endpoint: it answers polls from memory and passes approvals to the service."""
