"""The emulator: the real endpoint over scenarios, with time and faults at hand."""
