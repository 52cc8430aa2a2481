"""A rollout before it begins: what happens when, by the rules that hold while it runs."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

from forenotice.core import budgets, errors, rollouts, update_domains, windows
from forenotice.core.budgets import Rule, VmsDown
from forenotice.core.draft import Draft
from forenotice.core.fleet import names_of
from forenotice.core.operations import Kind
from forenotice.core.rollouts import Part, RolloutSpec
from forenotice.core.timing import STARTED_SHOWN, Timing, whole_second_up
from forenotice.core.windows import Window

EXPECTED = {Kind.HOST_REBOOT: timedelta(minutes=5)}
"""How long an operation is taken to last where its events do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHost:
    host: str
    wave: int
    update_domains: tuple[int, ...]
    vms: tuple[str, ...]
    announced_at: datetime
    not_before: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """What a rollout means to one group."""

    scope: str
    members: int
    down: timedelta
    """How long some of its VMs are down."""
    most_down: int
    """VMs at once."""
    allowed: int | None
    budget: str
    """The rule that decides, as the operator wrote it; empty without one."""
    delayed: int
    """Hosts that had to wait for its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    planned_hosts: tuple[PlannedHost, ...]
    """In order of announcement."""
    groups: tuple[PlannedGroup, ...]
    empty: tuple[str, ...]
    """Hosts without VMs, which are skipped."""
    begins_at: datetime
    ends_at: datetime


def plan(draft: Draft, spec: RolloutSpec) -> Plan:
    """What happens if no guest approves early, every gate is green and nothing fails."""
    hosts = rollouts.chosen_hosts(spec, draft.world.hosts)
    rollouts.require_possible(draft, spec, hosts)
    order = rollouts.assign_waves(draft, hosts)
    by_wave: dict[int, list[str]] = {}
    empty = [host for host in hosts if not draft.vms_on(host)]
    for host in hosts:
        if draft.vms_on(host):
            by_wave.setdefault(order[host], []).append(host)
    try:
        prediction = _played(draft, spec, by_wave)
    except OverflowError:
        raise errors.RefusedError(
            "it would go on beyond the calendar: give less notice, a shorter pause or fewer hosts"
        ) from None
    return Plan(
        planned_hosts=tuple(prediction.hosts),
        groups=tuple(prediction.groups()),
        empty=tuple(empty),
        begins_at=draft.now,
        ends_at=max((host.ends_at for host in prediction.hosts), default=draft.now),
    )


def _played(draft: Draft, spec: RolloutSpec, by_wave: Mapping[int, Sequence[str]]) -> "_Prediction":
    prediction = _Prediction(draft, spec)
    for number, (wave, hosts) in enumerate(sorted(by_wave.items())):
        if number:
            prediction.now += draft.timing.shortened(spec.options.pause)
        prediction.run(wave, hosts)
    return prediction


_Candidate = tuple[str, str, int]
"""A host, and what it has waited for so far."""


@dataclass(frozen=True, slots=True, order=True)
class _End:
    """When something that is announced or under way is taken to be over, and what is free then."""

    at: datetime
    id: str
    """Of an operation, or the host that the rollout has taken."""
    ours: bool
    host: str
    parts: tuple[Part, ...] = field(compare=False)


@dataclass(slots=True)
class _Crowd:
    """A scope's budget, and the hosts that it has kept waiting."""

    allowed: int | None
    delayed: set[str] = field(default_factory=set)


class _Prediction:
    """Plays a rollout in advance, by the rules that hold while it runs."""

    def __init__(self, draft: Draft, spec: RolloutSpec) -> None:
        self.now = draft.now
        self.hosts: list[PlannedHost] = []
        self._draft = draft
        self._spec = spec
        self._notice = draft.timing.shortened(spec.options.notice or spec.kind.traits.minimum_notice)
        self._down: dict[str, VmsDown] = {}
        self._busy: Counter[str] = Counter()
        """Hosts that others have maintenance on."""
        self._crowds: dict[str, _Crowd] = {}
        self._waiting: dict[str, dict[int, list[str]]] = {}
        """Hosts that wait, by the scope or the host of which something must end first, and how many VMs they need."""
        self._spans: dict[str, list[tuple[datetime, datetime, int]]] = {}
        self._openings: dict[tuple[tuple[tuple[Window, ...], ...], datetime], datetime] = {}
        self._ends: list[_End] = []
        self._put_off: list[tuple[datetime, str]] = []
        """Hosts that a window keeps waiting, by the time at which their guests are told."""
        self._expect_others()

    def run(self, wave: int, hosts: Sequence[str]) -> None:
        """One wave, to the end of its last operation. Hosts go by name, as they do while it runs."""
        loads = {host: rollouts.parts(self._draft, host) for host in hosts}
        wanted = {host: self._windows(host) for host in hosts}
        own = tuple(filter(None, [self._spec.options.windows]))
        queue: list[_Candidate] = [(host, "", 0) for host in sorted(hosts)]
        left, running = len(hosts), 0
        while left or running:
            running -= self._release_ended(queue)
            while self._put_off and self._put_off[0][0] <= self.now:
                heapq.heappush(queue, (heapq.heappop(self._put_off)[1], "", 0))
            opens_at = self._told_at(own)
            while queue and running < self._spec.options.batch and opens_at <= self.now:
                host, *_ = candidate = heapq.heappop(queue)
                hindered_by, vms = self._hindered_by(host, loads[host])
                if hindered_by:
                    heapq.heappush(self._waiting.setdefault(hindered_by, {}).setdefault(vms, []), host)
                elif (told_at := self._told_at(wanted[host])) > self.now:
                    heapq.heappush(self._put_off, (told_at, host))
                else:
                    self._announce(wave, host, loads[host], wanted[host])
                    left, running = left - 1, running + 1
                if (host, hindered_by, vms) != candidate:
                    self._let_next(queue, *candidate[1:])
            if left or running:
                coming = [end.at for end in self._ends[:1]] + [told_at for told_at, _ in self._put_off[:1]]
                self.now = max(self.now, min([*coming, opens_at] if opens_at > self.now else coming))

    def groups(self) -> Iterator[PlannedGroup]:
        for scope in sorted(self._spans):
            policy, members = self._draft.scope(scope).policy, self._draft.size_of(scope)
            down, most = _overlaid(self._spans[scope])
            allowed = budgets.allowed(policy, members)
            yield PlannedGroup(
                scope=scope,
                members=members,
                down=down,
                most_down=most,
                allowed=allowed,
                budget="" if allowed is None else budgets.told(policy, members),
                delayed=len(self._crowd(scope).delayed),
            )

    def _hindered_by(self, host: str, parts: Iterable[Part]) -> tuple[str, int]:
        """The scope or the host of which something must end first, and for how many VMs; empty: it may go."""
        if self._busy[host]:
            return host, 0
        found: list[Part] = []
        for part in parts:
            crowd = self._crowd(part.scope)
            down = self._down.get(part.scope, budgets.NOTHING_DOWN)
            rule = budgets.blocker(down, part.update_domain, part.vms, crowd.allowed)
            if rule is Rule.BUDGET:
                crowd.delayed.add(host)
            if rule is not None:
                found.append(part)
        return (found[0].scope, found[0].vms) if found else ("", 0)

    def _windows(self, host: str) -> tuple[tuple[Window, ...], ...]:
        return tuple(dict.fromkeys(rollouts.demands(self._draft, self._spec, host).values()))

    def _earliest(self) -> datetime:
        return whole_second_up(self.now + self._draft.allowance + self._notice)

    def _told_at(self, wanted: tuple[tuple[Window, ...], ...]) -> datetime:
        return windows.announce_at(self._opening(wanted, self._earliest()), self._notice, self.now)

    def _announce(self, wave: int, host: str, parts: tuple[Part, ...], wanted: tuple[tuple[Window, ...], ...]) -> None:
        # As when it is announced and when it ends: both are promised from the commit on.
        not_before = self._opening(wanted, self._earliest())
        ends_at = not_before + self._draft.allowance + self._takes(self._spec.kind)
        names = names_of(self._draft.vms_on(host))
        self.hosts.append(
            PlannedHost(
                host=host,
                wave=wave,
                update_domains=rollouts.update_domains(parts),
                vms=names,
                announced_at=self.now,
                not_before=not_before,
                ends_at=ends_at,
            )
        )
        self._expect(_End(at=ends_at, id=host, ours=True, host=host, parts=parts))
        for part in parts:
            self._spans.setdefault(part.scope, []).append((not_before, ends_at, part.vms))

    def _expect_others(self) -> None:
        """What others have announced or started; it is taken to end as it should."""
        for operation in self._draft.world.operations.values():
            of_kind = operation.kind is self._spec.kind
            if operation.status.live and (update_domains.excludes_others(operation) or of_kind):
                begins_at = operation.started_at or max(operation.not_before, self.now)
                parts = tuple(
                    Part(scope=event.scope, update_domain=event.update_domain, vms=len(event.resources))
                    for event in self._draft.live_events_of(operation.id)
                )
                ends_at = max(begins_at + self._takes(operation.kind), self.now)
                self._expect(_End(at=ends_at, id=operation.id, ours=False, host=operation.host, parts=parts))

    def _expect(self, end: _End) -> None:
        heapq.heappush(self._ends, end)
        self._busy[end.host] += 1
        for part in end.parts:
            self._down.setdefault(part.scope, VmsDown()).add(part.update_domain, part.vms)

    def _release_ended(self, queue: list[_Candidate]) -> int:
        """Let those go on that waited for what is over by now; gives how many hosts of the rollout that was."""
        ours = 0
        while self._ends and self._ends[0].at <= self.now:
            end = heapq.heappop(self._ends)
            ours += end.ours
            self._busy[end.host] -= 1
            for part in end.parts:
                self._down[part.scope].add(part.update_domain, -part.vms)
            for freed in (end.host, *(part.scope for part in end.parts)):
                for vms in self._waiting.get(freed, ()):
                    self._let_next(queue, freed, vms)
        return ours

    def _let_next(self, queue: list[_Candidate], freed: str, vms: int) -> None:
        """The next of those that wait for the same, one at a time: where it has to wait again, so have all of them."""
        if waiting := self._waiting.get(freed, {}).get(vms):
            heapq.heappush(queue, (heapq.heappop(waiting), freed, vms))

    def _takes(self, kind: Kind) -> timedelta:
        return max(self._draft.timing.shortened(expected(kind)), STARTED_SHOWN)

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


@cache
def expected(kind: Kind) -> timedelta:
    """How long an operation of a kind is taken to last."""
    return EXPECTED.get(kind, timedelta(seconds=max(kind.traits.duration, 0)))


def expected_end(
    kind: Kind, *, not_before: datetime, started_at: datetime | None, now: datetime, timing: Timing
) -> datetime | None:
    """Of an operation that is not over; None: unknown for its kind."""
    takes = expected(kind)
    if not takes:
        return None
    begins = started_at or max(not_before, now)
    return max(begins + max(timing.shortened(takes), STARTED_SHOWN), now)


def _overlaid(spans: Iterable[tuple[datetime, datetime, int]]) -> tuple[timedelta, int]:
    """How long anything is down, and how many VMs at most at once."""
    changes = sorted(change for start, end, vms in spans for change in ((start, 1, vms), (end, 0, -vms)))
    total, down, most, since = timedelta(0), 0, 0, None
    for moment, _, vms in changes:
        if down and since is not None:
            total += moment - since
        down, since = down + vms, moment
        most = max(most, down)
    return total, most
