"""Polls of one guest under wrk, beside nginx that serves the same bytes as a static file."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import fleets, guests, machine, report, servers
from bench.effort import Effort
from bench.servers import Server

CONNECTIONS = 64
_DONE = re.compile(r"(\d+) requests in ")
_RATE = re.compile(r"Requests/sec: +([0-9.]+)")
_TROUBLE = re.compile(r"Non-2xx.*|Socket errors.*")


@dataclass(frozen=True, slots=True)
class Run:
    per_second: float
    cpu_per_million: float
    """Seconds of the server's CPU time for a million polls."""


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.small())
        with servers.forenotice(data) as ours:
            body = guests.ask(ours.port, "127.0.0.1")[1].partition(b"\r\n\r\n")[2]
            with servers.nginx(body) as theirs:
                return [
                    *_side_by_side("keep-alive polls", 1.0, ours, theirs, effort),
                    *_side_by_side("one poll per connection", 0.9, ours, theirs, effort, "Connection: close"),
                ]


def _side_by_side(
    what: str, factor: float, ours: Server, theirs: Server, effort: Effort, *headers: str
) -> list[report.Row]:
    runs: dict[str, list[Run]] = {ours.name: [], theirs.name: []}
    for server in (ours, theirs):
        wrk(server, 1, headers)
    for _ in range(effort.runs):
        for server in (ours, theirs):
            runs[server.name].append(wrk(server, effort.seconds, headers))
    rates = [median(run.per_second for run in runs[server.name]) for server in (ours, theirs)]
    costs = [median(run.cpu_per_million for run in runs[server.name]) for server in (ours, theirs)]
    return [
        report.at_least(f"{what}, against nginx", rates[0], rates[1], factor, "{:,.0f}/s"),
        report.Row(
            what=f"{what}: server's CPU per million",
            measured=f"{costs[0]:.2f} s",
            reference=f"{costs[1]:.2f} s",
            ratio=costs[0] / costs[1],
        ),
    ]


def wrk(server: Server, seconds: int, headers: Sequence[str] = ()) -> Run:
    command = [
        *(servers.program("taskset"), "--cpu-list", str(machine.LOAD_CORE)),
        *(servers.program("wrk"), "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "-H", "Metadata: true"),
        *(part for header in headers for part in ("-H", header)),
        f"http://127.0.0.1:{server.port}{guests.TARGET}",
    ]
    before = server.cpu_seconds()
    said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True).stdout
    used = server.cpu_seconds() - before
    done, rate = _DONE.search(said), _RATE.search(said)
    if done is None or rate is None or _TROUBLE.search(said):
        raise RuntimeError(f"wrk against {server.name} had trouble:\n{said}")
    return Run(per_second=float(rate[1]), cpu_per_million=used / int(done[1]) * 1e6)
