"""Scheduling many operations in one command, beside a plain `executemany` of the very same rows."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench import fleets, report
from bench.effort import Effort
from forenotice.core import roles
from forenotice.core.operations import Kind
from forenotice.core.reconciliation import FleetSpec
from forenotice.service import maintenance
from forenotice.service.calls import SYSTEM, Call

FACTOR = 3.0
TABLES = {
    "scopes": "rowid",
    "operations": "rowid",
    "vm_operations": "operation, vm",
    "events": "rowid",
    "journal": "rowid",
}
"""Those that scheduling writes to, and the order in which it does."""

PRAGMAS = ("PRAGMA synchronous = FULL", "PRAGMA cache_size = -8192", "PRAGMA temp_store = MEMORY")
"""As in the store."""

TENANT = Call(actor="tenant:bench", access=roles.access("tenant", "group"))

Rows = dict[str, list[tuple[Any, ...]]]
Command = tuple[Call, Kind, list[str]]


def measure(effort: Effort) -> list[report.Row]:
    hosts = [f"host-{number}" for number in range(effort.hosts)]
    vms = [f"vm-{number}" for number in range(effort.hosts)]
    of_hosts, of_group = fleets.groups(effort.hosts * fleets.PER_HOST), fleets.wide_group(effort.hosts)
    group = f"a group of {len(of_group.vms):,} on {len(of_group.hosts):,} hosts"
    return [
        _compare(
            f"scheduling {len(hosts):,} host updates over {len(of_hosts.vms):,} VMs",
            of_hosts,
            (SYSTEM, Kind.HOST_UPDATE, hosts),
            effort.schedulings,
        ),
        _compare(
            f"a tenant's redeploy of {len(vms):,} VMs of {group}",
            of_group,
            (TENANT, Kind.REDEPLOY, vms),
            effort.schedulings,
        ),
    ]


def _compare(what: str, spec: FleetSpec, command: Command, turns: int) -> report.Row:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        fresh = Path(directory) / "fresh"
        fleets.make(fresh, spec)
        scheduled, inserted = [], []
        for turn in range(turns):
            ours, theirs = (Path(directory) / f"{name}-{turn}" for name in ("ours", "theirs"))
            shutil.copytree(fresh, ours)
            shutil.copytree(fresh, theirs)
            scheduled.append(_schedule(ours, command))
            rows = _new_rows(fleets.database(fresh), fleets.database(ours))
            inserted.append(_insert(fleets.database(theirs), rows))
    return report.at_most(
        f"{what}, against executemany of the same {sum(map(len, rows.values())):,} rows",
        median(scheduled),
        median(inserted),
        FACTOR,
        "{:.2f} s",
    )


def _schedule(data: Path, command: Command) -> float:
    call, kind, names = command
    with fleets.service(data) as service:
        begin = time.perf_counter()
        maintenance.schedule(service, call, kind=kind, names=names)
        return time.perf_counter() - begin


def _new_rows(before: Path, after: Path) -> Rows:
    """In the order in which they were written."""
    old, new = _rows(before), _rows(after)
    return {table: [row for row in new[table] if row not in known] for table, known in _sets(old).items()}


def _rows(database: Path) -> Rows:
    with closing(sqlite3.connect(database)) as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
            for table, order in TABLES.items()
        }


def _sets(rows: Rows) -> dict[str, set[tuple[Any, ...]]]:
    return {table: set(some) for table, some in rows.items()}


def _insert(database: Path, rows: Rows) -> float:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for pragma in PRAGMAS:
            connection.execute(pragma)
        begin = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        for table, some in rows.items():
            places = ", ".join("?" * len(some[0]))
            # Scopes are there already; all other rows are new.
            connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", some)
        connection.execute("COMMIT")
        return time.perf_counter() - begin
