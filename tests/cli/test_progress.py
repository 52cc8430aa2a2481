"""Progress is drawn on a terminal's standard error, and nowhere else."""

import io
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from forenotice.cli import output
from forenotice.cli.output import Bar, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("sending", total=10) as bar:
        bar.done(5)
        bar.say("half of it\x1b[2J")
        bar.doing("applying")
    drawn = terminal.getvalue()
    assert "sending" in drawn
    assert "applying" in drawn
    # What is said stays, and steers nothing.
    assert "half of it\N{REPLACEMENT CHARACTER}[2J\n" in drawn
    # The cursor is back, and the bar's line is empty.
    assert drawn.index("\x1b[?25l") < drawn.index("\x1b[?25h")
    assert drawn.endswith("\x1b[2K")


def test_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sending", total=10) as bar:
        bar.done(5)
        bar.doing("applying")
        bar.say("half of it")
    assert capsys.readouterr() == ("", "half of it\n")


def test_a_fleet_that_is_sent_shows_it(fresh: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[hosts.new]\n" + "# filled up\n" * 10_000)
    told: list[str] = []

    class Told(Bar):
        def doing(self, what: str, *, total: float | None = None) -> None:
            told.append(what)

        def done(self, so_far: float, total: float | None = None) -> None:
            told.append("part" if so_far < file.stat().st_size else "all")

    monkeypatch.setattr(output, "Bar", Told)
    assert fresh("fleet", "apply", str(file)).code == 0
    assert told[0] == "part"
    assert told[-1] == "applying"
    assert told.count("applying") == told.count("all") == 1
