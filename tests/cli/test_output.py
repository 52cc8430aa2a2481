"""Times, TOML and tables as they are written."""

import io
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Run

from forenotice.cli import output
from forenotice.cli.fleet import dumps
from forenotice.cli.output import Bar, Output, cell, progress

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_spans() -> None:
    texts = {
        0: "0 s",
        0.4: "0 s",
        59: "59 s",
        60: "1 min",
        898: "14 min 58 s",
        3601: "1 h",
        3660: "1 h 1 min",
        86400 * 7 - 3600: "6 d 23 h",
        -898: "14 min 58 s",
    }
    assert {seconds: output.span(timedelta(seconds=seconds)) for seconds in texts} == texts


def test_moments_are_shown_relative_and_exact() -> None:
    assert output.told(NOW + timedelta(minutes=15), NOW) == "in 15 min (2026-01-01 12:15:00 UTC)"
    assert output.told(NOW - timedelta(minutes=30), NOW) == "30 min ago (2026-01-01 11:30:00 UTC)"
    assert output.told(NOW + timedelta(seconds=0.5), NOW) == "now (2026-01-01 12:00:00 UTC)"
    assert output.told(None, NOW) == ""
    assert Output(json=False, now=NOW).moment(NOW + timedelta(minutes=15)).startswith("in 15 min")
    assert abs(Output(json=True).now - datetime.now(UTC)) < timedelta(minutes=1)


def test_durations_and_moments_as_typed() -> None:
    typed = {"20": 20, "20m": 20, "90s": 1.5, "2h": 120, "7d": 10080, "1.5 h": 90, "5min": 5}
    assert {text: output.minutes(text) for text in typed} == typed
    for text in ("", "-5", "5 weeks", "nan", "1e3", "٣"):
        with pytest.raises(ValueError, match="is not a duration: give minutes such as 20"):
            output.minutes(text)
    assert output.past("2026-01-31", NOW) == datetime(2026, 1, 31, tzinfo=UTC)
    assert output.past("2026-01-31T12:00:00+02:00", NOW) == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert output.past("90d", NOW) == NOW - timedelta(days=90)


text = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def has_tables_in_lists(value: Any, *, in_list: bool = False) -> bool:
    if isinstance(value, dict):
        return in_list or any(has_tables_in_lists(item) for item in value.values())
    return isinstance(value, list) and any(has_tables_in_lists(item, in_list=True) for item in value)


@given(st.dictionaries(text, plain, max_size=4))
def test_toml_reads_back_as_it_was(document: dict[str, Any]) -> None:
    if has_tables_in_lists(document):
        with pytest.raises(TypeError, match="has no place in a fleet file"):
            dumps(document)
    else:
        assert tomllib.loads(dumps(document)) == document


def test_toml_leaves_out_what_is_nothing() -> None:
    assert dumps({"vms": {"a": {"group": None, "load": 0.5}}}) == "[vms.a]\nload = 0.5\n"


def test_cells_and_names() -> None:
    values = (None, "", (), True, False, 0, ["a", 1], {"k": "v", "none": None}, "a\x1bb", "Started")
    texts = ["", "", "", "yes", "no", "0", "a, 1", "k=v", "a\N{REPLACEMENT CHARACTER}b", "Started"]
    assert [cell(value).plain for value in values] == texts
    assert output.cut(["a", "b", "c"]) == "a, b, c"
    assert output.cut([str(number) for number in range(15)]) == "0, 1, 2 and 12 more"


# Progress is drawn on a terminal's standard error, and nowhere else


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


def test_a_fleet_that_is_sent_shows_it(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[hosts.new]\n" + "# filled up\n" * 10_000)
    told: list[str] = []

    class Told(Bar):
        def doing(self, what: str, *, total: float | None = None) -> None:
            told.append(what)

        def done(self, so_far: float) -> None:
            told.append("part" if so_far < file.stat().st_size else "all")

    monkeypatch.setattr(output, "Bar", Told)
    assert cli("fleet", "apply", str(file)).code == 0
    assert told[0] == "part"
    assert told[-1] == "applying"
    assert told.count("applying") == told.count("all") == 1
