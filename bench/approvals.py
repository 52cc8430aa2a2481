"""Approvals, each of them durable before its 200, beside plain single-row commits on the same SQLite file."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import fleets, guests, report, servers
from bench.effort import Effort
from notbefore.core.operations import Kind
from notbefore.service import maintenance
from notbefore.service.calls import SYSTEM

AT_ONCE = 64
BATCHES = 5
"""Each side is measured in so many turns; the median counts."""


def measure(effort: Effort) -> list[report.Row]:
    per_turn = effort.approvals // BATCHES
    needed = 2 * per_turn * BATCHES
    with TemporaryDirectory(prefix="notbefore-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.standalone(needed, fleets.PER_HOST))
        events = _schedule(data)
        plain, alone, together = [], [], []
        with servers.notbefore(data, address=fleets.address(0)) as server:
            vms = iter(range(needed))
            for _ in range(BATCHES):
                plain.append(_plain_commits(fleets.database(data), per_turn))
                alone.append(_approvals(server.port, events, [next(vms) for _ in range(per_turn)], at_once=1))
                together.append(_approvals(server.port, events, [next(vms) for _ in range(per_turn)], at_once=AT_ONCE))
    commits = median(plain)
    return [
        report.at_least(
            "approvals by one guest at a time, against plain commits", median(alone), commits, 0.5, "{:,.0f}/s"
        ),
        report.at_least(
            f"approvals by {AT_ONCE} guests at once, against plain commits", median(together), commits, 1.0, "{:,.0f}/s"
        ),
    ]


def _schedule(data: Path) -> dict[int, str]:
    """A host update for every host; gives the event of each VM by its number."""
    with fleets.service(data) as service:
        with service.store.read() as reader:
            hosts = [host.name for host, _ in reader.list_hosts(None, 1_000_000)]
        made = maintenance.schedule(service, SYSTEM, kind=Kind.HOST_UPDATE, names=hosts)
    events = (event for operation in made["operations"] for event in operation["events"])
    return {int(event["resources"][0].removeprefix("vm-")): event["id"] for event in events}


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
        guests.exchange(requests, at_once=at_once)
        return len(vms) / (time.perf_counter() - begin)
