import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.handlers.sink import Sink, certificate, sink
from tests.agent.handlers.work import EVENT, Tried, done, failed, work
from tests.agent.parts import RUNTIME, secret_file

from forenotice.agent.handlers import facts, tables
from forenotice.agent.handlers.webhook import Webhook
from forenotice.agent.rules.policy import Phase

SECRET = "hunter2"


@pytest.fixture
def server() -> Iterator[Sink]:
    with sink() as made:
        yield made


def webhook(url: str, **keys: Any) -> Tried:
    return Tried(Webhook(tables.Webhook(name="hook", url=url, **keys), RUNTIME))


def test_without_a_template_all_facts_are_sent_as_json(server: Sink) -> None:
    hook = webhook(f"{server.at}/drain?to=other")
    assert hook.rehearse() == done(f"would send POST to {server.at}, which can be reached")
    assert server.heard == []
    assert hook.run(attempt=2) == done(f"{server.at} answered 204 No Content")
    [request] = server.heard
    assert (request.method, request.target) == ("POST", "/drain?to=other")
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"].startswith("forenotice/")
    assert json.loads(request.body) == json.loads(facts.encoded(work(attempt=2)))


def test_a_template_in_json_stays_json_whatever_the_description_has(server: Sink) -> None:
    event = msgspec.structs.replace(EVENT, description='a "quoted" back\\slash\nand é')
    text = "$EVENT_TYPE of ${FORENOTICE_NAME}: $EVENT_DESCRIPTION"
    body = f'{{"text": "{text}", "cost": "$$5", "left": $FORENOTICE_SECONDS_LEFT}}'
    assert webhook(server.at, body=body).run(event=event, phase=Phase.RECOVER).ok
    shown = 'Reboot of web-1: a "quoted" back\\slash and é'
    assert json.loads(server.heard[0].body) == {"text": shown, "cost": "$5", "left": 10}
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
    event = msgspec.structs.replace(EVENT, description='a&b "c"')
    hook = webhook(server.at, body="m=$EVENT_DESCRIPTION", headers={"content-type": kind})
    assert hook.run(event=event).ok
    assert server.heard[0].body == sent
    assert server.heard[0].headers.get_all("Content-Type") == [kind]


def test_get_has_no_body_unless_one_is_given(server: Sink) -> None:
    assert webhook(f"{server.at}/x", method="GET").run().ok
    assert webhook(f"{server.at}/x", method="PUT", body="$EVENT_ID").run().ok
    assert [(request.method, request.body) for request in server.heard] == [("GET", b""), ("PUT", EVENT.id.encode())]


def test_secrets_come_from_files_and_are_read_anew_each_time(server: Sink, tmp_path: Path) -> None:
    token = tmp_path / "token"
    hook = webhook(server.at, headers={"X-Team": "web"}, header_files={"Authorization": str(token)})
    for value in ("Bearer one", "Bearer two"):
        secret_file(token, f"{value}\n")
        assert hook.run().ok
    assert [request.headers["Authorization"] for request in server.heard] == ["Bearer one", "Bearer two"]
    assert server.heard[0].headers["X-Team"] == "web"


@pytest.mark.parametrize("content", ["", "two\nlines", "\x1b", "é", "x" * 70_000, None])
def test_a_file_without_a_header_is_an_error_that_does_not_show_its_content(
    server: Sink, tmp_path: Path, content: str | None
) -> None:
    token = tmp_path / "token"
    problem = "cannot be read: no such file or directory"
    if content is not None:
        secret_file(token, content)
        problem = "must hold one line of plain ASCII"
    hook = webhook(server.at, header_files={"X-Key": str(token)})
    assert hook.run() == hook.rehearse() == failed(f"X-Key in header_files: {token} {problem}")
    assert server.heard == []


def test_user_and_password_are_sent_and_never_shown(server: Sink) -> None:
    url = f"http://user:{SECRET}%21@localhost:{server.port}/{SECRET}?key={SECRET}"
    hook, nowhere = webhook(url), webhook(url.replace(str(server.port), "1"))
    outcomes = [hook.run(), hook.rehearse()]
    server.status = 500
    outcomes += [hook.run(), nowhere.run(), nowhere.rehearse()]
    pair = base64.b64encode(f"user:{SECRET}!".encode()).decode()
    assert [request.headers["Authorization"] for request in server.heard] == [f"Basic {pair}"] * 2
    assert not [outcome for outcome in outcomes if SECRET in outcome.message]
    assert outcomes[-2:] == [
        failed("no answer from http://localhost:1: connection refused"),
        failed("cannot connect to http://localhost:1: connection refused"),
    ]


@pytest.mark.parametrize("status", [400, 404, 503])
def test_every_status_but_2xx_is_a_failure(server: Sink, status: int) -> None:
    server.status, server.reason = status, "No\x1b Way" + "!" * 500
    assert webhook(server.at).run() == failed(f"{server.at} answered {status} No  Way{'!' * 93}")


def test_redirects_are_not_followed(server: Sink) -> None:
    server.status, server.headers = 302, {"Location": f"{server.at}/elsewhere"}
    remedy = "redirects are not followed, so give the URL it leads to"
    assert webhook(server.at).run() == failed(f"{server.at} answered 302 Found; {remedy}")
    assert len(server.heard) == 1


def test_a_response_is_waited_for_until_the_time_is_up_or_the_agent_asks(server: Sink) -> None:
    assert not webhook(server.at).run(seconds_left=-1).ok
    assert server.heard == [], "work that comes too late is not begun"
    server.answering.clear()
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    begun = time.monotonic()
    assert webhook(server.at).run(seconds_left=0.3) == failed(f"no answer from {server.at}: timed out")
    assert webhook(server.at).run(seconds_left=60, stop=stop) == failed("stopped, as the agent asked")
    assert time.monotonic() - begun < 20


def test_certificates_are_checked(tmp_path: Path) -> None:
    own = certificate(tmp_path)
    with sink(own) as server:
        for outcome in (webhook(server.at).run(), webhook(server.at).rehearse()):
            assert not outcome.ok
            assert "certificate verify failed" in outcome.message
        trusting = webhook(f"{server.at}/x", ca_file=str(own.file))
        assert trusting.rehearse().ok
        assert server.heard == []
        assert trusting.run() == done(f"{server.at} answered 204 No Content")
        assert not webhook(f"https://127.0.0.1:{server.port}", ca_file=str(own.file)).run().ok, "another name"
        assert len(server.heard) == 1
    missing = webhook("https://localhost:1", ca_file=f"{tmp_path}/none")
    problem = f"ca_file {tmp_path}/none cannot be used: no such file or directory"
    assert missing.run() == missing.rehearse() == failed(problem)


def test_a_rehearsal_shows_that_a_host_has_no_address() -> None:
    outcome = webhook("http://no-such-host.invalid/x").rehearse()
    assert not outcome.ok
    assert outcome.message.startswith("cannot connect to http://no-such-host.invalid: ")


def test_tls_is_loaded_only_where_it_is_needed() -> None:
    program = """
import sys
from forenotice.agent.handlers import Outcome, tables
from forenotice.agent import workers
from forenotice.runtime import Runtime
Outcome.of(workers.make(tables.Webhook(name="hook", url="http://localhost:1/"), Runtime()).rehearse)
heavy = {"ssl", "http.client", "http.server", "urllib.request", "asyncio", "email", "shutil", "click", "rich"}
print(sorted(heavy & sys.modules.keys()))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
