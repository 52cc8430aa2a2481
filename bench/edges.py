"""A thousand simulated edges: a host update over all of their hosts, and what they cost at rest."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from bench import fleets, machine, nats_cluster, report
from bench.effort import Effort
from bench.fleets import PER_HOST
from bench.nats_cluster import PATIENCE, Cluster
from bench.servers import Server
from forenotice.core.operations import Kind

ANNOUNCED_SECONDS = 10.0


def measure(effort: Effort) -> Iterator[report.Row]:
    hosts = [f"host-{number}" for number in range(effort.edges)]
    with nats_cluster.cluster() as cluster, ExitStack() as stack:
        token = cluster.make_fleet(fleets.standalone(len(hosts) * PER_HOST, PER_HOST))
        service = stack.enter_context(cluster.service())
        for host in hosts:
            cluster.enrol(host)
        alone, resident = _costs(service, cluster, effort), cluster.nats_resident_bytes()
        with _simulated(cluster) as ask:
            ask("shown")
            together = _costs(service, cluster, effort)
            connected = cluster.nats_resident_bytes() - resident
            with nats_cluster.operator(service, token) as operator:
                begin = time.monotonic()
                operator.send_schedule(Kind.HOST_UPDATE, hosts)
                operator.receive()
            returned = time.monotonic() - begin
            shown = [moment - begin for moment in ask("announced")]
    what = f"{len(hosts):,} simulated edges"
    yield report.within(
        f"{what}: host update over all, {len(hosts) * PER_HOST:,} VMs, to the last one announced",
        max(shown),
        ANNOUNCED_SECONDS,
        "{:.1f} s",
        reference=f"the command {returned:.1f} s, the first {min(shown):.1f} s, half {median(shown):.1f} s",
    )
    for whose, before, after in zip(("serve", "three NATS servers"), alone, together, strict=True):
        yield report.Row(
            what=f"{what} at rest: CPU of {whose}, of one core",
            measured=f"{after:.1f} %",
            reference=f"{before:.1f} % without",
        )
    yield report.Row(
        what=f"{what}: memory of NATS's servers for each",
        measured=f"{connected / len(hosts) / 1024:.0f} KiB",
        reference=f"{resident / len(cluster.nats) / machine.MIB:.0f} MiB each without",
    )


def _costs(service: Server, cluster: Cluster, effort: Effort) -> list[float]:
    """Percent of a core."""
    time.sleep(min(nats_cluster.SETTLED_SECONDS, effort.idle_seconds))
    before, begin = (service.cpu_seconds(), cluster.nats_cpu_seconds()), time.perf_counter()
    time.sleep(effort.idle_seconds)
    taken = time.perf_counter() - begin
    after = (service.cpu_seconds(), cluster.nats_cpu_seconds())
    return [100 * (now - then) / taken for then, now in zip(before, after, strict=True)]


@contextmanager
def _simulated(cluster: Cluster) -> Iterator[Callable[[str], list[float]]]:
    """Edges of all hosts with credentials; gives when each began to show what it shows, once all are as asked."""
    command = [
        sys.executable,
        "-m",
        "bench.simulated_edges",
        *cluster.flags,
        "--credentials",
        str(cluster.directory / "credentials"),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FORENOTICE_")}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(what: str) -> list[float]:
        stdin.write(f"{what}\n")
        stdin.flush()
        if not select.select([stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(f"not all edges are {what} after {PATIENCE:.0f} s")
        moments: list[float] = json.loads(stdout.readline())
        return moments

    try:
        yield ask
    finally:
        process.kill()
        process.wait()
        stdin.close()
        stdout.close()
