"""Record what an endpoint says, and replay it."""
