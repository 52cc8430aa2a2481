"""`--wait`: how it ends, what it reports meanwhile, and what it leaves alone."""

import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.cli.conftest import FLEET, Run
from tests.cli.samples import encoded, maintenance, sample
from tests.cli.stranger import answer, stranger
from tests.control.running import Control, running

from forenotice import settings
from forenotice.cli import wait
from forenotice.cli.api import Api
from forenotice.cli.commands import Operator
from forenotice.cli.output import Bar
from forenotice.cli.rollouts import AwaitedRollout
from forenotice.cli.wait import AwaitedOperation, UnfinishedError
from forenotice.core.operations import Status
from forenotice.core.rollouts import GateResult
from forenotice.service.rollouts import advance
from forenotice.service.tick import TickLoop
from forenotice.views import rollouts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPERATION = sample(maintenance.Operation)
AWAY = answer("503 Away", b'{"error": {"code": "unavailable", "message": "the disk is full", "facts": {}}}')


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """Time passes 3000 times as fast."""
    with running(tmp_path_factory.mktemp("waiting"), speed=3000) as found:
        found.post_fleet(FLEET)
        found.ask("PATCH", "/v1/vms/db/policy", {"listening": "always"})
        found.service.expiry_from = found.service.clock.now()
        ticking = TickLoop(found.service)
        ticking.start()
        yield found
        ticking.stop()


@pytest.fixture
def here(control: Control, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("FORENOTICE_CONTROL", control.url)
    monkeypatch.setenv("FORENOTICE_TOKEN", control.token)
    monkeypatch.setattr(wait, "EVERY", 0.02)
    return run


def cancel(control: Control, vm: str) -> None:
    event: Any = until(lambda: next(iter(control.get(f"/v1/events?live=true&vm={vm}")["items"]), None))
    control.post(f"/v1/events/{event['id']}/cancel")


def test_to_the_end(here: Run) -> None:
    here("vm", "add", "doomed", "--host", "host-a")
    ran = here("vm", "delete", "doomed", "--wait-limit", "60s", failing=0)
    assert ran.out.splitlines()[-1] == "Deletion of doomed is Completed."
    assert "\x1b" not in ran.err


def test_a_cancelled_operation_has_failed_and_by_whom(here: Run, control: Control) -> None:
    other = threading.Thread(target=cancel, args=(control, "db"))
    other.start()
    ran = here("vm", "restart", "db", "--notice", "2d", "--wait", "--json", failing=1)
    other.join()
    assert ran.json["operations"][0]["status"] == "Canceled"
    assert ran.err.splitlines()[-1] == "forenotice: Restart of db is Canceled: by operator:admin"


def test_the_limit_ends_the_wait_and_nothing_else(here: Run, control: Control) -> None:
    ran = here("host", "update", "host-b", "--notice", "2d", "--wait-limit", "0.1s", "--json", failing=1)
    assert ran.json["operations"][0]["status"] == "Scheduled"
    ended = "the time of --wait-limit is over, but the maintenance continues: Host-update of host-b is still Scheduled."
    assert f"{ended} It waits for approval by " in ran.err.splitlines()[-1]
    assert control.get("/v1/events?live=true&vm=db")["items"][0]["status"] == "Scheduled"
    cancel(control, "db")
    assert here("vm", "redeploy", "db", "--wait-limit", "soon").code == 2
    assert control.get("/v1/events?live=true&vm=db")["items"] == []


def test_control_c_leaves_it_as_it_is(here: Run, control: Control) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "forenotice", "vm", "restart", "db", "--notice", "2d", "--wait", "--json"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "It waits for approval by db" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    shown, reported = process.communicate(timeout=60)
    assert json.loads(shown)["operations"][0]["status"] == "Scheduled"
    assert reported == "No longer waiting; the maintenance continues. `forenotice watch` shows it.\n"
    assert process.returncode == 130
    cancel(control, "db")


def follow(url: str, seconds: float = math.inf) -> None:
    flags = {"control_url": url, "token": "t"}
    awaited = AwaitedOperation(Api(settings.load_operator(flags, {})), OPERATION)
    wait.follow(Operator(flags, json=True), [awaited], seconds, lambda: awaited.view)


def test_a_server_that_is_away_for_a_while_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.01)
    waits = answer("200 OK", encoded(maintenance.OperationExplanation))
    ended = answer("200 OK", encoded(maintenance.Operation, ended_at=NOW, status=Status.COMPLETED))
    scheduled = answer("200 OK", encoded(maintenance.Operation))
    with stranger(scheduled, waits, scheduled, AWAY, AWAY, scheduled, waits, ended) as server:
        follow(server.url)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["status"] == "Completed"
    assert printed.err.count("the disk is full. Trying again.\n") == 1
    assert printed.err.count(" is Scheduled. ") == 1
    with pytest.raises(UnfinishedError, match="--wait-limit is over"):
        follow(server.url, 0)
    assert capsys.readouterr().err.count("is `forenotice serve` running? Trying again.\n") == 1


def test_a_status_is_not_reported_with_the_reason_of_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.01)
    scheduled, started, ended = (
        answer("200 OK", encoded(maintenance.Operation, status=status, ended_at=NOW if over else None))
        for status, over in ((Status.SCHEDULED, False), (Status.STARTED, False), (Status.COMPLETED, True))
    )
    drives = answer("200 OK", encoded(maintenance.OperationExplanation, sentence="It started.", waiting_for=[]))
    with stranger(scheduled, drives, started, started, drives, started, ended) as server:
        follow(server.url)
    assert [line.partition(" is ")[2] for line in capsys.readouterr().err.splitlines()] == ["Started. It started."]


class Lines(Bar):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_a_gate_that_stays_red_is_reported_once(cli: Run, module_control: Control) -> None:
    service, reported = module_control.service, Lines()
    module_control.post_fleet(FLEET)
    asked = ("--hosts", "host-a", "--kind", "update", "--gate", "https://shop.example.com/")
    rollout = cli("rollout", "start", *asked, "--json").json["id"]
    api = Operator({}, json=True).api
    awaited = AwaitedRollout(api, api.get(rollouts.Rollout, "rollouts", rollout))
    [check] = advance(service, {})
    for status in ("took 5001 ms", "took 5000 ms", "refused"):
        advance(service, {check: GateResult(green=False, status=status, at=service.clock.now())})
        assert not awaited.look(reported)
    assert [line.rpartition("red: ")[2] for line in reported.lines] == ["took 5001 ms.", "refused."]
    calls = [{"kind": "driver", "vms": ["a"], "calls_waiting": waiting} for waiting in (1, 2)]
    assert wait.gist([calls[0]]) == wait.gist([calls[1]]) == [{"kind": "driver", "vms": ["a"]}]


class Counted(AwaitedOperation):
    """Is over when it is looked at the second time."""

    looks = 0

    def look(self, bar: Bar) -> bool:
        self.looks += 1
        ORDER.append(self)
        return self.looks == 2


ORDER: list[AwaitedOperation] = []


def test_many_are_requested_in_turn(
    cli: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.0)
    operator = Operator({}, json=False)
    completed = sample(maintenance.Operation, status=Status.COMPLETED)
    many = [Counted(operator.api, completed) for _ in range(25)]
    wait.follow(operator, many, math.inf, lambda: None)
    assert (ORDER[:25], len(ORDER)) == (many, 50)
    assert capsys.readouterr().out.count(" is Completed.\n") == 25
    failed = Counted(operator.api, sample(maintenance.Operation, status=Status.FAILED))
    with pytest.raises(UnfinishedError, match=r" is Failed$"):
        wait.follow(operator, [failed], math.inf, lambda: None)
