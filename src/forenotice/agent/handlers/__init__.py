"""What is done to prepare for an event and to recover from it."""
