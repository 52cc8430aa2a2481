"""Approvals, each of them durable before its 200, beside plain single-row commits on the same SQLite file."""

import sqlite3
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import fleets, guests, report, servers
from bench.effort import Effort
from forenotice.core.operations import Kind
from forenotice.service import maintenance
from forenotice.service.calls import SYSTEM

AT_ONCE = 64
TURNS = 5
"""Each side is measured so often, in turn; the median counts."""


def measure(effort: Effort) -> list[report.Row]:
    per_turn = effort.approvals // TURNS
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        hosts = -(-per_turn * (1 + 2 * TURNS) // (fleets.PER_HOST - 1))
        fleets.make(data, fleets.standalone(hosts * fleets.PER_HOST, fleets.PER_HOST))
        events = _schedule(data, hosts)
        # On each host somebody never approves, so that approvals alone are measured and nothing starts.
        vms = (number for number in range(hosts * fleets.PER_HOST) if number % fleets.PER_HOST)
        plain, alone, together = [], [], []
        with servers.forenotice(data, address=fleets.address(0)) as server:
            # A write-ahead log that still grows takes longer to sync than one that has come round.
            _approvals(server.port, events, list(islice(vms, per_turn)), at_once=AT_ONCE)
            for _ in range(TURNS):
                plain.append(_plain_commits(fleets.database(data), per_turn))
                alone.append(_approvals(server.port, events, list(islice(vms, per_turn)), at_once=1))
                together.append(_approvals(server.port, events, list(islice(vms, per_turn)), at_once=AT_ONCE))
    commits, show = median(plain), "{:,.0f}/s"
    return [
        report.at_least("approvals by one guest at a time, against plain commits", median(alone), commits, 0.5, show),
        report.at_least(
            f"approvals by {AT_ONCE} guests at once, against plain commits", median(together), commits, 1.0, show
        ),
    ]


def _schedule(data: Path, hosts: int) -> dict[int, str]:
    """A host update for every host; gives the event of each VM by its number."""
    with fleets.service(data) as service:
        names = [f"host-{number}" for number in range(hosts)]
        made = maintenance.schedule(service, SYSTEM, kind=Kind.HOST_UPDATE, names=names)
    events = (event for operation in made.operations for event in operation.events)
    return {int(event.resources[0].removeprefix("vm-")): event.id for event in events}


def _plain_commits(database: Path, count: int) -> float:
    with closing(sqlite3.connect(database, isolation_level=None, timeout=guests.PATIENCE)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        begin = time.perf_counter()
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (f"bench-{number}", "a single row"))
            connection.execute("COMMIT")
        seconds = time.perf_counter() - begin
        connection.execute("DELETE FROM meta WHERE key LIKE 'bench-%'")
    return count / seconds


def _approvals(port: int, events: dict[int, str], vms: list[int], *, at_once: int) -> float:
    with guests.connected(port, [fleets.address(vm) for vm in vms]) as connections:
        requests = [(each, guests.approval(events[vm])) for each, vm in zip(connections, vms, strict=True)]
        begin = time.perf_counter()
        if at_once == 1:
            guests.exchange_in_turn(requests)
        else:
            guests.exchange(requests, at_once=at_once)
        return len(vms) / (time.perf_counter() - begin)
