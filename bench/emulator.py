"""How soon an emulator answers, as a command and in a test, beside the plainest server; and a day of virtual time."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median

from bench import guests, report, servers
from bench.effort import Effort
from forenotice.core.operations import Kind
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.simulation import Announcement

START_SECONDS = 0.5
FIXTURE_SECONDS = 0.05
DAY_SECONDS = 1.0
EVENTS = 1_000
DAY = timedelta(days=1)
PROGRAM = str(Path(sys.executable).with_name("forenotice"))
FIRST_IMPORT = """
import time
begin = time.perf_counter()
from bench.emulator import start_in_process
start_in_process()
print(time.perf_counter() - begin)
"""


def measure(effort: Effort) -> list[report.Row]:
    ways = (_start, _plain_start, _python, _first_import, start_in_process)
    taken: dict[Callable[[], float], list[float]] = {way: [] for way in ways}
    for _ in range(effort.starts):
        # In turn, so that a busy moment of the machine falls on all of them.
        for way in ways:
            taken[way].append(way())
    seconds = {way: median(times) for way, times in taken.items()}
    plain = seconds[_plain_start]
    others = f"{seconds[_python]:.2f} s python -c pass"
    return [
        replace(
            report.within(
                "forenotice emulate, from its start to the first answer",
                seconds[_start],
                START_SECONDS,
                "{:.2f} s",
                reference=f"{plain:.2f} s, http.server ({others})",
            ),
            ratio=seconds[_start] / plain,
        ),
        report.within(
            "emulator in a test's process, to the first answer",
            seconds[start_in_process],
            FIXTURE_SECONDS,
            "{:.3f} s",
            reference=f"{seconds[_first_import]:.2f} s with the first import",
        ),
        report.within(
            f"a day of virtual time with {EVENTS:,} events",
            median(_day() for _ in range(effort.runs)),
            DAY_SECONDS,
            "{:.2f} s",
        ),
    ]


def start_in_process() -> float:
    begin = time.perf_counter()
    emulator = Emulator(as_vm="web-0")
    guests.ask(emulator.start().port, "127.0.0.1")
    taken = time.perf_counter() - begin
    emulator.stop()
    return taken


def _start() -> float:
    port, control = servers.free_port(), servers.free_port()
    places = ("--metadata", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}")
    return _first_answer([PROGRAM, "emulate", "reboot", *places], port, 200)


def _plain_start() -> float:
    port = servers.free_port()
    # As `python -m http.server`, but that it does not tell of each request.
    program = "import http.server, sys; h = http.server.SimpleHTTPRequestHandler; h.log_message = lambda *_: None; "
    program += "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), h).serve_forever()"
    return _first_answer([sys.executable, "-c", program, str(port)], port, 404)


def _first_answer(command: list[str], port: int, answers: int) -> float:
    with servers.running("emulator", command, port, 0, "127.0.0.1", answers) as server:
        return server.first_answer_seconds


def _python() -> float:
    return _run(sys.executable, "-c", "pass")


def _run(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _first_import() -> float:
    said = subprocess.run([sys.executable, "-c", FIRST_IMPORT], check=True, capture_output=True, text=True)
    return float(said.stdout)


def _day() -> float:
    """Events that begin all over the day, each Started for half a minute."""
    emulator = Emulator(as_vm="web-0", virtual=True)
    emulator.start()
    for number in range(EVENTS):
        emulator.announce(
            Announcement(
                kind=Kind.RESTART,
                resources=(f"vm-{number}",),
                notice=DAY * number / EVENTS,
                takes=timedelta(seconds=30),
            )
        )
    begin = time.perf_counter()
    emulator.advance(DAY)
    taken = time.perf_counter() - begin
    assert len(emulator.simulation.live) <= 1
    emulator.stop()
    return taken
