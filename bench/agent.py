"""What the agent costs a VM: where nothing happens, beside the plainest poller in Python, and with many events."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import fleets, machine, report, servers
from bench.effort import Effort
from bench.listing import listing
from bench.servers import Server

RESIDENT_MIB = 30.0
IDLE_PERCENT = 0.3
EVENTS = 300
EVENTS_PERCENT = 5.0
PREPARED_SECONDS = 300
SETTLED_SECONDS = 3
CONFIG = """
listen = "127.0.0.1:0"

[[handler]]
name = "drain"
type = "command"
prepare = ["true"]
recover = ["true"]
"""
WAITING = """
approve = "never"

[[handler]]
name = "flag"
type = "file"
path = "{flag}"
"""
PLAIN = """
import sys, time, urllib.request
while True:
    request = urllib.request.Request(sys.argv[1], headers={"Metadata": "true"})
    urllib.request.urlopen(request).read()
    time.sleep(1)
"""


def measure(effort: Effort) -> list[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.one_group(1))
        seconds = effort.idle_seconds
        with servers.forenotice(data, "--as", "vm-0", "--wait-cap", "0") as server:
            with _plain(server) as plain:
                plain_percent, plain_resident = _observed(plain, seconds)
            with _agent(data, _url(server)) as agent:
                percent, resident = _observed(agent, seconds)
        with servers.forenotice(data, "--as", "vm-0") as server, _agent(data, _url(server)) as agent:
            waiting, _ = _observed(agent, seconds)
    unchanged, changing = (_with_events(seconds, changes=changes) for changes in (False, True))
    return [
        report.within(
            "Idle agent with its listener, resident memory",
            resident,
            RESIDENT_MIB,
            "{:.1f} MiB",
            reference=f"{plain_resident:.1f} MiB, a loop around urllib",
        ),
        report.within(
            "Idle agent at one poll a second, CPU of one core",
            percent,
            IDLE_PERCENT,
            "{:.3f} %",
            reference=f"{plain_percent:.3f} %, a loop around urllib",
        ),
        report.within(
            f"Agent with {EVENTS} live events in one document, CPU of one core", unchanged, EVENTS_PERCENT, "{:.2f} %"
        ),
        report.within(
            f"Agent with {EVENTS} live events, one of which changes every second, CPU of one core",
            changing,
            EVENTS_PERCENT,
            "{:.2f} %",
        ),
        report.Row(what="Idle agent where the server holds its polls, CPU of one core", measured=f"{waiting:.3f} %"),
    ]


def _with_events(seconds: int, *, changes: bool) -> float:
    """Percent of a core, once the agent has prepared for all of them."""
    with TemporaryDirectory(prefix="forenotice-bench-") as directory, listing(EVENTS, changes=changes) as endpoint:
        data = Path(directory)
        with _agent(data, endpoint, WAITING.format(flag=data / "flag")) as agent:
            until = time.monotonic() + PREPARED_SECONDS
            while _prepared(data / "agent" / "status.json") < EVENTS:
                if time.monotonic() > until:
                    raise RuntimeError(f"the agent did not prepare for {EVENTS} events in {PREPARED_SECONDS} s")
                time.sleep(1)
            percent, _ = _observed(agent, seconds)
    return percent


def _prepared(status: Path) -> int:
    sagas = json.loads(status.read_text())["sagas"] if status.exists() else []
    return sum(saga["state"] == "prepared" for saga in sagas)


def _observed(pid: int, seconds: int) -> tuple[float, float]:
    """Percent of a core, and MiB, once it has settled."""
    time.sleep(SETTLED_SECONDS)
    before, begin = _cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    percent = 100 * (_cpu_seconds(pid) - before) / (time.perf_counter() - begin)
    return percent, machine.resident_bytes(pid) / machine.MIB


def _cpu_seconds(pid: int) -> float:
    """Of all its threads, finer than the clock ticks of /proc/PID/stat."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def _agent(data: Path, endpoint: str, text: str = CONFIG) -> Iterator[int]:
    config = data / "agent.toml"
    config.write_text(text)
    flags = ("--config", str(config), "--state", str(data / "agent"), "--log-level", "error")
    with _running(sys.executable, "-m", "forenotice", "agent", "run", *flags, endpoint=endpoint) as pid:
        yield pid


@contextmanager
def _plain(server: Server) -> Iterator[int]:
    with _running(
        sys.executable, "-c", PLAIN, f"{_url(server)}/metadata/scheduledevents?api-version=2020-07-01"
    ) as pid:
        yield pid


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


@contextmanager
def _running(*command: str, endpoint: str = "") -> Iterator[int]:
    environment = {**os.environ, "FORENOTICE_ENDPOINT": endpoint}
    process = subprocess.Popen(command, env=environment)
    try:
        yield process.pid
        if process.poll() is not None:
            raise RuntimeError(f"{command[1:4]} has ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait(servers.STOP_SECONDS)
