"""Rollouts: maintenance over many hosts, turn by turn."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from forenotice.core import errors, selecting
from forenotice.core.operations import Kind
from forenotice.core.windows import Window

KINDS = {"update": Kind.HOST_UPDATE, "migrate": Kind.LIVE_MIGRATION, "reboot": Kind.HOST_REBOOT}
"""What operators call them."""

MOST_HOSTS = 100_000
MOST_AT_ONCE = 10_000
MOST_FAILURES = 100_000
LONGEST_PAUSE = timedelta(days=30)
BEFORE_THE_FIRST = -1
"""The turn of a rollout that has just been started."""


class RolloutStatus(StrEnum):
    RUNNING = "Running"
    PAUSED = "Paused"
    CANCELING = "Canceling"
    """What has started goes on to its end."""
    CANCELED = "Canceled"
    COMPLETED = "Completed"

    @property
    def live(self) -> bool:
        return self not in (RolloutStatus.CANCELED, RolloutStatus.COMPLETED)


class StopStatus(StrEnum):
    WAITING = "Waiting"
    UNDER_WAY = "Under way"
    """Its operation is announced or has started."""
    DONE = "Done"
    FAILED = "Failed"
    SKIPPED = "Skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a rollout goes about it."""

    notice: timedelta | None = None
    """Time from appearance to NotBefore; None: the minimum."""
    batch: int = 1
    """Hosts that have their operation announced or under way at once, at most."""
    pause: timedelta = timedelta(0)
    """Between the end of one turn and the next."""
    gate: str | None = None
    """What must be green before a turn: a URL, or the name of a command that the service knows."""
    max_failures: int = 1
    """After so many hosts that failed it pauses."""
    windows: tuple[Window, ...] = ()
    """When its operations may start; without any, always."""

    def told(self) -> "Options":
        """As everybody may see them: the path and query of the gate's URL may hold a secret."""
        url = urlsplit(self.gate or "")
        return replace(self, gate=f"{url.scheme}://{url.netloc}/…") if url.netloc else self

    def facts(self) -> dict[str, Any]:
        """As operators write them."""
        return {
            "notice_minutes": self.notice and self.notice.total_seconds() / 60,
            "batch": self.batch,
            "pause_minutes": self.pause.total_seconds() / 60,
            "gate": self.gate,
            "max_failures": self.max_failures,
            "windows": [str(window) for window in self.windows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a gate said."""

    green: bool
    said: str
    at: datetime
    line: str = ""
    """One line of its output, for those who may manage; not in the journal or explanations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    id: str
    kind: Kind
    hosts: str
    """The selector, as it was written."""
    options: Options
    status: RolloutStatus
    since: datetime
    """When it got this status."""
    created_at: datetime
    turn: int = BEFORE_THE_FIRST
    opens_at: datetime
    """When the pause before this turn is over."""
    opened_at: datetime | None = None
    """When this turn began; None: the pause or the gate is before it."""
    verdict: Verdict | None = None
    """The gate's last word on this turn."""
    failures: int = 0
    """Hosts that failed since it started or was resumed."""
    why: str = ""
    """Why it is paused."""
    ended_at: datetime | None = None
    due_at: datetime | None = None
    """When tick should look at it next; None while it is paused or over."""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One host's place in a rollout."""

    rollout: str
    host: str
    turn: int
    status: StopStatus = StopStatus.WAITING
    operation: str | None = None
    why: str = ""
    """Why it failed or was skipped."""
    update_domains: tuple[int, ...] = ()
    """Those of the groups of which the host had VMs when the rollout began; without groups, those of its VMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many hosts of one turn, with these update domains, are so."""

    turn: int
    status: StopStatus
    update_domains: tuple[int, ...]
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A rollout that somebody asks for."""

    kind: Kind
    hosts: str
    options: Options = Options()
    reason: str = ""


def require_sound(request: Request) -> selecting.Selector:
    """Refuse what makes no sense in any fleet; gives whom it is for."""
    options, notice = request.options, request.kind.traits.notice
    if request.kind not in KINDS.values():
        raise errors.RefusedError(f"a rollout cannot be a {request.kind}: give {', '.join(KINDS)}")
    if options.notice is not None and options.notice < notice:
        raise errors.RefusedError(f"the notice must be at least {notice.total_seconds() / 60:g} minutes")
    if not 1 <= options.batch <= MOST_AT_ONCE:
        raise errors.RefusedError(f"batch must be from 1 to {MOST_AT_ONCE} hosts")
    if not 1 <= options.max_failures <= MOST_FAILURES:
        raise errors.RefusedError(f"max_failures must be from 1 to {MOST_FAILURES}")
    if not timedelta(0) <= options.pause <= LONGEST_PAUSE:
        raise errors.RefusedError(f"the pause must be at most {LONGEST_PAUSE.days} days")
    return selecting.of_hosts(request.hosts)
