"""Rollouts: maintenance over many hosts, and the waves in which the hosts go."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forenotice.core import errors, selectors, windows
from forenotice.core.fleet import GROUP_PREFIX, Host, amount
from forenotice.core.operations import Kind, require_duration
from forenotice.core.windows import Window

if TYPE_CHECKING:
    from forenotice.core.draft import Draft

KINDS = {"update": Kind.HOST_UPDATE, "migrate": Kind.LIVE_MIGRATION, "reboot": Kind.HOST_REBOOT}
"""What operators call them."""

MOST_HOSTS = 100_000
MOST_AT_ONCE = 10_000
MOST_FAILURES = 100_000
LONGEST_PAUSE = timedelta(days=30)
BEFORE_THE_FIRST = -1
"""The wave of a rollout that has just been started."""


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


class RolloutHostStatus(StrEnum):
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
    """Between the end of one wave and the next."""
    gate: str | None = None
    """What must be green before a wave: a URL, or the name of a command that the service knows."""
    max_failures: int = 1
    """After so many hosts that failed it pauses."""
    windows: tuple[Window, ...] = ()
    """When its operations may start; without any, always."""
    duration: int | None = None
    """How many seconds a host update freezes the VMs; None: as usual."""

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
            "duration_seconds": self.duration,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    green: bool
    status: str
    """Its exit code or HTTP status, or why it could not be asked."""
    at: datetime
    output: str = ""
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
    wave: int = BEFORE_THE_FIRST
    opens_at: datetime
    """When the pause before this wave is over."""
    opened_at: datetime | None = None
    """When this wave began; None: the pause or the gate is before it."""
    gate_result: GateResult | None = None
    """The gate's last result before this wave."""
    failures: int = 0
    """Hosts that failed since it started or was resumed."""
    why: str = ""
    """Why it is paused."""
    ended_at: datetime | None = None
    due_at: datetime | None = None
    """When tick should look at it next; None while it is paused or over."""
    by: str = ""
    reason: str = ""

    @property
    def notice(self) -> timedelta:
        return self.options.notice or self.kind.traits.minimum_notice


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHost:
    """One host's place in a rollout."""

    rollout: str
    host: str
    wave: int
    status: RolloutHostStatus = RolloutHostStatus.WAITING
    operation: str | None = None
    why: str = ""
    """Why it failed or was skipped."""
    update_domains: tuple[int, ...] = ()
    """Those of the groups of which the host had VMs when the rollout began; without groups, those of its VMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many hosts of one wave, with these update domains, are so."""

    wave: int
    status: RolloutHostStatus
    update_domains: tuple[int, ...]
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """What an operator asks for when starting or planning a rollout."""

    kind: Kind
    hosts: str
    options: Options = Options()
    reason: str = ""


def require_sound(spec: RolloutSpec) -> selectors.Selector:
    """Refuse what makes no sense in any fleet; gives the selector of its hosts."""
    options, notice = spec.options, spec.kind.traits.minimum_notice
    if spec.kind not in KINDS.values():
        raise errors.RefusedError(f"a rollout cannot be a {spec.kind}: give {', '.join(KINDS)}")
    if options.notice is not None and options.notice < notice:
        raise errors.RefusedError(f"the notice must be at least {notice.total_seconds() / 60:g} minutes")
    require_duration(spec.kind, options.duration)
    if not 1 <= options.batch <= MOST_AT_ONCE:
        raise errors.RefusedError(f"batch must be from 1 to {MOST_AT_ONCE} hosts")
    if not 1 <= options.max_failures <= MOST_FAILURES:
        raise errors.RefusedError(f"max_failures must be from 1 to {MOST_FAILURES}")
    if not timedelta(0) <= options.pause <= LONGEST_PAUSE:
        raise errors.RefusedError(f"the pause must be at most {LONGEST_PAUSE.days} days")
    return selectors.of_hosts(spec.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The VMs of one scope on a host: an operation takes them together."""

    scope: str
    update_domain: int
    vms: int


def chosen_hosts(spec: RolloutSpec, hosts: Mapping[str, Host]) -> list[str]:
    selector = require_sound(spec)
    if missing := [name for name in selector.named if name not in hosts]:
        raise errors.NotFoundError(f"there is no host {missing[0]!r}", host=missing[0])
    chosen = sorted(name for name, host in hosts.items() if selector.selects(host))
    if not chosen:
        raise errors.NotFoundError(f"no host is selected by {selector.text!r}", hosts=selector.text)
    if len(chosen) > MOST_HOSTS:
        raise errors.RefusedError(f"{len(chosen)} hosts are too many for one rollout: at most {MOST_HOSTS}")
    return chosen


def assign_waves(draft: "Draft", hosts: Collection[str]) -> dict[str, int]:
    """For each host the first wave in which no scope would have two update domains down."""
    # Waves are bits of a number: all that a scope has, and those of each of its update domains.
    taken: dict[str, int] = {}
    of_domain: dict[tuple[str, int], int] = {}
    found: dict[str, int] = {}
    loads = {host: parts(draft, host) for host in hosts}

    def usual_domain(host: str) -> int:
        counted = Counter(part.update_domain for part in loads[host])
        return counted.most_common(1)[0][0] if counted else 0

    for host in sorted(hosts, key=lambda host: (usual_domain(host), host)):
        closed = 0
        for part in loads[host]:
            closed |= taken.get(part.scope, 0) & ~of_domain.get((part.scope, part.update_domain), 0)
        wave = ~closed & (closed + 1)
        for part in loads[host]:
            taken[part.scope] = taken.get(part.scope, 0) | wave
            key = (part.scope, part.update_domain)
            of_domain[key] = of_domain.get(key, 0) | wave
        found[host] = wave.bit_length() - 1
    return found


def parts(draft: "Draft", host: str) -> tuple[Part, ...]:
    counted = Counter((vm.scope, vm.update_domain) for vm in draft.vms_on(host))
    return tuple(Part(scope=scope, update_domain=domain, vms=vms) for (scope, domain), vms in counted.items())


def update_domains(parts: Collection[Part]) -> tuple[int, ...]:
    """Those of groups; without groups, those of standalone VMs, which exclude nothing."""
    of_groups = [part for part in parts if part.scope.startswith(GROUP_PREFIX)]
    return tuple(sorted({part.update_domain for part in of_groups or parts}))


def require_possible(draft: "Draft", spec: RolloutSpec, hosts: Iterable[str]) -> None:
    """Refuse budgets that can never be met, and windows that are never open together."""
    known: set[frozenset[tuple[Window, ...]]] = set()
    if spec.kind.traits.moves:
        _require_room(draft, hosts)
    for host in hosts:
        asked = demands(draft, spec, host)
        together = frozenset(asked.values())
        if together not in known and windows.next_open(together, draft.now) is None:
            raise windows.never(asked)
        known.add(together)
        for part in parts(draft, host):
            draft.require_budget(part.scope, vms=part.vms, host=host)


def _require_room(draft: "Draft", hosts: Iterable[str]) -> None:
    """Refuse to move VMs that have nowhere to go: hosts are cordoned, have others of their group, or are too full.

    A migration frees as much as it takes, so what is free on all hosts together stays the same.
    """
    fit = {host.name: host for host in draft.world.hosts.values() if not host.cordoned}
    places: dict[str, dict[tuple[int, int], set[str]]] = {}
    for vm in draft.world.vms.values():
        if vm.host in fit:
            places.setdefault(vm.scope, {}).setdefault(vm.domains, set()).add(vm.host)
    holds = {name: math.inf if host.holds is None else host.holds for name, host in fit.items()}
    limited = {name: host.holds for name, host in fit.items() if host.holds is not None}
    free = {name: max(most - sum(vm.takes for vm in draft.vms_on(name)), 0) for name, most in limited.items()}
    all_free, two_largest = sum(free.values()), sorted(holds, key=holds.__getitem__)[-2:]
    for host in hosts:
        vms = draft.vms_on(host)
        largest = max((holds[name] for name in two_largest if name != host), default=0)
        for vm in vms:
            taken = sum(len(on) for domains, on in places.get(vm.scope, {}).items() if domains != vm.domains)
            if len(fit) - taken - (host in fit) <= 0:
                why = f"no host can take {vm.name} of host {host}"
                help_ = "add or uncordon one that keeps its group's domains apart"
                raise errors.ConflictError(f"{why}: {help_}", vm=vm.name, host=host)
            if vm.takes > largest:
                size = amount(vm.takes)
                why = f"no other host has the capacity for {vm.name} (size {size}) of host {host}"
                help_ = "raise one, or add or uncordon a host"
                raise errors.ConflictError(f"{why}: {help_}", vm=vm.name, host=host, size=size)
        needed = sum(vm.takes for vm in vms)
        if largest < math.inf and needed > (left := all_free - free.get(host, 0)):
            why = (
                f"the VMs of host {host} take {amount(needed)}, and the other hosts have capacity left for "
                f"{amount(left)}: make room, raise a capacity, or add or uncordon a host"
            )
            raise errors.ConflictError(why, host=host, size=amount(needed))


def demands(draft: "Draft", spec: RolloutSpec, host: str) -> dict[str, tuple[Window, ...]]:
    """Who asks for which windows: the scopes on a host, and the rollout."""
    asked = windows.of_scopes(draft, [vm.name for vm in draft.vms_on(host)])
    return {**asked, "rollout": spec.options.windows} if spec.options.windows else asked
