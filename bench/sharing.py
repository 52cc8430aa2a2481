"""An administrator's requests beside a token that floods the control plane with queries that take long."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import fleets, report, servers
from bench.effort import Effort
from forenotice.service import tokens
from forenotice.service.calls import SYSTEM

VMS, PER_HOST = 20_000, 50
FLOODING = 60
PATTERNS = 50
"""Each is tried on every VM, and fits none."""
WANTED_SECONDS = 0.5


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.standalone(VMS, PER_HOST))
        with fleets.service(data) as service:
            admin = str(tokens.create(service, SYSTEM, name="admin").token)
            scopes = ",".join(f"vm:z*q{number}*r*s" for number in range(PATTERNS))
            viewer = str(tokens.create(service, SYSTEM, name="viewer", role="viewer", scopes=scopes).token)
        with servers.forenotice(data, address=fleets.address(0)) as server:
            servers.await_control(server)
            alone = asked(server.control, "/v1/vms", viewer)
            with flooded(server.control, viewer):
                taken = repeated(server.control, admin, effort.seconds)
    return [
        report.within(
            f"an administrator's request beside {FLOODING} pattern queries of one viewer, worst",
            1000 * max(taken),
            1000 * WANTED_SECONDS,
            "{:.0f} ms",
            reference=f"median {1000 * median(taken):.0f} ms of {len(taken)}; one such query alone {alone:.1f} s",
        )
    ]


def repeated(port: int, token: str, seconds: float) -> list[float]:
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        taken.append(asked(port, "/v1/hosts?limit=1", token))
        time.sleep(0.05)
    return taken


def asked(port: int, path: str, token: str) -> float:
    """How long the answer takes."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        connection.getresponse().read()
    finally:
        connection.close()
    return time.perf_counter() - begun


@contextmanager
def flooded(port: int, token: str) -> Iterator[None]:
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            asked(port, "/v1/vms?limit=1000", token)

    threads = [threading.Thread(target=flood) for _ in range(FLOODING)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(2)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
