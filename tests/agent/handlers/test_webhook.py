import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.handlers.sink import Sink, certificate, sink
from tests.agent.handlers.work import done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import Outcome, facts, tables
from forenotice.agent.handlers.webhook import Webhook
from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event

SECRET = "hunter2"


@pytest.fixture
def server() -> Iterator[Sink]:
    with sink() as made:
        yield made


def webhook(url: str, **keys: Any) -> Webhook:
    return Webhook(tables.Webhook(name="hook", url=url, **keys), RUNTIME)


def test_without_a_template_all_facts_are_sent_as_json(server: Sink) -> None:
    outcome = webhook(f"{server.at}/drain?to=other").run(work(attempt=2))
    assert outcome == done(f"{server.at} answered 204 No Content")
    [heard] = server.heard
    assert (heard.method, heard.target) == ("POST", "/drain?to=other")
    assert heard.headers["Content-Type"] == "application/json"
    assert heard.headers["User-Agent"].startswith("forenotice/")
    assert json.loads(heard.body) == json.loads(facts.encoded(work(attempt=2)))


def test_a_template_in_json_stays_json_whatever_the_description_says(server: Sink) -> None:
    event = Event(id="A", status="Scheduled", type="Freeze", description='a "quoted" back\\slash\nand é')
    text = "$EVENT_TYPE of ${FORENOTICE_NAME}: $EVENT_DESCRIPTION"
    body = f'{{"text": "{text}", "cost": "$$5", "left": $FORENOTICE_SECONDS_LEFT}}'
    assert webhook(server.at, body=body).run(work(event=event, phase=Phase.RECOVER)).ok
    assert json.loads(server.heard[0].body) == {
        "text": 'Freeze of web-1: a "quoted" back\\slash and é',
        "cost": "$5",
        "left": 10,
    }
    assert server.heard[0].target == "/"


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("text/plain", b'm=a&b "c"'),
        ("application/x-www-form-urlencoded; charset=utf-8", b"m=a%26b+%22c%22"),
        ("application/vnd.api+json", b'm=a&b \\"c\\"'),
    ],
)
def test_values_are_written_as_the_content_type_needs_them(server: Sink, kind: str, sent: bytes) -> None:
    event = Event(id="A", status="Scheduled", type="Freeze", description='a&b "c"')
    hook = webhook(server.at, body="m=$EVENT_DESCRIPTION", headers={"content-type": kind})
    assert hook.run(work(event=event)).ok
    assert server.heard[0].body == sent
    assert server.heard[0].headers.get_all("Content-Type") == [kind]


def test_get_has_no_body_unless_one_is_given(server: Sink) -> None:
    assert webhook(f"{server.at}/x", method="GET").run(work()).ok
    assert webhook(f"{server.at}/x", method="PUT", body="$EVENT_ID").run(work()).ok
    assert [(heard.method, heard.body) for heard in server.heard] == [
        ("GET", b""),
        ("PUT", b"C7061BAC-AFDC-4513-B24B-AA5F13A16123"),
    ]


def test_secrets_come_from_files_and_are_read_anew_each_time(server: Sink, tmp_path: Path) -> None:
    token = tmp_path / "token"
    hook = webhook(server.at, headers={"X-Team": "web"}, header_files={"Authorization": str(token)})
    for value in ("Bearer one", "Bearer two"):
        token.touch(0o600)
        token.write_text(f"{value}\n")
        assert hook.run(work()).ok
    assert [heard.headers["Authorization"] for heard in server.heard] == ["Bearer one", "Bearer two"]
    assert server.heard[0].headers["X-Team"] == "web"


@pytest.mark.parametrize("content", ["", "two\nlines", "\x1b", "é", "x" * 70_000])
def test_a_file_that_holds_no_header_is_told_without_its_content(server: Sink, tmp_path: Path, content: str) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(content)
    expected = failed(f"X-Key in header_files: {token} must hold one line of plain ASCII")
    hook = webhook(server.at, header_files={"X-Key": str(token)})
    assert hook.run(work()) == expected
    assert hook.rehearse() == expected
    assert server.heard == []


def test_a_file_that_is_missing_is_told(server: Sink, tmp_path: Path) -> None:
    hook = webhook(server.at, header_files={"X-Key": f"{tmp_path}/none"})
    assert hook.run(work()) == Outcome(
        ok=False,
        message=f"X-Key in header_files: {tmp_path}/none cannot be read: no such file or directory",
    )


def test_user_and_password_are_sent_and_never_told(server: Sink) -> None:
    url = f"http://user:{SECRET}%21@localhost:{server.port}/{SECRET}?key={SECRET}"
    hook = webhook(url)
    said = [hook.run(work()).message, hook.rehearse().message]
    server.status = 500
    said.append(hook.run(work()).message)
    pair = base64.b64encode(f"user:{SECRET}!".encode()).decode()
    assert [heard.headers["Authorization"] for heard in server.heard] == [f"Basic {pair}"] * 2
    said.append(webhook(url.replace(str(server.port), "1")).run(work()).message)
    said.append(webhook(url.replace(str(server.port), "1")).rehearse().message)
    assert not [text for text in said if SECRET in text]
    assert said[-2:] == [
        "no answer from http://localhost:1: connection refused",
        "cannot connect to http://localhost:1: connection refused",
    ]


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
def test_whatever_is_not_2xx_is_a_failure(server: Sink, status: int) -> None:
    server.status, server.reason = status, "No\x1b Way" + "!" * 500
    outcome = webhook(server.at).run(work())
    assert outcome == failed(f"{server.at} answered {status} No  Way{'!' * 93}")


def test_redirects_are_not_followed(server: Sink) -> None:
    server.status, server.headers = 302, {"Location": f"{server.at}/elsewhere"}
    outcome = webhook(server.at).run(work())
    assert outcome == Outcome(
        ok=False,
        message=f"{server.at} answered 302 Found; redirects are not followed, so give the URL it leads to",
    )
    assert len(server.heard) == 1


def test_an_answer_that_does_not_come_is_not_waited_for(server: Sink) -> None:
    server.answering.clear()
    begun = time.monotonic()
    outcome = webhook(server.at).run(work(seconds_left=0.3))
    assert outcome == failed(f"no answer from {server.at}: timed out")
    assert time.monotonic() - begun < 20


def test_it_is_stopped_when_the_agent_asks(server: Sink) -> None:
    server.answering.clear()
    given = work(seconds_left=60)
    threading.Timer(0.1, given.stop.set).start()
    begun = time.monotonic()
    assert webhook(server.at).run(given) == failed("stopped, as the agent asked")
    assert time.monotonic() - begun < 20


def test_work_that_comes_too_late_is_not_begun(server: Sink) -> None:
    assert not webhook(server.at).run(work(seconds_left=-1)).ok
    assert server.heard == []


def test_https_is_checked_by_default(tmp_path: Path) -> None:
    own = certificate(tmp_path)
    with sink(own) as server:
        refused = webhook(server.at).run(work())
        assert not refused.ok
        assert "certificate verify failed" in refused.message
        assert "certificate verify failed" in webhook(server.at).rehearse().message
        assert server.heard == []

        trusting = webhook(f"{server.at}/x", ca_file=str(own.file))
        assert trusting.rehearse().ok
        assert server.heard == []
        assert trusting.run(work()) == done(f"{server.at} answered 204 No Content")

        elsewhere = webhook(f"https://127.0.0.1:{server.port}", ca_file=str(own.file)).run(work())
        assert not elsewhere.ok
        assert len(server.heard) == 1

    missing = webhook("https://localhost:1", ca_file=f"{tmp_path}/none")
    said = f"ca_file {tmp_path}/none cannot be used: no such file or directory"
    assert missing.run(work()) == missing.rehearse() == failed(said)


def test_a_rehearsal_connects_and_sends_nothing(server: Sink) -> None:
    hook = webhook(f"{server.at}/x", body="$EVENT_ID")
    assert hook.rehearse() == done(f"would send POST to {server.at}, which can be reached")
    assert server.heard == []


def test_a_rehearsal_tells_that_a_host_has_no_address() -> None:
    outcome = webhook("http://no-such-host.invalid/x").rehearse()
    assert not outcome.ok
    assert outcome.message.startswith("cannot connect to http://no-such-host.invalid: ")


def test_tls_is_loaded_only_by_those_who_need_it() -> None:
    program = """
import sys
from forenotice.agent.handlers import tables
from forenotice.agent import workers
from forenotice.runtime import Runtime
workers.make(tables.Webhook(name="hook", url="http://localhost:1/"), Runtime()).rehearse()
heavy = {"ssl", "http.client", "http.server", "urllib.request", "asyncio", "email", "shutil", "click", "rich"}
print(sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
