"""Planning a rollout over a large fleet, in a process of its own, and asking why something of it waits."""

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import fleets, report
from bench.effort import Effort
from forenotice.core.fleet import Policy, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.reconciliation import FleetSpec, GroupSpec, HostSpec
from forenotice.core.roles import EVERYTHING
from forenotice.core.rollouts import KINDS, Options, RolloutSpec
from forenotice.service import queries, rollouts
from forenotice.service.calls import SYSTEM
from forenotice.service.service import Service

PLAN_SECONDS = 20.0
PLAN_MIB = 1024.0
EXPLAIN_MS = 50.0
PER_HOST = 20
DOMAINS = 5
SIZES = (*range(3, 13), 20, 30, 50, 100, 200, 1000)
SPARE = 50
"""For so many hosts there is one that has nobody, so that there is somewhere to migrate to."""
CROSSWISE = 50
"""Of so many groups one, if it is small, has update domains where others have only one."""
SMALL = 13
BATCH = 100
EXPLAINED = 50


def measure(effort: Effort) -> list[report.Row]:
    rows: list[report.Row] = []
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory) / "fleet"
        spec = fleet(effort.rollout_hosts)
        fleets.make(data, spec)
        what = f"a rollout over {effort.rollout_hosts:,} hosts and {len(spec.vms):,} VMs"
        del spec
        for kind in ("update", "migrate"):
            rows += _planning(data, kind, what)
        for kind in ("update", "migrate"):
            rows += _explaining(data, kind, what)
    return rows


def fleet(hosts: int) -> FleetSpec:
    """Groups of 3 to 1000 VMs in five update domains, each on hosts in a row, numbered from any of them on."""
    chance = random.Random(hosts)
    names = [f"host-{number:05}" for number in range(hosts)]
    spare = [f"spare-{number:05}" for number in range(hosts // SPARE)]
    groups: dict[str, GroupSpec] = {}
    vms: dict[str, VmSpec] = {}
    for places in _places(chance, hosts):
        size = len(places)
        group = f"group-{len(groups):05}"
        groups[group] = GroupSpec(kind=ScopeKind.PLACEMENT_GROUP, policy=_policy(chance, size))
        first = chance.randrange(DOMAINS)
        crosswise = size < SMALL and len(groups) % CROSSWISE == 0
        for number, place in enumerate(places):
            domain = (number // 2 if crosswise else place + first) % DOMAINS
            name = f"vm-{len(vms):06}"
            vms[name] = VmSpec(
                name=name, host=names[place], group=group, update_domain=domain, addresses=(fleets.address(len(vms)),)
            )
    return FleetSpec(hosts={name: HostSpec() for name in names + spare}, groups=groups, vms=vms)


def _places(chance: random.Random, hosts: int) -> Iterator[list[int]]:
    """Group after group, host after host, until every host is full."""
    place, end = 0, hosts * PER_HOST
    while place < end:
        size = min(chance.choice(SIZES), end - place, hosts)
        yield [each % hosts for each in range(place, place + size)]
        place += size


def _policy(chance: random.Random, size: int) -> Policy:
    if size < 10 or chance.random() < 0.2:
        return fleets.ASKING
    if chance.random() < 0.5:
        return replace(fleets.ASKING, max_unavailable="10%")
    return replace(fleets.ASKING, min_available=size - size // 10)


def _planning(data: Path, kind: str, what: str) -> list[report.Row]:
    said = subprocess.run(
        [sys.executable, "-m", "bench.rollouts", str(data), kind], capture_output=True, text=True, check=True
    )
    found = json.loads(said.stdout)
    return [
        report.within(
            f"planning {what}, {kind}", found["seconds"], PLAN_SECONDS, "{:.1f} s", f"{found['waves']} waves"
        ),
        report.within(f"planning {what}, {kind}: peak memory", found["mib"], PLAN_MIB, "{:.0f} MiB"),
    ]


def _explaining(data: Path, kind: str, what: str) -> list[report.Row]:
    with fleets.service(data) as service:
        begin = time.perf_counter()
        rollout = rollouts.start(service, SYSTEM, _request(kind)).id
        started = time.perf_counter() - begin
        rolled = _roll(service)
        live = queries.operations(service, live=True, limit=EXPLAINED).items
        hosts = rollouts.show(service, rollout, EVERYTHING).progress.under_way
        asks: dict[str, list[Callable[[], object]]] = {
            "a live event": [partial(queries.explain_event, service, each.events[-1].id) for each in live],
            "a live operation": [partial(queries.explain_operation, service, each.id) for each in live],
            "the rollout": [partial(rollouts.explain, service, rollout)] * EXPLAINED,
        }
        rows = [
            report.Row(what=f"starting {what}, {kind}", measured=f"{started:.1f} s"),
            report.Row(what=f"announcing {hosts} of its hosts, {kind}", measured=f"{rolled:.1f} s"),
            *(_explained(noun, kind, some) for noun, some in asks.items()),
        ]
        rollouts.cancel(service, SYSTEM, rollout)
        _roll(service)
    return rows


def _roll(service: Service) -> float:
    """Until nothing is due; gives how long that took."""
    begin = time.perf_counter()
    while (due := rollouts.next_due(service)) is not None and due <= service.clock.now():
        rollouts.advance(service, {})
    return time.perf_counter() - begin


def _explained(what: str, kind: str, asks: Iterable[Callable[[], object]]) -> report.Row:
    times = []
    for ask in asks:
        begin = time.perf_counter()
        ask()
        times.append((time.perf_counter() - begin) * 1000)
    worst = f"worst {max(times):.1f} ms"
    return report.within(f"explaining {what} of it, {kind}", median(times), EXPLAIN_MS, "{:.1f} ms", worst)


def _request(kind: str) -> RolloutSpec:
    return RolloutSpec(kind=KINDS[kind], hosts="host-*", options=Options(batch=BATCH))


def _plan(service: Service, kind: str) -> dict[str, object]:
    begin = time.perf_counter()
    plan = rollouts.plan(service, _request(kind))
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "mib": peak, "waves": len(plan.waves), "stops": len(plan.planned_hosts)}


if __name__ == "__main__":
    with fleets.service(Path(sys.argv[1])) as found:
        print(json.dumps(_plan(found, sys.argv[2])))
