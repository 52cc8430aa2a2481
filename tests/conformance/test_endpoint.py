"""Our own endpoint keeps every clause in every version, as a user sees it."""

import json
import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.acceptance.running import Server, serving
from tests.conformance.test_wrong_server import having, silent
from tests.conformance.wrong_server import POLLS

from forenotice.client.discovery import parse
from forenotice.conformance.endpoint import run
from forenotice.conformance.endpoint.http import Pace
from forenotice.conformance.endpoint.session import Options
from forenotice.conformance.report import Report, Verdict
from forenotice.core.operations import Kind
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.simulation import Announcement
from forenotice.emulator.testing.event import AnnouncedEvent
from forenotice.wire import versions

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
SPEED = "60"


def documented() -> list[str]:
    """The command of the page that its snippets' test does not run, because it takes its time."""
    (line,) = (
        line for line in PAGE.read_text().splitlines() if line.startswith("    forenotice") and "--provoke" in line
    )
    return shlex.split(line)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, "--demo", "--speed", SPEED) as started:
        yield started


def test_our_own_endpoint_keeps_every_clause_in_every_version(server: Server, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    program, *arguments = (word.replace("127.0.0.1:8254", server.guests) for word in documented())
    assert (program, arguments[arguments.index("--speed") + 1]) == ("forenotice", SPEED)
    done = server.cli(*arguments, "--strict", "--json", "--junit", str(junit))
    report = json.loads(done.stdout)
    assert [finding for finding in report["findings"] if finding["verdict"] == "fail"] == []
    others = {finding["clause"] for finding in report["findings"] if finding["verdict"] != "pass"}
    # The demo has no limit of requests.
    assert others == {"error.rate"}
    assert {finding["where"] for finding in report["findings"]} == {"", *(version.name for version in versions.ALL)}
    assert (done.returncode, report["passed"]) == (0, True)
    assert done.stderr == "The command will be run 2 times, and once more if a wrong approval is accepted.\n"
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(report["findings"])), "0", "1")
    assert server.defects == []


class Restart:
    """Of the one VM of an emulator, whose clock moves on to its end a moment after its start."""

    def __init__(self, emulator: Emulator) -> None:
        takes = timedelta(minutes=2)
        event = emulator.announce(Announcement(kind=Kind.RESTART, resources=("web-0",), takes=takes))

        def end() -> None:
            AnnouncedEvent(emulator, event).wait_started(timeout=60)
            polls = len(emulator.requests.polls)
            emulator.requests.wait_for(lambda requests: len(requests.polls) > polls + POLLS, timeout=60)
            emulator.advance(takes)

        threading.Thread(target=end, daemon=True).start()

    def failure(self) -> str:
        return ""

    def close(self, *, at_once: bool = False) -> None:
        """Nothing is left of it."""


def test_so_does_our_emulator_strictly_and_not() -> None:
    def judged(strict: bool) -> Report:
        emulator = Emulator(as_vm="web-0", speed=float(SPEED))
        at = parse(f"http://{emulator.start()}", "the test")
        options = Options(
            versions=[versions.ALL[0], versions.NEWEST],
            provoke=lambda: Restart(emulator),
            speed=float(SPEED),
            strict=strict,
            pace=Pace(settles=0.05, shown=0.1),
        )
        try:
            return run.judge(at, options, silent)
        finally:
            emulator.stop()

    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(judged, (True, False)))
    assert [having(report, Verdict.FAILED) for report in reports] == [set(), set()]
    assert [having(report, Verdict.NOT_APPLICABLE) for report in reports] == [{"error.rate"}, {"error.rate"}]
