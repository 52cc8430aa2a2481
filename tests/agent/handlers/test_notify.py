import json
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import HOST
from tests.agent.handlers.sink import Sink, sink
from tests.agent.handlers.work import Tried, done, failed, work
from tests.agent.parts import RUNTIME, secret_file

from forenotice.agent.handlers import Outcome, facts, notify
from forenotice.agent.handlers.child import ChildHandler
from forenotice.agent.handlers.tables import Notify

# Its plugins import what Python is about to remove.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SECRET = "hunter2"
NOBODY = f"json://operator:{SECRET}@{HOST}:1/{SECRET}?token={SECRET}"


@pytest.fixture
def server() -> Iterator[Sink]:
    with sink() as made:
        yield made


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a child process, which silences all logs for good."""
    monkeypatch.setattr(notify, "PAUSE", 0.01)
    for name, value in facts.environment(work()).items():
        monkeypatch.setenv(name, value)
    yield
    logging.disable(logging.NOTSET)


def send(config: Notify, seconds: float = 10.0) -> Outcome:
    return Outcome.of(lambda: notify.run(config, time.monotonic() + seconds, RUNTIME))


def rehearse(config: Notify) -> Outcome:
    return Outcome.of(partial(notify.rehearse, config))


def config(*urls: str, **more: Any) -> Notify:
    return Notify(name="tell", urls=urls, **more)


def url(server: Sink, path: str = "") -> str:
    return f"json://operator:{SECRET}@127.0.0.1:{server.port}/{path}"


def test_a_sink_that_is_down_holds_nothing_up_by_default() -> None:
    rule = config(NOBODY).rule
    assert (rule.blocks, rule.retries) == (False, 0)
    assert config(NOBODY, on_failure="block").rule.blocks is True


def test_a_process_of_its_own_sends_the_templates_filled_in(server: Sink) -> None:
    title, body = "$EVENT_TYPE in $$ of $FORENOTICE_NAME", "$EVENT_DESCRIPTION ${FORENOTICE_PHASE}"
    handler = Tried(ChildHandler(config(url(server, "hook"), title=title, body=body), RUNTIME))
    assert handler.run() == done("1 of 1 sinks accepted it")
    (request,) = server.heard
    sent = json.loads(request.body)
    assert (request.target, sent["title"]) == ("/hook", "Reboot in $ of web-1")
    assert sent["message"] == "Host server is undergoing maintenance. prepare"


def test_a_process_of_its_own_never_prints_a_secret(server: Sink, tmp_path: Path) -> None:
    """Though apprise would log what it cannot understand, and requests what it cannot reach."""
    listed = secret_file(tmp_path / "urls", f"# {SECRET}\n\n  slack://{SECRET}\nnosuch://{SECRET}\n{SECRET}\n")
    server.status = 500
    outcome = Tried(ChildHandler(config(NOBODY, url(server), urls_file=str(listed)), RUNTIME)).run()
    titles = "number 1 (json), number 2 (json), number 3 (slack), number 4 (nosuch), number 5 (no URL)"
    assert outcome == failed(f"0 of 5 sinks accepted it; not {titles}")


def test_one_sink_that_fails_is_tried_again_and_does_not_silence_the_others(server: Sink) -> None:
    with sink() as broken:
        broken.status = 503
        assert send(config(url(broken), url(server))) == failed("1 of 2 sinks accepted it; not number 1 (json)")
        assert (len(broken.heard), len(server.heard)) == (2, 1)
    # apprise raises a TypeError for this one.
    stumbling = config(f"dbus://[{SECRET}", url(server))
    assert send(stumbling) == failed("1 of 2 sinks accepted it; not number 1 (dbus)")
    assert len(server.heard) == 2
    assert rehearse(stumbling) == failed("apprise cannot use number 1 (dbus)")


def test_a_sink_that_is_silent_is_not_waited_for_beyond_the_deadline(server: Sink) -> None:
    assert rehearse(config(url(server))).ok  # all plugins are loaded
    server.answering.clear()
    began = time.monotonic()
    assert send(config(url(server)), seconds=0.2) == failed("0 of 1 sinks accepted it; not number 1 (json)")
    assert time.monotonic() - began < 3
    server.answering.set()
    for thread in threading.enumerate():
        if thread.name.startswith("sink"):
            thread.join()


def test_a_rehearsal_sends_nothing_and_names_what_is_wrong(server: Sink, tmp_path: Path) -> None:
    assert rehearse(config(url(server))) == done("would notify number 1 (json)")
    assert server.heard == []
    assert rehearse(config(url(server), f"nosuch://{SECRET}")) == failed("apprise cannot use number 2 (nosuch)")
    path = tmp_path / "urls"
    listed = config(urls_file=str(path))
    assert rehearse(listed) == failed(f"urls_file: {path} cannot be read: no such file or directory")
    secret_file(path, b"\xff\n")
    assert rehearse(listed) == failed(f"urls_file: {path} cannot be read: it is not UTF-8")
    secret_file(path, "# none yet\n")
    assert rehearse(listed) == send(listed) == failed(f"{path} lists no URL: give one on each line")
