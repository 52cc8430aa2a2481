"""The portal's start page over a large fleet: how soon the server answers, and what a browser has to do meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.portal.running import Visitor

from bench import browsing, fleets, report, rollouts, servers
from bench.effort import Effort
from bench.servers import Server
from forenotice.core.draft import Draft, World
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.timing import Timing
from forenotice.runtime import new_id
from forenotice.service import maintenance, queries, tokens
from forenotice.service.calls import SYSTEM
from forenotice.service.service import Service

ANSWER_MS = 150.0
TURNS = 50
"""Of each page; the median is judged, and the slowest told."""
WARM = 3
APPROVED = 3
"""Of so many events of host updates one is approved."""
TENANT = "group-00*"
OVER_BETWEEN = timedelta(minutes=2)
AT_ONCE = 100
HEALTH = "/healthz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    middle: float
    worst: float
    cpu: float
    """Of the server's, all in milliseconds."""


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        spec = rollouts.fleet(effort.rollout_hosts)
        fleets.make(data, spec)
        what = f"the start page over {len(spec.vms):,} VMs and {effort.live_events:,} live events"
        vms = sorted(spec.vms)
        del spec
        with fleets.service(data) as service:
            taken = _announce(service, effort.rollout_hosts, vms, effort.live_events)
            _remember(service, effort.ended_events)
            admin = str(tokens.create(service, SYSTEM, name="admin").token)
            tenant = str(tokens.create(service, SYSTEM, name="tenant", role="tenant", scopes=TENANT).token)
        with servers.forenotice(data, address=fleets.address(0)) as server:
            servers.await_control(server)
            rows = _answering(server, what, admin, tenant)
            free = [name for name in vms if name not in taken]
            rows += browsing.measure(server, fleets.database(data), what, admin, free, effort.changing_seconds)
    return rows


def _answering(server: Server, what: str, admin: str, tenant: str) -> list[report.Row]:
    visitor, other = _signed_in(server, admin), _signed_in(server, tenant)
    health = _timed(server, lambda: visitor.ask("GET", HEALTH))
    pages: dict[str, Callable[[], object]] = {
        "": lambda: visitor.get("/"),
        ", page 20 of the list and 7 days": lambda: visitor.get("/?span=7d&page=20"),
        ", as a tenant sees it": lambda: other.get("/"),
    }
    rows = []
    for which, ask in pages.items():
        found = _timed(server, ask)
        judged = f"the median of {TURNS} is judged; slowest {found.worst:.0f} ms"
        beside = f"{judged}; {found.cpu:.0f} ms of CPU; {HEALTH} {health.middle:.1f} ms"
        rows.append(report.within(f"{what}{which}", found.middle, ANSWER_MS, "{:.0f} ms", beside))
    return rows


def _signed_in(server: Server, token: str) -> Visitor:
    visitor = Visitor(server.control)
    if visitor.send("/sign-in", {"token": token}).status != 303:
        raise SystemExit("bench: nobody could sign in")
    return visitor


def _timed(server: Server, ask: Callable[[], object]) -> Timed:
    for _ in range(WARM):
        ask()
    taken, before = [], server.cpu_seconds()
    for _ in range(TURNS):
        begin = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - begin) * 1000)
    cpu = (server.cpu_seconds() - before) * 1000 / TURNS
    return Timed(middle=median(taken), worst=max(taken), cpu=cpu)


def _announce(service: Service, hosts: int, vms: list[str], events: int) -> set[str]:
    """Half of them by updates of hosts, the others by migrations, restarts and redeployments, all over the fleet.

    Gives the VMs that are asked for by name.
    """
    taken: set[str] = set()
    updates, migrations = events // 2 // rollouts.PER_HOST, events // 5 // rollouts.PER_HOST
    step = hosts // (updates + migrations)
    busy = [f"host-{place * step:05}" for place in range(updates + migrations)]
    for kind, names in ((Kind.HOST_UPDATE, busy[:updates]), (Kind.LIVE_MIGRATION, busy[updates:])):
        made = maintenance.schedule(service, SYSTEM, kind=kind, names=names).operations
        for event in [event for operation in made for event in operation.events][::APPROVED]:
            maintenance.approve(service, SYSTEM, event.id)
    left = events - len(queries.events(service, live=True, limit=10 * events).items)
    for place, (kind, count) in enumerate(((Kind.RESTART, left * 2 // 3), (Kind.REDEPLOY, left - left * 2 // 3))):
        names = [vms[5 + place + number * (len(vms) // left)] for number in range(count)]
        maintenance.schedule(service, SYSTEM, kind=kind, names=names)
        taken.update(names)
    return taken


def _remember(service: Service, events: int) -> None:
    """Updates of hosts that are over, one every few minutes up to now; each VM of a host is of another group."""
    now = service.clock.now()
    updates = events // rollouts.PER_HOST
    for first in range(0, updates, AT_ONCE):
        draft = Draft(World(), now=now, timing=Timing(), new_id=new_id)
        for number in range(first, min(first + AT_ONCE, updates)):
            _update(draft, number, now - number * OVER_BETWEEN)
        with service.store.write() as transaction:
            transaction.apply(draft.changes(shown=False))


def _update(draft: Draft, number: int, ended_at: datetime) -> None:
    traits = Kind.HOST_UPDATE.traits
    vms = [f"past-{number}-{place}" for place in range(rollouts.PER_HOST)]
    not_before = ended_at - timedelta(seconds=traits.duration)
    operation = Operation(
        id=new_id(),
        kind=Kind.HOST_UPDATE,
        host=f"host-{number:05}",
        vms=tuple(vms),
        status=Status.COMPLETED,
        created_at=not_before - traits.minimum_notice,
        not_before=not_before,
        started_at=not_before,
        ended_at=ended_at,
    )
    draft.put_operation(operation)
    for place, vm in enumerate(vms):
        draft.put_event(
            Event(
                id=new_id().upper(),
                operation=operation.id,
                scope=f"group:group-{(number + place) % 1000:05}",
                resources=(vm,),
                update_domain=0,
                type=traits.type,
                source=traits.source,
                description=traits.description,
                duration=traits.duration,
                status=Status.COMPLETED,
                created_at=operation.created_at,
                not_before=not_before,
                ended_at=ended_at,
            )
        )
