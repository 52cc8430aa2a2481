"""Rollouts: what is asked for, how they go on, and plans of them."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forenotice.core import rollouts, windows
from forenotice.core.rollouts import RolloutHostStatus, RolloutStatus
from forenotice.views import base
from forenotice.views.base import Request, Response, example

RolloutKind = Literal["update", "migrate", "reboot"]


class RolloutOptions(Response):
    kind: RolloutKind
    hosts: str
    """The selector, as it was written."""
    notice_minutes: float | None
    batch: int
    pause_minutes: float
    gate: str | None
    max_failures: int
    windows: list[str]
    duration_seconds: int | None


class NewRollout(Request):
    kind: RolloutKind
    hosts: Annotated[base.Selector, Meta(examples=["rack1-*,!rack1-07"])]
    """Names with wildcards, and labels such as `label:rack=r1`; `!` stands before exceptions."""
    notice_minutes: base.Minutes | None = None
    batch: Annotated[int, Meta(ge=1, le=rollouts.MOST_AT_ONCE)] = 1
    """Hosts under way at once, at most."""
    pause_minutes: Annotated[float, Meta(ge=0, le=rollouts.LONGEST_PAUSE // timedelta(minutes=1))] = 0
    """Between the end of one wave and the next."""
    gate: Annotated[base.Url | None, Meta(examples=["https://shop.example.com/healthy"])] = None
    """What must be green before each wave: a URL, or the name of a command in the service's settings."""
    max_failures: Annotated[int, Meta(ge=1, le=rollouts.MOST_FAILURES)] = 1
    """After so many hosts that failed it pauses."""
    windows: base.Windows = []
    duration_seconds: base.FreezeSeconds | None = None
    """How long an update freezes the VMs; null: 9 seconds."""
    reason: base.Reason = ""

    def spec(self, reason: str) -> rollouts.RolloutSpec:
        options = rollouts.Options(
            notice=None if self.notice_minutes is None else timedelta(minutes=self.notice_minutes),
            batch=self.batch,
            pause=timedelta(minutes=self.pause_minutes),
            gate=self.gate,
            max_failures=self.max_failures,
            windows=windows.parse_all(self.windows),
            duration=self.duration_seconds,
        )
        return rollouts.RolloutSpec(kind=rollouts.KINDS[self.kind], hosts=self.hosts, options=options, reason=reason)


class Because(Request):
    reason: base.Reason = ""


class Resumption(Because):
    retry: bool = False
    """Hosts that failed are tried again."""


class Progress(Response):
    """How many hosts have which status."""

    waiting: int = 0
    under_way: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0


class GateResult(Response):
    green: bool
    status: str
    """Of its response or command, or why there was none."""
    output: str
    """One line; empty for those who may not start rollouts."""
    at: datetime


class WaveProgress(Response):
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


class RolloutHost(Response):
    host: str
    wave: int
    update_domains: list[int]
    """Of the groups that it had when the rollout began; without groups, of its VMs."""
    status: RolloutHostStatus
    operation: str | None
    why: str


class PlannedWave(Response):
    wave: int
    update_domains: list[int]
    hosts: int
    vms: int
    begins_at: datetime
    first_start_at: datetime
    ends_at: datetime


class PlannedHost(Response):
    host: str
    wave: int
    update_domains: list[int]
    vms: list[str]
    announced_at: datetime
    not_before: datetime
    ends_at: datetime


class PlannedScope(Response):
    scope: str
    group: str | None
    members: int
    down_seconds: float
    """For how long some of its VMs are down."""
    most_down: int
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
    planned_hosts: list[PlannedHost]
    groups: list[PlannedScope]
    empty: list[str]
    """Hosts without VMs, which are skipped."""
    assumes: str


_OPTIONS: dict[str, Any] = {
    "kind": "update",
    "hosts": "rack1-*,!rack1-07",
    "notice_minutes": 20,
    "batch": 2,
    "pause_minutes": 10,
    "gate": "https://shop.example.com/healthy",
    "max_failures": 1,
    "windows": ["daily 02:00-04:00 UTC"],
}
_LISTED = example(
    ListedRollout,
    **_OPTIONS,
    id=base.ROLLOUT,
    status=RolloutStatus.RUNNING,
    waves=2,
    wave_began_at=base.NOW,
    progress=Progress(waiting=20, under_way=2, done=7, skipped=1),
    gate_result=GateResult(green=True, status="200", output="all shards in sync", at=base.NOW),
    reason="firmware",
)
_BY_WAVE = [
    WaveProgress(wave=1, update_domains=[0], progress=Progress(waiting=5, under_way=2, done=7, failed=0, skipped=1)),
    WaveProgress(wave=2, update_domains=[1], progress=Progress(waiting=15)),
]
example(Rollout, **msgspec.structs.asdict(_LISTED), by_wave=_BY_WAVE)
example(NewRollout, **_OPTIONS, reason="firmware")
example(Because, reason="the shop is busy")
example(Resumption, reason="the disk is swapped", retry=True)
example(RolloutHost, status=RolloutHostStatus.UNDER_WAY)
example(
    RolloutPlan,
    **_OPTIONS,
    waves=[example(PlannedWave, hosts=1, vms=1, first_start_at=base.SOON)],
    planned_hosts=[example(PlannedHost)],
    groups=[example(PlannedScope, members=8, down_seconds=9, most_down=1, allowed=2, budget="max_unavailable 25%")],
    assumes="Assumed: no guest approves early, every gate is green, and nothing fails.",
)
