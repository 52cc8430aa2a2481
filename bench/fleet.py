"""A large fleet: what polls, memory and start-up cost with it, and with a small one or none."""

from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import fleets, guests, machine, report, servers
from bench.effort import Effort
from bench.servers import Server
from forenotice.core.reconciliation import FleetSpec

AT_ONCE = 64
EXTRA_MIB = 150
START_SECONDS = 3.0

Load = Callable[[Server], float]
"""Polls a server and gives its CPU time per poll."""


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        none, small, large = (Path(directory) / name for name in ("none", "small", "large"))
        fleets.make(none, FleetSpec())
        fleets.make(small, fleets.small())
        fleets.make(large, fleets.groups(effort.vms))
        # Spread over the fleet, so that each polls another scope.
        sources = [fleets.address(number * (effort.vms // effort.sources)) for number in range(effort.sources)]
        return [
            *_polls(small, large, sources, effort),
            *_start(none, large, sources[0], effort),
        ]


def _polls(small: Path, large: Path, sources: list[str], effort: Effort) -> list[report.Row]:
    def kept(server: Server) -> float:
        with guests.connected(server.port, sources) as connections:
            before = server.cpu_seconds()
            polls = guests.exchange(
                islice(cycle((each, guests.POLL) for each in connections), effort.polls), at_once=AT_ONCE
            )
            return (server.cpu_seconds() - before) / polls

    def anew(server: Server) -> float:
        before = server.cpu_seconds()
        polls = guests.exchange_anew(server.port, islice(cycle(sources), effort.polls), at_once=AT_ONCE)
        return (server.cpu_seconds() - before) / polls

    what = f"server's CPU per poll from {effort.sources:,} addresses, {effort.vms:,} VMs against {fleets.PER_SCOPE}"
    # Whoever calls is known by address in the large fleet, and is the default in the small one.
    with (
        servers.forenotice(large, address=sources[0]) as many,
        servers.forenotice(small, "--as", "vm-1", address=sources[0]) as few,
    ):
        return [
            _compare(f"{what}, keep-alive", kept, many, few, effort),
            _compare(f"{what}, one per connection", anew, many, few, effort),
        ]


def _compare(what: str, load: Load, many: Server, few: Server, effort: Effort) -> report.Row:
    load(many)
    costs = [(load(many), load(few)) for _ in range(effort.runs)]
    of_many, of_few = (median(each) * 1e6 for each in zip(*costs, strict=True))
    return report.at_most(what, of_many, of_few, 1.1, "{:.1f} µs")


def _start(none: Path, large: Path, address: str, effort: Effort) -> list[report.Row]:
    seconds, resident, resident_empty = [], [], []
    for _ in range(effort.runs):
        with servers.forenotice(large, address=address) as server:
            seconds.append(server.first_answer_seconds)
            servers.await_control(server)
            resident.append(server.resident_bytes() / machine.MIB)
        with servers.forenotice(none, answers=404) as server:
            servers.await_control(server)
            resident_empty.append(server.resident_bytes() / machine.MIB)
    with_none = median(resident_empty)
    return [
        report.within(
            f"resident memory with {effort.vms:,} VMs beyond that with none",
            median(resident) - with_none,
            EXTRA_MIB,
            "{:,.0f} MiB",
            reference=f"{with_none:,.0f} MiB with none",
        ),
        report.within(
            f"start-up with {effort.vms:,} VMs to the first answer", median(seconds), START_SECONDS, "{:.2f} s"
        ),
    ]
