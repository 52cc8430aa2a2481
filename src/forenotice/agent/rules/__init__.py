"""What the agent decides: pure functions of a saga, what is known, and the time."""
