"""For tests of handlers: events at will, and assertions on what a handler did; `plugin` is for pytest."""
