"""Gates: green by exit code 0 or a 2xx, red with a reason in every other case."""

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.agent.handlers.sink import sink
from tests.cli.stranger import answer, stranger

from forenotice.core import errors
from forenotice.programs import process
from forenotice.service import gates
from forenotice.service.gates import Gates
from forenotice.ssrf import EVERYWHERE, OutgoingClient

FACTS = {"rollout": "r-1", "wave": "3"}
NOW = datetime(2026, 1, 5, tzinfo=UTC)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def commands(seconds: float = 30, **code: str) -> Gates:
    outgoing = OutgoingClient(private=EVERYWHERE, seconds=5)
    return Gates({name: python(text) for name, text in code.items()}, outgoing, seconds=seconds)


def checked(known: Gates, gate: str) -> tuple[bool, str, str]:
    found = known.check(gate, FACTS, NOW)
    return found.green, found.status, found.output


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("pass", (True, "exit code 0", "")),
        ("print('all is well')", (True, "exit code 0", "all is well")),
        ("print('x' * 100_000); print('lag \\x1b[31m9 s'); exit(3)", (False, "exit code 3", "lag 9 s")),
    ],
)
def test_a_command_is_green_by_its_exit_code(code: str, result: tuple[bool, str, str]) -> None:
    assert checked(commands(gate=code), "gate") == result


def test_a_command_has_only_so_much_time_and_room_for_output() -> None:
    assert len(checked(commands(red="import sys; sys.exit('x' * 100_000)"), "red")[2]) < gates.KEPT + 50
    green, status, _ = checked(commands(seconds=0.2, slow="import time; time.sleep(60)"), "slow")
    assert (green, "time was up" in status) == (False, True)


def test_a_command_is_told_the_rollout_and_not_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENOTICE_DATABASE", "postgresql://me:secret@db/n")
    monkeypatch.setenv("PLACE", "here")
    names = set(checked(commands(env="import os; print(*sorted(os.environ))"), "env")[2].split())
    assert {"FORENOTICE_ROLLOUT", "FORENOTICE_WAVE"} <= names
    assert names <= {"FORENOTICE_ROLLOUT", "FORENOTICE_WAVE", *process.INHERITED, "LC_CTYPE"}


def test_no_gate_is_waited_for_longer_than_the_service_runs() -> None:
    known, green = commands(slow="import time; time.sleep(60)"), list[bool]()
    with sink() as receiver:
        receiver.answering.clear()
        asking = [
            threading.Thread(target=lambda gate=gate: green.append(checked(known, gate)[0]))
            for gate in ("slow", receiver.at)
        ]
        for thread in asking:
            thread.start()
        while not receiver.heard:
            asking[1].join(0.005)
        known.close()
        for thread in asking:
            thread.join(30)
    assert green == [False, False]


def test_a_command_that_has_gone_is_red_and_one_that_was_never_there_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "check"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o700)
    known = Gates({"shop": (str(script),)}, OutgoingClient())
    assert checked(known, "shop")[0]
    script.unlink()
    assert checked(known, "shop") == (False, f"there is no program {script}", "")
    with pytest.raises(errors.RefusedError, match=f"gate shop: there is no program {script}"):
        Gates({"shop": (str(script),)}, OutgoingClient())


def test_only_known_names_and_permitted_urls_are_accepted() -> None:
    known, none = commands(b="pass", a="pass"), Gates({}, OutgoingClient())
    known.require("a")
    known.require("http://127.0.0.1:1/health")
    for where, gate, said in (
        (known, "c", "there is no gate 'c': known are a, b"),
        (none, "/bin/true", "there is no gate '/bin/true': there are none"),
        (none, "https://127.0.0.1/health", "allow_private_targets"),
        (known, "ftp://127.0.0.1/health", "not an http or https URL"),
    ):
        with pytest.raises(errors.RefusedError, match=said):
            where.require(gate)
        assert not checked(where, gate)[0]


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        ("200 OK", b"", (True, "200", "")),
        ("206 Some", b"most\nof it", (True, "206", "most")),
        ("302 Found", b"", (False, "302; redirects are not followed, so give the URL it leads to", "")),
        ("503 Not Now", b"replication lags \xff", (False, "503", "replication lags \ufffd")),
    ],
)
def test_a_url_is_green_by_a_2xx(status: str, body: bytes, result: tuple[bool, str, str]) -> None:
    with stranger(answer(status, body)) as server:
        assert checked(commands(), server.url) == result


def test_a_url_is_told_the_rollout_and_is_red_without_a_response() -> None:
    with sink() as receiver:
        assert checked(commands(), f"{receiver.at}/health?of=shop")[0]
    (heard,) = receiver.heard
    assert (heard.method, heard.target) == ("GET", "/health?of=shop")
    assert (heard.headers["Forenotice-Rollout"], heard.headers["Forenotice-Wave"]) == ("r-1", "3")
    green, status, _ = checked(commands(), f"{receiver.at}/health")
    assert (green, status.startswith("no response from")) == (False, True)
