"""What was seen of a handler in one situation. Moments are by the monotonic clock, in seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forenotice.conformance.handlers.hooks import Lines
from forenotice.conformance.handlers.situations import Situation
from forenotice.core.operations import Event, EventType
from forenotice.emulator.requests import Requested

ANSWERED = (200, 304)
WRITES = ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Of an event."""

    event: Event
    announced: float
    scheduled_until: float
    """Then it was Started, or gone; at once, if it was never Scheduled."""
    ended: float

    @property
    def id(self) -> str:
        return self.event.id

    @property
    def is_survived(self) -> bool:
        """By the VM: it has something to recover."""
        return self.event.type not in (EventType.PREEMPT, EventType.TERMINATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    situation: Situation
    me: str
    lives: Sequence[Life]
    requests: Sequence[Requested]
    listened: float
    """Seconds in which its first poll had to come."""
    approvals: Sequence[tuple[Requested, Lines]]
    """With what had been prepared when each came."""
    prepared: Lines
    recovered: Lines
    hasty: frozenset[str]
    """Events whose recovery was seen while they were not over."""
    goes_on: bool
    """It polled after all was over."""
    exit_code: int | None
    """None: it ran to the end."""
    said: str
    """Last."""

    @property
    def polls(self) -> list[Requested]:
        return [request for request in self.requests if request.is_poll]

    @property
    def own(self) -> list[Life]:
        return [life for life in self.lives if self.me in life.event.resources]

    @property
    def others(self) -> list[Life]:
        return [life for life in self.lives if self.me not in life.event.resources]

    def approvals_of(self, life: Life) -> Iterator[tuple[Requested, Lines]]:
        return ((request, lines) for request, lines in self.approvals if life.id in request.event_ids)

    def refusals_of(self, life: Life) -> Iterator[Requested]:
        """Of what was meant as an approval of it, for all that can be told."""
        for request in self.requests:
            refused = request.method in WRITES and request.status != 200
            meant = life.id in request.event_ids or not request.event_ids
            if refused and meant and life.announced <= request.monotonic < life.scheduled_until:
                yield request

    def has_approved(self, life: Life) -> bool:
        return any(request.status == 200 for request, _ in self.approvals_of(life))
