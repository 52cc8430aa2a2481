"""A polite guest's polls beside another guest that pipelines polls without end, with the rate limit on."""

import multiprocessing
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from bench import fleets, guests, machine, report, servers
from bench.effort import Effort

CONNECTIONS = (5, 250)
POLITE = 50
"""Guests that poll in turn, so that none of them reaches the rate limit."""
PER_SECOND = 150
P99_SECONDS = 0.05
REFUSED = guests.POLL.replace(guests.TARGET.encode(), b"/nothing")


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.groups(POLITE + 1))
        addresses = [fleets.address(number) for number in range(POLITE)]
        rows = []
        with servers.forenotice(data, "--guest-rate", "5", address=addresses[0]) as server:
            for reads in (True, False):
                for count in CONNECTIONS:
                    with flood(server.port, fleets.address(POLITE), count, reads=reads):
                        taken = poll(server.port, addresses, effort.seconds)
                    rows.append(_row(taken, count, "pipeline and read" if reads else "pipeline and do not read"))
            with flood(server.port, fleets.address(POLITE), CONNECTIONS[-1], reads=False, request=REFUSED):
                taken = poll(server.port, addresses, effort.seconds)
            rows.append(_row(taken, CONNECTIONS[-1], "pipeline what is refused"))
        return rows


def _row(taken: list[float], count: int, what: str) -> report.Row:
    who = f"{count} connections of another guest that {what}"
    return report.within(
        f"a poll beside {who}, p99",
        1000 * quantiles(taken, n=100)[98],
        1000 * P99_SECONDS,
        "{:.1f} ms",
        reference=f"p50 {1000 * quantiles(taken, n=2)[0]:.1f} ms, worst {1000 * max(taken):.0f} ms of {len(taken)}",
    )


def poll(port: int, addresses: list[str], seconds: float) -> list[float]:
    """How long each of their polls takes, one after the other."""
    taken: list[float] = []
    with guests.connected(port, addresses) as connections:
        time.sleep(1)
        due = begin = time.perf_counter()
        while due < begin + seconds:
            connection = connections[len(taken) % len(connections)]
            sent = time.perf_counter()
            guests.exchange([(connection, guests.POLL)], at_once=1)
            now = time.perf_counter()
            taken.append(now - sent)
            due = max(now, due + 1 / PER_SECOND)
            time.sleep(max(0, due - now))
    return taken


@contextmanager
def flood(port: int, address: str, connections: int, *, reads: bool, request: bytes = guests.POLL) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(
        target=_pipeline, args=(port, address, connections, reads, request * 500), daemon=True
    )
    process.start()
    try:
        time.sleep(1)
        yield
    finally:
        process.kill()
        process.join()


def _pipeline(port: int, address: str, connections: int, reads: bool, block: bytes) -> None:
    """Sends whatever is taken, on so many connections; whoever is closed comes back at once."""
    machine.pin(machine.LOAD_CORE)
    events = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
    with selectors.DefaultSelector() as selector:

        def connect() -> None:
            made = guests.connect(port, address)
            made.setblocking(False)
            selector.register(made, events)

        for _ in range(connections):
            connect()
        while True:
            for key, ready in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    if ready & selectors.EVENT_READ and not connection.recv(65536):
                        raise ConnectionResetError
                    if ready & selectors.EVENT_WRITE:
                        connection.send(block)
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(connection)
                    connection.close()
                    connect()
