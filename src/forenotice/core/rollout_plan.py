"""A rollout before it begins: what happens when, by the rules that hold while it runs."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from forenotice.core import errors, rollouts, windows
from forenotice.core.draft import Draft
from forenotice.core.fleet import names_of
from forenotice.core.operations import Kind, is_excluded
from forenotice.core.rollouts import Part, RolloutSpec
from forenotice.core.timing import STARTED_SHOWN, Timing, whole_second_up
from forenotice.core.windows import Window

EXPECTED = {Kind.HOST_REBOOT: timedelta(minutes=5)}
"""How long an operation is taken to last where its events do not say."""
_Demands = tuple[tuple[Window, ...], ...]


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
    by_wave: defaultdict[int, list[str]] = defaultdict(list)
    for host, wave in rollouts.assign_waves(draft, hosts).items():
        if draft.vms_on(host):
            by_wave[wave].append(host)
    try:
        prediction = _Prediction(draft, spec)
        for wave in sorted(by_wave):
            if prediction.hosts:
                prediction.now += draft.timing.shortened(spec.options.pause)
            prediction.run(wave, by_wave[wave])
    except OverflowError:
        raise errors.RefusedError(
            "it would go on beyond the calendar: give less notice, a shorter pause or fewer hosts"
        ) from None
    return Plan(
        planned_hosts=tuple(prediction.hosts),
        groups=tuple(prediction.groups()),
        empty=tuple(host for host in hosts if not draft.vms_on(host)),
        begins_at=draft.now,
        ends_at=max((host.ends_at for host in prediction.hosts), default=draft.now),
    )


class _Prediction:
    """Plays a rollout in advance."""

    def __init__(self, draft: Draft, spec: RolloutSpec) -> None:
        self.now = draft.now
        self.hosts: list[PlannedHost] = []
        self._draft = draft
        self._spec = spec
        self._notice = draft.timing.shortened(spec.options.notice or spec.kind.traits.minimum_notice)
        self._down: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """VMs of each scope that are down, or announced to be, by update domain."""
        self._busy: Counter[str] = Counter()
        """Hosts that have maintenance."""
        self._delayed: defaultdict[str, set[str]] = defaultdict(set)
        """Hosts that the budget of each scope has kept waiting."""
        self._waiting: dict[str, dict[int, list[str]]] = {}
        """Hosts that wait, by the scope or the host of which something must end first, and how many VMs they need."""
        self._spans: dict[str, list[tuple[datetime, datetime, int]]] = {}
        self._ends: list[tuple[datetime, str, bool, str, tuple[Part, ...]]] = []
        """When what is announced or under way will be over: its id, whether it is ours, and what is free then."""
        self._put_off: list[tuple[datetime, str]] = []
        """Hosts that a window keeps waiting, by the time at which their guests are told."""
        for operation in draft.world.operations.values():
            if operation.status.live and (operation.excludes_others or operation.kind is spec.kind):
                parts = tuple(
                    Part(scope=event.scope, update_domain=event.update_domain, vms=len(event.resources))
                    for event in draft.live_events_of(operation.id)
                )
                begins_at = operation.started_at or max(operation.not_before, self.now)
                ends_at = _ends_at(operation.kind, operation.duration, begins_at, draft.timing)
                self._expect(max(ends_at, self.now), operation.id, False, operation.host, parts)

    def run(self, wave: int, hosts: Sequence[str]) -> None:
        """One wave, to the end of its last operation. Hosts go by name, as they do while it runs."""
        loads = {host: rollouts.parts(self._draft, host) for host in hosts}
        wanted = {
            host: tuple(dict.fromkeys(rollouts.demands(self._draft, self._spec, host).values())) for host in hosts
        }
        own = tuple(filter(None, [self._spec.options.windows]))
        # Hosts, each with what it has waited for so far.
        queue: list[tuple[str, str, int]] = [(host, "", 0) for host in sorted(hosts)]
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
                coming = [end[0] for end in self._ends[:1]] + [told_at for told_at, _ in self._put_off[:1]]
                self.now = max(self.now, min([*coming, opens_at] if opens_at > self.now else coming))

    def groups(self) -> Iterator[PlannedGroup]:
        for scope in sorted(self._spans):
            policy, members = self._draft.scope(scope).policy, self._draft.size_of(scope)
            down, most = _overlaid(self._spans[scope])
            yield PlannedGroup(
                scope=scope,
                members=members,
                down=down,
                most_down=most,
                allowed=policy.allowed_down(members),
                budget=policy.budget(members),
                delayed=len(self._delayed[scope]),
            )

    def _hindered_by(self, host: str, parts: Iterable[Part]) -> tuple[str, int]:
        """The scope or the host of which something must end first, and for how many VMs; empty: it may go."""
        if self._busy[host]:
            return host, 0
        found: list[Part] = []
        for part in parts:
            down = self._down[part.scope]
            excluded = is_excluded(part.update_domain, (domain for domain, vms in down.items() if vms))
            if not excluded and down.total() + part.vms > self._draft.allowed_down(part.scope):
                self._delayed[part.scope].add(host)
                excluded = True
            if excluded:
                found.append(part)
        return (found[0].scope, found[0].vms) if found else ("", 0)

    def _opening(self, wanted: _Demands) -> datetime:
        """NotBefore of what is announced now."""
        return _opening(wanted, whole_second_up(self.now + self._draft.allowance + self._notice))

    def _told_at(self, wanted: _Demands) -> datetime:
        return windows.announce_at(self._opening(wanted), self._notice, self.now)

    def _announce(self, wave: int, host: str, parts: tuple[Part, ...], wanted: _Demands) -> None:
        not_before = self._opening(wanted)
        # It ends as it is announced: both are promised from the commit on.
        kind, duration = self._spec.kind, self._spec.options.duration
        ends_at = _ends_at(kind, duration, not_before + self._draft.allowance, self._draft.timing)
        self.hosts.append(
            PlannedHost(
                host=host,
                wave=wave,
                update_domains=rollouts.update_domains(parts),
                vms=names_of(self._draft.vms_on(host)),
                announced_at=self.now,
                not_before=not_before,
                ends_at=ends_at,
            )
        )
        self._expect(ends_at, host, True, host, parts)
        for part in parts:
            self._spans.setdefault(part.scope, []).append((not_before, ends_at, part.vms))

    def _expect(self, ends_at: datetime, end_of: str, ours: bool, host: str, parts: tuple[Part, ...]) -> None:
        heapq.heappush(self._ends, (ends_at, end_of, ours, host, parts))
        self._busy[host] += 1
        for part in parts:
            self._down[part.scope][part.update_domain] += part.vms

    def _release_ended(self, queue: list[tuple[str, str, int]]) -> int:
        """Let those go on that waited for what is over by now; gives how many hosts of the rollout that was."""
        released = 0
        while self._ends and self._ends[0][0] <= self.now:
            _, _, ours, host, parts = heapq.heappop(self._ends)
            released += ours
            self._busy[host] -= 1
            for part in parts:
                self._down[part.scope][part.update_domain] -= part.vms
            for freed in (host, *(part.scope for part in parts)):
                for vms in self._waiting.get(freed, ()):
                    self._let_next(queue, freed, vms)
        return released

    def _let_next(self, queue: list[tuple[str, str, int]], freed: str, vms: int) -> None:
        """The next of those that wait for the same, one at a time: where it has to wait again, so have all of them."""
        if waiting := self._waiting.get(freed, {}).get(vms):
            heapq.heappush(queue, (heapq.heappop(waiting), freed, vms))


@lru_cache(maxsize=4096)
def _opening(wanted: _Demands, earliest: datetime) -> datetime:
    return windows.next_open(wanted, earliest) or earliest


def expected(kind: Kind, duration: int | None = None) -> timedelta:
    """How long an operation of a kind is taken to last; None: no other duration than usual was asked for."""
    seconds = kind.traits.duration if duration is None else duration
    return EXPECTED.get(kind, timedelta(seconds=max(seconds, 0)))


def expected_end(
    kind: Kind, duration: int, *, not_before: datetime, started_at: datetime | None, now: datetime, timing: Timing
) -> datetime | None:
    """Of an operation that is not over; None: unknown for its kind."""
    begins_at = started_at or max(not_before, now)
    return max(_ends_at(kind, duration, begins_at, timing), now) if expected(kind, duration) else None


def _ends_at(kind: Kind, duration: int | None, begins_at: datetime, timing: Timing) -> datetime:
    return begins_at + max(timing.shortened(expected(kind, duration)), STARTED_SHOWN)


def _overlaid(spans: Iterable[tuple[datetime, datetime, int]]) -> tuple[timedelta, int]:
    """How long anything is down, and how many VMs at most at once."""
    changes = sorted(change for start, end, vms in spans for change in ((start, 1, vms), (end, 0, -vms)))
    total, down, most, since = timedelta(0), 0, 0, changes[0][0]
    for moment, _, vms in changes:
        total += moment - since if down else timedelta(0)
        down, since = down + vms, moment
        most = max(most, down)
    return total, most
