import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import HOST
from tests.agent.handlers.sink import Sink, sink
from tests.agent.handlers.work import done, failed, work
from tests.agent.parts import RUNTIME

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
def loud() -> Iterator[None]:
    """A child process silences all logs for good."""
    yield
    logging.disable(logging.NOTSET)


def told(monkeypatch: pytest.MonkeyPatch, config: Notify, seconds: float = 10.0) -> Outcome:
    """As in a child process."""
    for name, value in facts.environment(work()).items():
        monkeypatch.setenv(name, value)
    return notify.run(config, time.monotonic() + seconds, RUNTIME)


def config(*urls: str, **more: Any) -> Notify:
    return Notify(name="tell", urls=urls, **more)


def url(server: Sink, path: str = "") -> str:
    return f"json://operator:{SECRET}@127.0.0.1:{server.port}/{path}"


def test_a_sink_that_is_down_holds_nothing_up_by_default() -> None:
    assert config(NOBODY).rule.blocks is False
    assert config(NOBODY).rule.retries == 0
    assert config(NOBODY, on_failure="block").rule.blocks is True


def test_a_process_of_its_own_sends_the_templates_filled_in(server: Sink) -> None:
    title, body = "$EVENT_TYPE in $$ of $FORENOTICE_NAME", "$EVENT_DESCRIPTION ${FORENOTICE_PHASE}"
    handler = ChildHandler(config(url(server, "hook"), title=title, body=body), RUNTIME)
    assert handler.run(work()) == done("1 of 1 sinks accepted it")
    (heard,) = server.heard
    assert heard.target == "/hook"
    sent = json.loads(heard.body)
    assert sent["title"] == "Reboot in $ of web-1"
    assert sent["message"] == "Host server is undergoing maintenance. prepare"


def test_a_process_of_its_own_never_prints_a_secret(server: Sink, tmp_path: Path) -> None:
    """Though apprise would log what it cannot understand, and requests what it cannot reach."""
    listed = tmp_path / "urls"
    listed.touch(0o600)
    listed.write_text(f"# {SECRET}\n\n  slack://{SECRET}\nnosuch://{SECRET}\n{SECRET}\n")
    server.status = 500
    outcome = ChildHandler(config(NOBODY, url(server), urls_file=str(listed)), RUNTIME).run(work())
    titles = "number 1 (json), number 2 (json), number 3 (slack), number 4 (nosuch), number 5 (no URL)"
    assert outcome == failed(f"0 of 5 sinks accepted it; not {titles}")


def test_the_other_sinks_are_told_when_one_fails_and_only_that_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, server: Sink
) -> None:
    monkeypatch.setattr(notify, "PAUSE", 0.01)
    with sink() as broken:
        broken.status = 503
        outcome = told(monkeypatch, config(url(broken), url(server)))
        assert len(broken.heard) == 2
    assert outcome == failed("1 of 2 sinks accepted it; not number 1 (json)")
    assert len(server.heard) == 1


def test_a_url_that_apprise_stumbles_over_does_not_silence_the_others(
    monkeypatch: pytest.MonkeyPatch, server: Sink
) -> None:
    """It raises a TypeError for this one."""
    monkeypatch.setattr(notify, "PAUSE", 0.01)
    stumbling = config(f"dbus://[{SECRET}", url(server))
    assert told(monkeypatch, stumbling) == failed("1 of 2 sinks accepted it; not number 1 (dbus)")
    assert len(server.heard) == 1
    assert notify.rehearse(stumbling) == failed("apprise cannot use number 1 (dbus)")


def test_a_sink_that_is_silent_is_not_waited_for_beyond_the_deadline(
    monkeypatch: pytest.MonkeyPatch, server: Sink
) -> None:
    assert notify.rehearse(config(url(server))).ok  # all plugins are loaded
    server.answering.clear()
    began = time.monotonic()
    outcome = told(monkeypatch, config(url(server)), seconds=0.2)
    assert outcome == failed("0 of 1 sinks accepted it; not number 1 (json)")
    assert time.monotonic() - began < 3
    server.answering.set()
    for thread in threading.enumerate():
        if thread.name.startswith("sink"):
            thread.join()


def test_a_rehearsal_sends_nothing_and_names_what_is_wrong(server: Sink, tmp_path: Path) -> None:
    assert notify.rehearse(config(url(server))) == done("would notify number 1 (json)")
    assert server.heard == []
    unusable = notify.rehearse(config(url(server), f"nosuch://{SECRET}"))
    assert unusable == failed("apprise cannot use number 2 (nosuch)")
    missing = tmp_path / "missing"
    said = f"urls_file: {missing} cannot be read: no such file or directory"
    assert notify.rehearse(config(urls_file=str(missing))) == failed(said)
    missing.touch(0o600)
    missing.write_bytes(b"\xff\n")
    assert (
        notify.rehearse(config(urls_file=str(missing))).message
        == f"urls_file: {missing} cannot be read: it is not UTF-8"
    )


def test_a_list_without_urls_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "urls"
    empty.touch(0o600)
    empty.write_text("# none yet\n")
    said = f"{empty} lists no URL: give one on each line"
    assert told(monkeypatch, config(urls_file=str(empty))) == failed(said)
