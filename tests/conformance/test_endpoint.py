"""Our own endpoint keeps every clause in every version, as a user sees it."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.acceptance.running import Server, serving

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
    assert done.stderr == "The command will be run 2 times.\n"
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(report["findings"])), "0", "1")
    assert server.defects == []
