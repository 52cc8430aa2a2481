"""Gates: green by exit code 0 or a 2xx, red with a reason in every other case."""

import sys
import threading
from pathlib import Path

import pytest
from tests.agent.handlers.sink import sink
from tests.cli.stranger import answer, stranger

from forenotice.core import errors
from forenotice.programs import process
from forenotice.service import gates
from forenotice.service.gates import Gates, GateStatus
from forenotice.ssrf import EVERYWHERE, OutgoingClient

FACTS = {"rollout": "r-1", "wave": "3"}


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def commands(**code: str) -> Gates:
    return Gates({name: python(text) for name, text in code.items()}, OutgoingClient(private=EVERYWHERE, seconds=5))


def test_a_command_is_green_when_it_succeeds() -> None:
    known = commands(quiet="pass", chatty="print('all is well')")
    assert known.check("quiet", FACTS) == GateStatus(green=True, said="exit code 0")
    assert known.check("chatty", FACTS) == GateStatus(green=True, said="exit code 0", line="all is well")


def test_a_command_is_red_with_the_end_of_what_it_said() -> None:
    known = commands(red="import sys; print('x' * 100_000); print('lag \\x1b[31m9 s'); sys.exit(3)")
    verdict = known.check("red", FACTS)
    assert not verdict.green
    assert (verdict.said, verdict.line) == ("exit code 3", "lag 9 s")
    long = commands(red="import sys; sys.exit('x' * 100_000)").check("red", FACTS)
    assert len(long.line) < gates.KEPT + 50


def test_a_command_is_told_the_rollout_and_not_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENOTICE_DATABASE", "postgresql://me:secret@db/n")
    monkeypatch.setenv("PLACE", "here")
    told = commands(env="import os; print(*sorted(os.environ))")
    names = set(told.check("env", FACTS).line.split())
    assert {"FORENOTICE_ROLLOUT", "FORENOTICE_WAVE"} <= names
    assert names <= {"FORENOTICE_ROLLOUT", "FORENOTICE_WAVE", *process.INHERITED, "LC_CTYPE"}


def test_a_command_has_only_so_much_time() -> None:
    slow = {"slow": python("import time; time.sleep(60)")}
    verdict = Gates(slow, OutgoingClient(), seconds=0.2).check("slow", FACTS)
    assert not verdict.green
    assert verdict.said == "stopped after 0 s, when its time was up"


def test_a_command_ends_with_the_service() -> None:
    known, said = commands(slow="import time; time.sleep(60)"), list[GateStatus]()
    asking = threading.Thread(target=lambda: said.append(known.check("slow", FACTS)))
    asking.start()
    known.close()
    asking.join(60)
    assert [verdict.green for verdict in said] == [False]
    assert "as the service asked" in said[0].said


def test_a_url_is_waited_for_no_longer_than_the_service_runs() -> None:
    known, said = commands(), list[GateStatus]()
    with sink() as receiver:
        receiver.answering.clear()
        asking = threading.Thread(target=lambda: said.append(known.check(receiver.at, FACTS)))
        asking.start()
        while not receiver.heard:
            asking.join(0.005)
        known.close()
        asking.join(2)
    assert [verdict.green for verdict in said] == [False]


def test_a_command_that_has_gone_is_red(tmp_path: Path) -> None:
    script = tmp_path / "check"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o700)
    known = Gates({"shop": (str(script),)}, OutgoingClient())
    assert known.check("shop", {}).green
    script.unlink()
    assert known.check("shop", {}) == GateStatus(green=False, said=f"there is no program {script}")


def test_a_command_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(errors.RefusedError, match="gate shop: there is no program /no/such/thing"):
        Gates({"shop": ("/no/such/thing",)}, OutgoingClient())


def test_only_known_names_and_permitted_urls_will_do() -> None:
    known = commands(b="pass", a="pass")
    known.require("a")
    known.require("http://127.0.0.1:1/health")
    with pytest.raises(errors.RefusedError, match="there is no gate 'c': known are a, b; give a URL"):
        known.require("c")
    with pytest.raises(
        errors.RefusedError, match="there is no gate '/bin/true': there are none; give a URL, or define"
    ):
        Gates({}, OutgoingClient()).require("/bin/true")
    with pytest.raises(errors.RefusedError, match="allow_private_targets"):
        Gates({}, OutgoingClient()).require("https://127.0.0.1/health")
    with pytest.raises(errors.RefusedError, match="this gate will not do: that is not a URL of http or https"):
        known.require("ftp://127.0.0.1/health")
    assert known.check("c", FACTS).said.startswith("there is no gate 'c'")


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        ("200 OK", b"", GateStatus(green=True, said="200")),
        ("206 Some", b"most\nof it", GateStatus(green=True, said="206", line="most")),
        (
            "302 Found",
            b"",
            GateStatus(green=False, said="302; redirects are not followed, so give the URL it leads to"),
        ),
        ("503 Not Now", b"replication lags \xff", GateStatus(green=False, said="503", line="replication lags \ufffd")),
    ],
)
def test_a_url_is_green_by_a_2xx(status: str, body: bytes, verdict: GateStatus) -> None:
    with stranger(answer(status, body)) as server:
        assert commands().check(server.url, FACTS) == verdict


def test_a_url_is_told_the_rollout() -> None:
    with sink() as receiver:
        assert commands().check(f"{receiver.at}/health?of=shop", FACTS).green
    (heard,) = receiver.heard
    assert (heard.method, heard.target) == ("GET", "/health?of=shop")
    assert (heard.headers["Forenotice-Rollout"], heard.headers["Forenotice-Wave"]) == ("r-1", "3")


def test_a_url_that_does_not_answer_is_red() -> None:
    verdict = commands().check("http://127.0.0.1:9/health", FACTS)
    assert not verdict.green
    assert verdict.said.startswith("no response from http://127.0.0.1:9: ")
