"""What happened to events from one document to the next: appeared, started, gone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from forenotice.client.events import Event


@dataclass(frozen=True, slots=True)
class Appeared:
    event: Event


@dataclass(frozen=True, slots=True)
class Started:
    event: Event


@dataclass(frozen=True, slots=True)
class Gone:
    """It is over, or was cancelled before it started, or is about this VM no longer."""

    event: Event
    """As it was last listed."""
    started: bool
    """It was seen as Started; otherwise it may yet have started and ended between two looks."""


Change: TypeAlias = Appeared | Started | Gone


class Ledger:
    """The events that are listed, each only ever moving forward."""

    def __init__(self) -> None:
        self._listed: dict[str, Event] = {}

    def compare(self, events: Iterable[Event]) -> Iterator[Change]:
        # Ids are compared without regard to case (PROTOCOL, the document).
        present = {event.id.upper(): event for event in events}
        for key in [key for key in self._listed if key not in present]:
            event = self._listed.pop(key)
            yield Gone(event, event.started)
        for key, event in present.items():
            before = self._listed.get(key)
            if before is not None and before.started:
                # A document that shows it as Scheduled again is an old one.
                continue
            self._listed[key] = event
            if before is None:
                yield Appeared(event)
            if event.started:
                yield Started(event)
