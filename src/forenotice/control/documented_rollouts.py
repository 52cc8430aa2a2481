"""Rollouts, as the API's description shows them."""

from datetime import datetime
from typing import Literal

from forenotice.control.documented import Explanation, Shown
from forenotice.core.rollouts import RolloutStatus, StopStatus

RolloutKind = Literal["update", "migrate", "reboot"]


class RolloutExplanation(Explanation):
    rollout: str


class RolloutOptions(Shown):
    kind: RolloutKind
    hosts: str
    """The selector, as it was written."""
    notice_minutes: float | None
    batch: int
    pause_minutes: float
    gate: str | None
    max_failures: int
    windows: list[str]


class Progress(Shown):
    """Hosts by what has become of them."""

    waiting: int
    under_way: int
    done: int
    failed: int
    skipped: int


class GateResult(Shown):
    green: bool
    status: str
    """Its status, or why it could not be asked."""
    output: str
    """One line of its output; empty for those who may not start rollouts."""
    at: datetime


class WaveProgress(Shown):
    wave: int
    update_domains: list[int]
    """Of the groups that its hosts had when the rollout began."""
    progress: Progress


class ListedRollout(RolloutOptions):
    id: str
    status: RolloutStatus
    why: str
    """Why it is paused."""
    wave: int
    """From 1 on; 0 before the first."""
    waves: int
    wave_began_at: datetime | None
    failures: int
    """Hosts that failed since it was started or resumed."""
    progress: Progress
    gate_result: GateResult | None
    created_at: datetime
    ended_at: datetime | None
    by: str
    reason: str


class Rollout(ListedRollout):
    by_wave: list[WaveProgress]


class RolloutHost(Shown):
    host: str
    wave: int
    update_domains: list[int]
    """Of the groups that it had when the rollout began; without groups, of its VMs."""
    status: StopStatus
    operation: str | None
    why: str


class PlannedWave(Shown):
    wave: int
    update_domains: list[int]
    hosts: int
    vms: int
    begins_at: datetime
    first_start_at: datetime
    ends_at: datetime


class PlannedHost(Shown):
    host: str
    wave: int
    update_domains: list[int]
    vms: list[str]
    announced_at: datetime
    not_before: datetime
    ends_at: datetime


class PlannedScope(Shown):
    scope: str
    group: str | None
    members: int
    out_seconds: float
    """How long something of it is out."""
    most_out: int
    """VMs at once."""
    allowed: int | None
    budget: str | None
    """The rule that decides."""
    delayed_hosts: int
    """Hosts that have to wait for it."""


class RolloutPlan(RolloutOptions):
    begins_at: datetime
    ends_at: datetime
    waves: list[PlannedWave]
    stops: list[PlannedHost]
    groups: list[PlannedScope]
    empty: list[str]
    """Hosts without VMs, which are skipped."""
    assumes: str
