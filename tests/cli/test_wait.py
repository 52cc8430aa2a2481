"""`--wait`: how it ends, what it says meanwhile, and what it leaves alone."""

import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.acceptance.running import Server, serving, until
from tests.cli.conftest import alone
from tests.cli.samples import encoded, maintenance, sample
from tests.cli.stranger import answer, stranger

from forenotice import settings
from forenotice.cli import wait
from forenotice.cli.api import Api
from forenotice.cli.main import main
from forenotice.cli.wait import Awaited, State, UnfinishedError
from forenotice.core import errors
from forenotice.core.operations import Status

__all__ = ["alone"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPERATION = sample(maintenance.Operation)
FLEET = {
    "hosts": {"host-a": {}, "host-b": {}},
    "groups": {"web": {"kind": "availability-set", "policy": {"listening": "always"}}},
    "vms": {
        "web-0": {"host": "host-a", "group": "web"},
        "web-1": {"host": "host-b", "group": "web", "update_domain": 1},
        "db": {"host": "host-b", "policy": {"listening": "always"}},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("waiting"), "--speed", "3000") as found:
        found.post("/v1/fleet", FLEET)
        yield found


@pytest.fixture
def here(server: Server, alone: None, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("FORENOTICE_CONTROL", f"http://{server.operators}")
    monkeypatch.setenv("FORENOTICE_TOKEN", server.token)
    monkeypatch.setattr(wait, "EVERY", 0.05)
    return server


def live(server: Server, vm: str) -> Any:
    return until(lambda: next(iter(server.get(f"/v1/events?live=true&vm={vm}")["items"]), None))


def test_to_the_end_with_a_word_on_why(here: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vm", "restart", "web-0", "--notice", "20", "--wait"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "Restart of web-0 is Completed."
    assert said.err.startswith("Restart of web-0 is Scheduled. It waits for approval by web (web-0), until ")
    assert "\x1b" not in said.err


def test_what_was_cancelled_has_failed_and_by_whom(here: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def cancel() -> None:
        here.post(f"/v1/events/{live(here, 'db')['id']}/cancel")

    other = threading.Thread(target=cancel)
    other.start()
    assert main(["vm", "restart", "db", "--notice", "2d", "--wait", "--json"]) == 1
    other.join()
    said = capsys.readouterr()
    [operation] = json.loads(said.out)["operations"]
    assert operation["status"] == "Canceled"
    assert said.err.splitlines()[-1] == "forenotice: Restart of db is Canceled: by operator:admin"


def test_what_was_seen_last_is_printed_also_when_the_time_is_over(
    here: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vm", "restart", "db", "--notice", "2d", "--wait-limit", "0.1s", "--json"]) == 1
    [operation] = json.loads(capsys.readouterr().out)["operations"]
    assert operation["status"] == "Scheduled"
    assert main(["operation", "cancel", operation["id"]]) == 0


def test_who_never_answers_leaves_what_was_asked_for() -> None:
    def look() -> State:
        raise errors.UnavailableError("gone")

    last: list[Any] = []
    with pytest.raises(UnfinishedError, match=r"--wait-limit is over, but the maintenance continues$"):
        wait.until_over([Awaited(OPERATION, look)], 0, last.extend)
    assert last == [OPERATION]


def test_no_longer_than_it_may(here: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "update", "host-b", "--notice", "2d", "--wait-limit", "1s"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "the time of --wait-limit is over" in said
    assert "Host-update of host-b is still Scheduled. It waits for approval by " in said
    event = live(here, "db")
    assert event["status"] == "Scheduled"
    here.post(f"/v1/events/{event['id']}/cancel")


def test_a_limit_that_is_none_is_refused_before_anything_is_done(
    here: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vm", "redeploy", "db", "--wait-limit", "soon"]) == 2
    assert "'soon' is not a duration" in capsys.readouterr().err
    assert here.get("/v1/events?live=true&vm=db")["items"] == []


def test_control_c_leaves_it_as_it_is(here: Server) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "forenotice", "vm", "restart", "db", "--notice", "2d", "--wait", "--json"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "It waits for approval by db" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    shown, said = process.communicate(timeout=60)
    assert json.loads(shown)["operations"][0]["status"] == "Scheduled"
    assert said == "No longer waiting; the maintenance continues. `forenotice watch` shows it.\n"
    assert process.returncode == 130
    here.post(f"/v1/events/{live(here, 'db')['id']}/cancel")


def seen(status: str, *, over: bool = False, good: bool = True) -> State:
    return State(view=OPERATION, what="It", status=status, over=over, good=good)


def test_a_server_that_is_away_for_a_while_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.01)
    answers: list[State | None] = [seen("Scheduled"), None, None, seen("Scheduled"), seen("Completed", over=True)]

    def look() -> State:
        answer = answers.pop(0)
        if answer is None:
            raise errors.UnavailableError("cannot reach it: is it running?")
        return answer

    [ended] = wait.until_over([Awaited(OPERATION, look)], math.inf)
    assert ended.over
    said = capsys.readouterr().err
    assert said.count(": is it running? Trying again.") == 1
    assert said.count("It is Scheduled.") == 1


def test_a_server_that_cannot_look_just_now_is_asked_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.01)
    ended = encoded(maintenance.Operation, ended_at=NOW, status=Status.COMPLETED)
    trouble = b'{"error": {"code": "unavailable", "message": "the disk is full", "facts": {}}}'
    with stranger(answer("503 Away", trouble), answer("200 OK", ended)) as server:
        api = Api(settings.load_operator({"control_url": server.url, "token": "t"}, {}))
        [seen] = wait.until_over([wait.operation(api, OPERATION)], math.inf)
    assert seen.good
    assert "the disk is full. Trying again." in capsys.readouterr().err


class Explained(Api):
    """One that answers with explanations of its own."""

    def __init__(self, *answers: maintenance.Explanation) -> None:
        self.answers = list(answers)

    def get(self, kind: type[Any], /, *path: str, **query: object) -> Any:
        return self.answers.pop(0)


def red(at: int, status: str, calls: int) -> maintenance.Explanation:
    facts: list[dict[str, Any]] = [
        {"kind": "gate", "status": status, "since": "s"},
        {"kind": "operation", "waiting_for": [{"calls_waiting": calls}]},
    ]
    sentence = f"at {at} it was red: {status}"
    return maintenance.Explanation(sentence=sentence, sentences=[], since=None, until=None, waiting_for=facts)


def test_a_gate_that_stays_red_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.0)
    over = maintenance.Explanation(sentence="", sentences=[], since=None, until=None, waiting_for=[])
    api = Explained(red(1, "took 5001 ms", 1), red(2, "took 5000 ms", 2), red(3, "refused", 2), over)

    def look() -> State:
        why, gist = wait.reason(api, "rollouts", "R")
        return State(view=OPERATION, what="It", status="Running", why=why, gist=gist, over=not why)

    wait.until_over([Awaited(OPERATION, look)], math.inf)
    assert capsys.readouterr().err.splitlines() == [
        "It is Running. at 1 it was red: took 5001 ms",
        "It is Running. at 3 it was red: refused",
    ]


def test_many_are_asked_about_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "EVERY", 0.0)
    asked: list[int] = []

    def look(number: int) -> State:
        asked.append(number)
        return seen("Failed", over=asked.count(number) == 2, good=number != 7)

    ended = wait.until_over([Awaited(OPERATION, partial(look, number)) for number in range(25)], math.inf)
    assert asked[:25] == list(range(25))
    assert len(ended) == 25
    with pytest.raises(UnfinishedError, match=r"^It is Failed$"):
        wait.require_success(ended)
