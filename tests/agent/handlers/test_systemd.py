"""The real systemctl, against a fake of systemd on a bus of its own (see bus.py): no systemd runs where tests do."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.running import until
from tests.agent.handlers.bus import Systemd as FakeSystemd
from tests.agent.handlers.bus import fake_systemd
from tests.agent.handlers.work import done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import Outcome, tables
from forenotice.agent.handlers.systemd import Systemd
from forenotice.agent.rules.policy import Phase

UNITS = ("nginx.service", "db.service", "batch.timer")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSystemd]:
    states = {"nginx.service": "active", "db.service": "inactive", "batch.timer": "active"}
    with fake_systemd(tmp_path, states, monkeypatch) as served:
        yield served


def handler(*units: str) -> Systemd:
    return Systemd(tables.Systemd(name="units", units=units or UNITS), RUNTIME, grace=0.3)


def test_what_was_active_is_remembered_first_then_stopped_then_started_again(systemd: FakeSystemd) -> None:
    memos: list[tuple[str, int]] = []
    outcome = handler().run(work(remember=lambda memo: memos.append((memo, len(systemd.told)))))
    assert outcome == done("stopped nginx.service, batch.timer")
    assert memos == [('["nginx.service","batch.timer"]', 0)]
    assert systemd.told == [("stop", "nginx.service"), ("stop", "batch.timer")]
    assert set(systemd.active.values()) == {"inactive"}

    outcome = handler().run(work(phase=Phase.RECOVER, memo=memos[0][0]))
    assert outcome == done("started nginx.service, batch.timer")
    assert systemd.active == {"nginx.service": "active", "db.service": "inactive", "batch.timer": "active"}


def test_a_second_attempt_keeps_what_the_first_found(systemd: FakeSystemd) -> None:
    systemd.active["nginx.service"] = "inactive"
    memos: list[str] = []
    assert handler().run(work(attempt=2, memo='["nginx.service"]', remember=memos.append)).ok
    assert memos == ['["nginx.service"]']
    assert systemd.told == [("stop", "nginx.service")]


def test_nothing_is_stopped_that_cannot_be_remembered(systemd: FakeSystemd) -> None:
    def fail(_: str) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        handler().run(work(remember=fail))
    assert systemd.told == []


def test_where_nothing_ran_nothing_is_done(systemd: FakeSystemd) -> None:
    memos: list[str] = []
    nothing = done("none of the units was active")
    assert handler("db.service").run(work(remember=memos.append)) == nothing
    assert handler("db.service").run(work(phase=Phase.UNDO, memo=memos[0])) == nothing
    assert systemd.told == []


@pytest.mark.parametrize("memo", ["", "no longer readable"])
def test_without_a_memo_all_units_are_started(systemd: FakeSystemd, memo: str) -> None:
    assert handler().run(work(phase=Phase.RECOVER, memo=memo)).ok
    assert systemd.told == [("start", unit) for unit in UNITS]


def test_a_pattern_stands_for_the_units_that_it_matches(systemd: FakeSystemd) -> None:
    systemd.active.update({"worker@1.service": "active", "worker@2.service": "inactive"})
    assert handler("worker@*").run(work()) == done("stopped worker@1.service")


def test_a_unit_that_looks_like_an_option_is_none(systemd: FakeSystemd) -> None:
    outcome = handler("--force").run(work(phase=Phase.RECOVER))
    assert outcome == Outcome(
        ok=False,
        message="systemctl start: exit code 5: Failed to start --force.service: Unit --force.service not found.",
    )

    outcome = handler("--force").rehearse()
    assert outcome == failed("systemd has not loaded --force.service (not-found)")


def test_a_job_that_fails_is_a_failure(systemd: FakeSystemd) -> None:
    systemd.refused.add("nginx.service")
    outcome = handler().run(work())
    assert not outcome.ok
    assert outcome.message.startswith("systemctl stop: exit code 1: Job for nginx.service failed")


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_that_does_not_end_is_not_waited_for_too_long(systemd: FakeSystemd, asked: bool) -> None:
    systemd.hanging.add("nginx.service")
    given = work(seconds_left=60 if asked else 1.5)

    def ask() -> None:
        until(lambda: systemd.told)
        given.stop.set()

    if asked:
        threading.Thread(target=ask).start()
    begun = time.monotonic()
    outcome = handler().run(given)
    assert time.monotonic() - begun < 30
    assert not outcome.ok
    assert outcome.message.startswith("systemctl stop: stopped after ")


def test_a_rehearsal_tells_what_would_be_stopped_and_stops_nothing(systemd: FakeSystemd) -> None:
    outcome = handler().rehearse()
    assert outcome.ok
    assert "would stop nginx.service (active), db.service (inactive), batch.timer (active)" in outcome.message
    assert systemd.told == []


def test_a_rehearsal_tells_which_units_are_missing(systemd: FakeSystemd) -> None:
    assert handler("nginx", "ngnix").rehearse() == failed("systemd has not loaded ngnix.service (not-found)")
    assert handler("none@*").rehearse() == failed("systemd knows no unit none@*")


def test_without_systemd_it_fails_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    monkeypatch.setenv("SYSTEMCTL_FORCE_BUS", "1")
    outcome = handler().run(work())
    assert not outcome.ok
    assert outcome.message.startswith("systemctl show: exit code 1: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = failed("there is no program systemctl")
    assert handler().rehearse() == missing
    assert handler().run(work()) == missing
