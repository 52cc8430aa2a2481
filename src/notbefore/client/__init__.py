"""The library for guests: what is announced to this VM, and its approval."""
