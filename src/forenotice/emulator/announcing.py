"""What a group is to be told of, in the words of a scenario or a test."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from forenotice.core import errors, fleet
from forenotice.core.operations import DEGRADED_NOTICE, Event, EventType, Kind

TAKES: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(minutes=10),
    EventType.REBOOT: timedelta(minutes=10),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(seconds=30),
}
"""How long Started lasts where nobody says: as measured on the real platform for the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a group is to be told. Durations are as people write them, before speed divides them."""

    kind: Kind
    resources: tuple[str, ...]
    notice: timedelta | None = None
    """None: as long as the kind needs at least."""
    takes: timedelta | None = None
    """How long it is Started."""
    description: str | None = None
    duration: int | None = None
    """DurationInSeconds."""

    @property
    def names(self) -> tuple[str, ...]:
        """Whom it names; refused unless it is something that a document may say."""
        names = tuple(sorted({fleet.require_name("VM", name) for name in self.resources}, key=fleet.natural_key))
        if not names:
            raise errors.RefusedError("an event names at least one VM: give its resources")
        for what, span in (("notice", self.notice), ("takes", self.takes)):
            if span is not None and span < timedelta(0):
                raise errors.RefusedError(f"{what} cannot be less than no time: give a duration such as 15m")
        if not isinstance(self.description, str | None):
            raise errors.RefusedError(f"a description is text, not {self.description!r}")
        if self.duration is not None and self.duration < -1:
            raise errors.RefusedError("an impact lasts no time or more; -1 seconds is for one of unknown length")
        return names

    @property
    def ahead(self) -> timedelta:
        """From its appearance to NotBefore."""
        usual = DEGRADED_NOTICE if self.kind is Kind.DEGRADED_HARDWARE else self.kind.traits.notice
        return usual if self.notice is None else self.notice

    @property
    def lasts(self) -> timedelta:
        return TAKES[self.kind.traits.type] if self.takes is None else self.takes

    def word(self, event: Event) -> Event:
        return replace(
            event,
            description=event.description if self.description is None else self.description,
            duration=event.duration if self.duration is None else self.duration,
        )
