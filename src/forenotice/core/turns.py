"""Whose turn comes when: hosts that share a scope go apart where they are of different update domains."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from forenotice.core import budgets, calendar, errors, windows
from forenotice.core.draft import Draft
from forenotice.core.fleet import GROUP_PREFIX, Host, Vm, amount
from forenotice.core.rollouts import MOST_HOSTS, Request, require_sound
from forenotice.core.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The VMs of one scope on a host: an operation takes them together."""

    scope: str
    update_domain: int
    vms: int


def chosen_hosts(request: Request, hosts: Mapping[str, Host]) -> list[str]:
    selector = require_sound(request)
    if missing := [name for name in selector.named if name not in hosts]:
        raise errors.NotFoundError(f"there is no host {missing[0]!r}", host=missing[0])
    chosen = sorted(name for name, host in hosts.items() if selector.selects(host))
    if not chosen:
        raise errors.NotFoundError(f"no host is selected by {selector.text!r}", hosts=selector.text)
    if len(chosen) > MOST_HOSTS:
        raise errors.RefusedError(f"{len(chosen)} hosts are too many for one rollout: at most {MOST_HOSTS}")
    return chosen


def assign(draft: Draft, hosts: Collection[str]) -> dict[str, int]:
    """For each host the first turn in which no scope would have two update domains out."""
    # Turns are bits of a number: all that a scope has, and those of each of its update domains.
    taken: dict[str, int] = {}
    of_domain: dict[tuple[str, int], int] = {}
    found: dict[str, int] = {}
    loads = {host: parts(draft, host) for host in hosts}
    for host in sorted(hosts, key=lambda host: (_usual_domain(loads[host]), host)):
        closed = 0
        for part in loads[host]:
            closed |= taken.get(part.scope, 0) & ~of_domain.get((part.scope, part.update_domain), 0)
        turn = ~closed & (closed + 1)
        for part in loads[host]:
            taken[part.scope] = taken.get(part.scope, 0) | turn
            key = (part.scope, part.update_domain)
            of_domain[key] = of_domain.get(key, 0) | turn
        found[host] = turn.bit_length() - 1
    return found


def parts(draft: Draft, host: str) -> tuple[Part, ...]:
    counted = Counter((vm.scope, vm.update_domain) for vm in draft.vms_on(host))
    return tuple(Part(scope=scope, update_domain=domain, vms=vms) for (scope, domain), vms in counted.items())


def update_domains(parts: Collection[Part]) -> tuple[int, ...]:
    """Those of groups; that of a standalone VM keeps it apart from nobody, and is told where there is nothing else."""
    of_groups = [part for part in parts if part.scope.startswith(GROUP_PREFIX)]
    return tuple(sorted({part.update_domain for part in of_groups or parts}))


def require_possible(draft: Draft, request: Request, hosts: Iterable[str]) -> None:
    """Refuse budgets that can never be met, and windows that are never open together."""
    known: set[frozenset[tuple[Window, ...]]] = set()
    if request.kind.traits.moves:
        _require_room(draft, hosts)
    for host in hosts:
        asked = demands(draft, request, host)
        together = frozenset(asked.values())
        if together not in known and windows.next_open(together, draft.now) is None:
            raise calendar.never(asked)
        known.add(together)
        for part in parts(draft, host):
            policy = draft.scope(part.scope).policy
            if budgets.has_budget(policy):
                size = draft.size_of(part.scope)
                budgets.require_possible(part.scope, policy, members=size, vms=part.vms, host=host)


def _require_room(draft: Draft, hosts: Iterable[str]) -> None:
    """Refuse to move VMs that have nowhere to go: hosts are cordoned, have others of their group, or are too full."""
    fit = {host.name: host for host in draft.world.hosts.values() if not host.cordoned}
    places: dict[str, dict[tuple[int, int], set[str]]] = {}
    for vm in draft.world.vms.values():
        if vm.host in fit:
            domains = (vm.update_domain, vm.fault_domain)
            places.setdefault(vm.scope, {}).setdefault(domains, set()).add(vm.host)
    capacities = _Capacities(draft, fit)
    for host in hosts:
        vms = draft.vms_on(host)
        for vm in vms:
            mine = (vm.update_domain, vm.fault_domain)
            taken = sum(len(on) for domains, on in places.get(vm.scope, {}).items() if domains != mine)
            if len(fit) - taken - (host in fit) <= 0:
                raise errors.ConflictError(
                    f"no host can take {vm.name} of host {host}: add or uncordon one that keeps its group's domains "
                    "apart",
                    vm=vm.name,
                    host=host,
                )
        capacities.require_room_for(host, vms)


class _Capacities:
    """What fits on the hosts that take VMs, whatever the rollout has moved by then.

    A migration frees as much as it takes, so what is free on all hosts together stays the same.
    """

    def __init__(self, draft: Draft, fit: Mapping[str, Host]) -> None:
        self._holds = {name: math.inf if host.holds is None else host.holds for name, host in fit.items()}
        self._free = {
            name: max(host.holds - sum(vm.takes for vm in draft.vms_on(name)), 0)
            for name, host in fit.items()
            if host.holds is not None
        }
        self._all_free = sum(self._free.values())
        self._largest = sorted(self._holds, key=self._holds.__getitem__)[-2:]

    def require_room_for(self, host: str, vms: Sequence[Vm]) -> None:
        largest = max((self._holds[name] for name in self._largest if name != host), default=0)
        if largest == math.inf:
            return
        for vm in vms:
            if vm.takes > largest:
                raise errors.ConflictError(
                    f"no other host has the capacity for {vm.name} (size {amount(vm.takes)}) of host {host}: "
                    "raise one, or add or uncordon a host",
                    vm=vm.name,
                    host=host,
                    size=amount(vm.takes),
                )
        needed, free = sum(vm.takes for vm in vms), self._all_free - self._free.get(host, 0)
        if needed > free:
            raise errors.ConflictError(
                f"the VMs of host {host} take {amount(needed)}, and the other hosts have capacity left for "
                f"{amount(free)}: make room, raise a capacity, or add or uncordon a host",
                host=host,
                size=amount(needed),
            )


def demands(draft: Draft, request: Request, host: str) -> dict[str, tuple[Window, ...]]:
    """Who asks for which windows: the scopes on a host, and the rollout."""
    asked = calendar.of_scopes(draft, [vm.name for vm in draft.vms_on(host)])
    return {**asked, "rollout": request.options.windows} if request.options.windows else asked


def _usual_domain(load: Sequence[Part]) -> int:
    return Counter(part.update_domain for part in load).most_common(1)[0][0] if load else 0
