"""Long polls of one scope: how soon the last of them is told, and what waiting costs."""

import http.client
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import fleets, guests, report, servers
from bench.effort import Effort
from bench.servers import Server

TOLD_SECONDS = 1.0
IDLE_SHARE = 0.02
"""What "next to no CPU" is taken for, of one core."""

_ETAG = re.compile(rb"ETag: (\S+)\r\n")


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.one_group(effort.waiters))
        sources = [fleets.address(number) for number in range(effort.waiters)]
        with servers.forenotice(data, address=sources[0]) as server:
            servers.await_control(server)
            idle = _cpu_share(server, effort.waiting_seconds)
            with guests.connected(server.port, sources) as connections:
                found = _ETAG.search(guests.ask(server.port, sources[0])[1])
                assert found is not None
                request = guests.waiting_poll(found[1].decode(), seconds=60)
                for connection in connections:
                    connection.sendall(request)
                _await_quiet(server)
                waiting = _cpu_share(server, effort.waiting_seconds)
                begin = time.perf_counter()
                _restart(server, (data / "admin.token").read_text().strip())
                told = guests.await_change(connections) - begin
    who = f"{effort.waiters:,} guests in a long poll"
    return [
        report.within(f"{who}, from the command to the last one told", told, TOLD_SECONDS, "{:.2f} s"),
        report.within(
            f"{who}: CPU while nothing happens, of one core",
            100 * waiting,
            100 * IDLE_SHARE,
            "{:.1f} %",
            reference=f"{100 * idle:.1f} % with none",
        ),
    ]


def _restart(server: Server, token: str) -> None:
    """The command: its answer comes after the commit."""
    connection = http.client.HTTPConnection("127.0.0.1", server.control, timeout=guests.PATIENCE)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/operations", '{"kind":"restart","names":["vm-0"]}', headers)
    answer = connection.getresponse()
    if answer.status != 201:
        raise RuntimeError(f"the restart was answered {answer.status}: {answer.read()!r}")
    connection.close()


def _cpu_share(server: Server, seconds: int) -> float:
    before, begin = server.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.perf_counter() - begin)


def _await_quiet(server: Server) -> None:
    """Until the server has taken in what was sent."""
    deadline = time.perf_counter() + guests.PATIENCE
    while _cpu_share(server, 1) > 0.5 and time.perf_counter() < deadline:
        pass
