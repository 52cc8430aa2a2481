"""Operations, and the events by which scopes are told of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from forenotice.core import errors

HOST_MAINTENANCE = "Host server is undergoing maintenance."
MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
USER_RESTART = "Virtual machine is going to be restarted as requested by authorized user."
USER_REDEPLOY = "Virtual machine is going to be redeployed as requested by authorized user."
FAILURE = "Virtual machine has encountered a failure."


class EventType(StrEnum):
    FREEZE = "Freeze"
    REBOOT = "Reboot"
    REDEPLOY = "Redeploy"
    PREEMPT = "Preempt"
    TERMINATE = "Terminate"


class Source(StrEnum):
    PLATFORM = "Platform"
    USER = "User"


class Status(StrEnum):
    PLANNED = "Planned"
    """Only of an operation: it waits for a window, guests have not been told, and it has no events."""
    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    FAILED = "Failed"

    @property
    def live(self) -> bool:
        return self in LIVE


ANNOUNCED = frozenset({Status.SCHEDULED, Status.STARTED})
"""Statuses that guests see."""
LIVE = ANNOUNCED | {Status.PLANNED}
OF_EVENTS = tuple(status for status in Status if status is not Status.PLANNED)
"""Statuses that an event can have."""


class Kind(StrEnum):
    RESTART = "restart"
    REDEPLOY = "redeploy"
    EVICTION = "eviction"
    DELETION = "deletion"
    HOST_UPDATE = "host-update"
    HOST_REBOOT = "host-reboot"
    LIVE_MIGRATION = "live-migration"
    DEGRADED_HARDWARE = "degraded-hardware"
    HARDWARE_FAILURE = "hardware-failure"

    @property
    def traits(self) -> "Traits":
        return TRAITS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an operation of one kind means to guests and to the fleet."""

    type: EventType
    source: Source
    minimum_notice: timedelta
    """The least time from announcement to NotBefore; `Operation.notice` is the actual one."""
    duration: int = -1
    """DurationInSeconds; -1 is unknown."""
    description: str = ""
    of_host: bool = False
    """Asked for a host, and acts on all its VMs; otherwise for one VM."""
    maintenance: bool = False
    """Planned maintenance: one update domain of a scope at a time."""
    moves: bool = False
    removes: bool = False

    @property
    def keeps_others_away(self) -> bool:
        """Acts on the host itself: a VM that was placed there meanwhile would be affected without being told."""
        return self.maintenance and not self.moves


_of_user = partial(Traits, source=Source.USER)
_of_platform = partial(Traits, source=Source.PLATFORM)
_of_host = partial(Traits, source=Source.PLATFORM, of_host=True)
_quarter, _ten_minutes = timedelta(minutes=15), timedelta(minutes=10)
TRAITS: Mapping[Kind, Traits] = {
    Kind.RESTART: _of_user(type=EventType.REBOOT, minimum_notice=_quarter, description=USER_RESTART),
    Kind.REDEPLOY: _of_user(
        type=EventType.REDEPLOY, minimum_notice=_ten_minutes, description=USER_REDEPLOY, moves=True
    ),
    Kind.EVICTION: _of_platform(type=EventType.PREEMPT, minimum_notice=timedelta(seconds=30), removes=True),
    Kind.DELETION: _of_user(type=EventType.TERMINATE, minimum_notice=timedelta(minutes=5), removes=True),
    Kind.HOST_UPDATE: _of_host(
        type=EventType.FREEZE, minimum_notice=_quarter, duration=9, description=HOST_MAINTENANCE, maintenance=True
    ),
    Kind.HOST_REBOOT: _of_host(
        type=EventType.REBOOT, minimum_notice=_quarter, description=HOST_MAINTENANCE, maintenance=True
    ),
    Kind.LIVE_MIGRATION: _of_host(
        type=EventType.FREEZE, minimum_notice=_quarter, duration=5, description=MIGRATION, maintenance=True, moves=True
    ),
    Kind.DEGRADED_HARDWARE: _of_host(
        type=EventType.REDEPLOY, minimum_notice=_ten_minutes, description=FAILURE, maintenance=True, moves=True
    ),
    Kind.HARDWARE_FAILURE: _of_host(
        type=EventType.REDEPLOY, minimum_notice=timedelta(0), description=FAILURE, moves=True
    ),
}

LONGEST_FREEZE = 600
"""Seconds that may be asked for."""

DEGRADED_NOTICE = timedelta(days=7)
"""How far ahead a predicted hardware failure is announced, where the request names no notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One indivisible piece of maintenance on VMs of one host."""

    id: str
    kind: Kind
    host: str
    vms: tuple[str, ...]
    """Whom it acts on; a VM that leaves the host before the start is dropped."""
    status: Status
    created_at: datetime
    not_before: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    """When tick should look at it next; None once it has ended."""
    held: bool = False
    """It could have started but something is in the way: looked at again when that may have changed."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Where each VM goes, chosen at the start."""
    done: tuple[str, ...] = ()
    """VMs that the driver has finished with."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why each remaining VM failed at the last try."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """By VM: why the driver has not gone on."""
    attempt: int = 0
    """Driver calls that have failed so far."""
    claimed_by: str | None = None
    claimed_until: datetime | None = None
    """The process that is calling the driver now, and until when that is believed."""
    by: str = ""
    reason: str = ""
    rollout: str | None = None
    """The rollout that it is a part of."""
    notice: timedelta = timedelta(0)
    """How long before NotBefore guests are told, at speed 1."""
    duration: int | None = None
    """Seconds that were asked for; None: as its kind says."""
    clock_jumped: timedelta = timedelta(0)
    """How far the clock has jumped ahead since it was announced; this much of its notice has not really passed."""

    @property
    def announced_seconds(self) -> int:
        """DurationInSeconds; -1 is unknown."""
        return self.kind.traits.duration if self.duration is None else self.duration

    @property
    def expires_at(self) -> datetime:
        """When its notice is over."""
        return self.not_before + self.clock_jumped

    @property
    def excludes_others(self) -> bool:
        """Whether planned maintenance of other update domains waits for it: its VMs are down, or will be soon."""
        if self.status is Status.PLANNED or (self.kind is Kind.DEGRADED_HARDWARE and self.status is not Status.STARTED):
            # Guests have not been told; or they were told days ahead, and until it starts nothing waits for it.
            return False
        return self.kind.traits.maintenance or self.kind is Kind.HARDWARE_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one scope is told about one operation."""

    id: str
    """An upper-case GUID."""
    operation: str
    scope: str
    resources: tuple[str, ...]
    update_domain: int
    type: EventType
    source: Source
    description: str
    duration: int
    status: Status
    created_at: datetime
    not_before: datetime
    approved_at: datetime | None = None
    approved_by: str | None = None
    implied: bool = False
    """Approved only by silence; a first GET takes that back."""
    ended_at: datetime | None = None

    @property
    def approved(self) -> bool:
        return self.approved_at is not None


def require_duration(kind: Kind, seconds: int | None) -> int | None:
    """How long a freeze lasts can be chosen where it is the host's maintenance that takes the time."""
    if seconds is not None and kind is not Kind.HOST_UPDATE:
        raise errors.RefusedError(f"the duration of a {kind} cannot be chosen: leave it out")
    if seconds is not None and not 1 <= seconds <= LONGEST_FREEZE:
        raise errors.RefusedError(f"the duration must be from 1 to {LONGEST_FREEZE} seconds")
    return seconds


def is_excluded(update_domain: int, down: Iterable[int]) -> bool:
    """Whether planned maintenance of an update domain has to wait, given those of its scope that are down."""
    return any(other != update_domain for other in down)


def by_reason(failures: Mapping[str, str]) -> dict[str, list[str]]:
    """VMs that failed for the same reason together, so that it is named once."""
    found: dict[str, list[str]] = {}
    for vm, why in failures.items():
        found.setdefault(why, []).append(vm)
    return found
