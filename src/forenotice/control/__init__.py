"""The operators' REST API, under /v1, and what monitoring asks for."""
