"""Pushes the journal to subscribers as CloudEvents: signed, retried, in order per event, at least once."""
