"""The rules: pure functions from what is known, what is asked and the time, to what changes and why."""
