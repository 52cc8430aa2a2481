"""What a handler's hooks write down: a line for each preparation and each recovery, with the EventId in it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forenotice.conformance.handlers.situations import Situation
from forenotice.core.operations import Event, EventType
from forenotice.emulator import request_log
from forenotice.emulator.request_log import LoggedRequest

LARGEST = 1024 * 1024
FAILED = "failed"
"""The first word of a line about a preparation that failed."""
MOST_APPROVALS = 10_000

Lines = Sequence[str]


class Preparation(StrEnum):
    NONE = "none"
    DONE = "done"
    FAILED = "failed"


class HookFile:
    """One that hooks append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[str]:
        """Those that are complete."""
        try:
            with self.path.open("rb") as file:
                text = file.read(LARGEST).decode(errors="replace")
        except OSError:
            # A hook may as well write it anew.
            return []
        return text.split("\n")[:-1]


def about(lines: Lines, event_id: str) -> list[str]:
    return [line for line in lines if event_id in line.upper()]


def preparation(lines: Lines, event_id: str) -> Preparation:
    """How the last one for this event went."""
    told = about(lines, event_id)
    if not told:
        return Preparation.NONE
    return Preparation.FAILED if has_failed(told[-1]) else Preparation.DONE


def has_failed(line: str) -> bool:
    return line.split()[0].lower() == FAILED


class RequestLog(request_log.RequestLog):
    """Requests, and with each approval what had been prepared when it came. It looks before the approval is answered:
    what a handler does only after that is not there yet."""

    def __init__(self, prepared: HookFile) -> None:
        super().__init__()
        self.approvals_with_hooks: deque[tuple[LoggedRequest, Lines]] = deque(maxlen=MOST_APPROVALS)
        self._prepared = prepared

    def record(self, request: LoggedRequest) -> None:
        if request.is_approval:
            self.approvals_with_hooks.append((request, self._prepared.lines()))
        super().record(request)


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
    requests: Sequence[LoggedRequest]
    listened: float
    """Seconds in which its first poll had to come."""
    approvals: Sequence[tuple[LoggedRequest, Lines]]
    """With what had been prepared when each came."""
    prepared: Lines
    recovered: Lines
    recovered_early: frozenset[str]
    """Events whose recovery was seen while they were not over."""
    goes_on: bool
    """It polled after all was over."""
    exit_code: int | None
    """None: it ran to the end."""
    output: str
    """Its last."""

    @property
    def polls(self) -> list[LoggedRequest]:
        return [request for request in self.requests if request.is_poll]

    @property
    def own(self) -> list[Life]:
        return [life for life in self.lives if self.me in life.event.resources]

    @property
    def others(self) -> list[Life]:
        return [life for life in self.lives if self.me not in life.event.resources]

    def approvals_of(self, life: Life) -> Iterator[tuple[LoggedRequest, Lines]]:
        return ((request, lines) for request, lines in self.approvals if life.id in request.event_ids)

    def refusals_of(self, life: Life) -> Iterator[LoggedRequest]:
        """Of what was meant as an approval of it, for all that can be told."""
        for request in self.requests:
            refused = request.method in WRITES and request.status != 200
            meant = life.id in request.event_ids or not request.event_ids
            if refused and meant and life.announced <= request.monotonic < life.scheduled_until:
                yield request

    def has_approved(self, life: Life) -> bool:
        return any(request.status == 200 for request, _ in self.approvals_of(life))
