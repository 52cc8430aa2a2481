"""A rollout before it begins: what happens when, by the rules that hold while it runs."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from notbefore.core import budgets, turns, windows
from notbefore.core.budgets import Rule, Standing
from notbefore.core.draft import Draft
from notbefore.core.operations import Kind, Status
from notbefore.core.rollouts import Request
from notbefore.core.timing import STARTED_SHOWN, whole_second_up
from notbefore.core.turns import Part
from notbefore.core.windows import Window

EXPECTED = {Kind.HOST_REBOOT: timedelta(minutes=5)}
"""How long an operation is taken to last where its events do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStop:
    host: str
    turn: int
    vms: tuple[str, ...]
    announced_at: datetime
    not_before: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """What a rollout means to one group."""

    scope: str
    members: int
    out: timedelta
    """How long something of it is out."""
    most_out: int
    """VMs at once."""
    allowed: int | None
    budget: str
    """The rule that decides, as the operator wrote it; empty without one."""
    delayed: int
    """Hosts that had to wait for its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    stops: tuple[PlannedStop, ...]
    """In order of announcement."""
    groups: tuple[PlannedGroup, ...]
    empty: tuple[str, ...]
    """Hosts without VMs, which are skipped."""
    begins_at: datetime
    ends_at: datetime


def plan(draft: Draft, request: Request) -> Plan:
    """What happens if nobody approves early, every gate is green and nothing fails."""
    hosts = turns.chosen_hosts(request, draft.world.hosts)
    turns.require_possible(draft, request, hosts)
    order = turns.assign(draft, hosts)
    by_turn: dict[int, list[str]] = {}
    empty = [host for host in hosts if not draft.vms_on(host)]
    for host in hosts:
        if draft.vms_on(host):
            by_turn.setdefault(order[host], []).append(host)
    prediction = _Prediction(draft, request)
    for number, (turn, waiting) in enumerate(sorted(by_turn.items())):
        if number:
            prediction.now += draft.timing.shortened(request.options.pause)
        prediction.run(turn, waiting)
    stops = prediction.stops
    return Plan(
        stops=tuple(stops),
        groups=tuple(prediction.groups()),
        empty=tuple(empty),
        begins_at=draft.now,
        ends_at=max((stop.ends_at for stop in stops), default=draft.now),
    )


@dataclass(slots=True)
class _Demand:
    """What starts on a host must respect, looked up once."""

    windows: tuple[tuple[Window, ...], ...]
    parts: tuple[Part, ...]


@dataclass(slots=True)
class _Crowd:
    """What is known of a scope's budget, and who waits for it."""

    allowed: int | None
    waiting: deque[str] = field(default_factory=deque)
    delayed: int = 0


class _Prediction:
    """Plays a rollout in advance, by the rules that hold while it runs."""

    def __init__(self, draft: Draft, request: Request) -> None:
        self.now = draft.now
        self.stops: list[PlannedStop] = []
        self._draft = draft
        self._request = request
        self._notice = draft.timing.shortened(request.options.notice or request.kind.traits.notice)
        self._takes = max(draft.timing.shortened(expected(request.kind)), STARTED_SHOWN)
        self._standings: dict[str, Standing] = {}
        self._crowds: dict[str, _Crowd] = {}
        self._out: dict[str, list[tuple[datetime, datetime, int]]] = {}
        self._openings: dict[tuple[tuple[tuple[Window, ...], ...], datetime], datetime] = {}
        self._others: list[tuple[datetime, str, Part]] = list(self._under_way())
        heapq.heapify(self._others)

    def run(self, turn: int, hosts: Sequence[str]) -> None:
        """One turn, to the end of its last operation."""
        loads = {host: self._demand(host) for host in hosts}
        queue = deque(hosts)
        running: list[tuple[datetime, str]] = []
        left = len(hosts)
        while left:
            self._release_ended(queue)
            while queue and len(running) < self._request.options.batch:
                host = queue.popleft()
                if not self._is_hindered(host, loads[host]):
                    heapq.heappush(running, (self._announce(turn, host, loads[host]), host))
                    left -= 1
            self._pass_time(running, loads, queue)
        self.now = max([self.now, *(ends for ends, _ in running)])
        while running:
            self._release(loads[heapq.heappop(running)[1]].parts, queue)

    def groups(self) -> Iterator[PlannedGroup]:
        for scope in sorted(self._out):
            policy, members = self._draft.scope(scope).policy, self._draft.size_of(scope)
            out, most = _overlaid(self._out[scope])
            allowed = budgets.allowed(policy, members)
            yield PlannedGroup(
                scope=scope,
                members=members,
                out=out,
                most_out=most,
                allowed=allowed,
                budget="" if allowed is None else budgets.told(policy, members),
                delayed=self._crowd(scope).delayed,
            )

    def _is_hindered(self, host: str, load: _Demand) -> bool:
        """Whether it has to wait; then it is kept with the scope that it waits for."""
        for part in load.parts:
            crowd = self._crowd(part.scope)
            standing = self._standings.get(part.scope, budgets.NOTHING_OUT)
            rule = budgets.hindrance(standing, part.update_domain, part.vms, crowd.allowed)
            if rule is not None:
                crowd.waiting.append(host)
                crowd.delayed += rule is Rule.BUDGET
                return True
        return False

    def _announce(self, turn: int, host: str, load: _Demand) -> datetime:
        not_before = self._opening(load.windows, whole_second_up(self.now + self._notice))
        ends_at = not_before + self._takes
        names = tuple(sorted(vm.name for vm in self._draft.vms_on(host)))
        self.stops.append(
            PlannedStop(host=host, turn=turn, vms=names, announced_at=self.now, not_before=not_before, ends_at=ends_at)
        )
        for part in load.parts:
            self._standings.setdefault(part.scope, Standing()).add(part.update_domain, part.vms)
            self._out.setdefault(part.scope, []).append((not_before, ends_at, part.vms))
        return ends_at

    def _pass_time(self, running: list[tuple[datetime, str]], loads: Mapping[str, _Demand], queue: deque[str]) -> None:
        """To the next end of something, and let go on who waited for it."""
        if self._others and (not running or self._others[0][0] <= running[0][0]):
            ends_at, _, part = heapq.heappop(self._others)
            self.now = max(self.now, ends_at)
            self._release((part,), queue)
        else:
            ends_at, host = heapq.heappop(running)
            self.now = max(self.now, ends_at)
            self._release(loads[host].parts, queue)

    def _release_ended(self, queue: deque[str]) -> None:
        while self._others and self._others[0][0] <= self.now:
            self._release((heapq.heappop(self._others)[2],), queue)

    def _release(self, parts: Iterable[Part], queue: deque[str]) -> None:
        for part in parts:
            self._standings[part.scope].add(part.update_domain, -part.vms)
            crowd = self._crowd(part.scope)
            queue.extend(crowd.waiting)
            crowd.waiting.clear()

    def _under_way(self) -> Iterator[tuple[datetime, str, Part]]:
        """What others have announced or started; it is taken to end as it should."""
        for operation in self._draft.world.operations.values():
            if not (operation.kind.traits.planned and operation.status.live) or _is_far(
                operation.kind, operation.status
            ):
                continue
            ends_at = max(operation.not_before, self._draft.now) + self._draft.timing.shortened(
                expected(operation.kind)
            )
            for event in self._draft.live_events_of(operation.id):
                part = Part(scope=event.scope, update_domain=event.update_domain, vms=len(event.resources))
                self._standings.setdefault(part.scope, Standing()).add(part.update_domain, part.vms)
                yield ends_at, event.id, part

    def _demand(self, host: str) -> _Demand:
        wanted = dict.fromkeys(turns.demands(self._draft, self._request, host).values())
        return _Demand(windows=tuple(wanted), parts=turns.parts(self._draft, host))

    def _opening(self, wanted: tuple[tuple[Window, ...], ...], earliest: datetime) -> datetime:
        if not wanted:
            return earliest
        known = self._openings.get((wanted, earliest))
        if known is None:
            known = self._openings[wanted, earliest] = windows.next_open(wanted, earliest) or earliest
        return known

    def _crowd(self, scope: str) -> _Crowd:
        crowd = self._crowds.get(scope)
        if crowd is None:
            policy = self._draft.scope(scope).policy
            allowed = budgets.allowed(policy, self._draft.size_of(scope)) if budgets.has_budget(policy) else None
            crowd = self._crowds[scope] = _Crowd(allowed=allowed)
        return crowd


def expected(kind: Kind) -> timedelta:
    """How long an operation of a kind is taken to last."""
    return EXPECTED.get(kind, timedelta(seconds=max(kind.traits.duration, 0)))


def _is_far(kind: Kind, status: Status) -> bool:
    """Degraded hardware is announced days ahead; until it starts nobody waits for it."""
    return kind is Kind.DEGRADED_HARDWARE and status is Status.SCHEDULED


def _overlaid(spans: Iterable[tuple[datetime, datetime, int]]) -> tuple[timedelta, int]:
    """How long anything is out, and how many at most at once."""
    changes = sorted(change for start, end, vms in spans for change in ((start, 1, vms), (end, 0, -vms)))
    total, out, most, since = timedelta(0), 0, 0, None
    for moment, _, vms in changes:
        if out and since is not None:
            total += moment - since
        out, since = out + vms, moment
        most = max(most, out)
    return total, most
