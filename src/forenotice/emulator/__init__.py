"""The emulator: the real endpoint over scenarios, with time and faults at hand."""

from typing import TYPE_CHECKING

__all__ = ["ScheduledEvents"]

if TYPE_CHECKING:
    from forenotice.emulator.testing.scheduled_events import ScheduledEvents
else:

    def __getattr__(name: str) -> object:
        # Only now: what imports a part of the emulator need not load the whole.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from forenotice.emulator.testing.scheduled_events import ScheduledEvents

        return ScheduledEvents
