"""The file that `forenotice agent status` reads, /healthz and /readyz, and what is reported after each turn."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.acceptance.running import ask
from tests.agent.parts import FINE, RUNTIME, context, idle_poller, sagas
from tests.agent.rules.builders import T0, Story, event
from tests.agent.test_journal import a_rich_saga

from forenotice.agent import status
from forenotice.agent.journal import Lock
from forenotice.agent.listener import Listener, Request
from forenotice.agent.posix import Notifier
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import HANGS, Health, Reporter, Status, routes
from forenotice.clock import MachineClock
from forenotice.core import errors

PREPARING = replace(FINE, ready=False, ready_why="preparing for a Reboot")
DEAF = replace(FINE, polling_ok=False, polling_why="connection refused")


def a_status(**more: object) -> Status:
    found = Status(
        pid=1,
        written_at=T0,
        name="web-0",
        endpoint="http://169.254.169.254",
        health=PREPARING,
        journal=True,
        sagas=(a_rich_saga(),),
        recent=(),
    )
    return msgspec.structs.replace(found, **more)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    assert status.read(tmp_path) == (None, None)
    status.write(tmp_path, a_status())
    Lock(tmp_path).release()
    assert status.read(tmp_path) == (a_status(), False)
    lock = Lock(tmp_path)
    assert status.read(tmp_path) == (a_status(), True)
    lock.release()


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    """A disk that fills up takes some of what is written, and fails only later."""
    status.write(tmp_path, a_status())
    program = (
        "import resource, sys; from pathlib import Path; from forenotice.agent import status;"
        " directory = Path(sys.argv[1]); found, _ = status.read(directory);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); status.write(directory, found)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "OSError" in ended.stderr
    assert status.read(tmp_path)[0] == a_status()


@pytest.mark.parametrize("make", [lambda path: path.write_text("{"), Path.mkdir, lambda path: os.mkfifo(path, 0o600)])
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Any) -> None:
    make(tmp_path / status.FILE)
    with pytest.raises(errors.UnavailableError, match="cannot be read"):
        status.read(tmp_path)


def test_an_agent_without_the_lock_is_known_by_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    status.write(tmp_path, a_status())
    assert status.read(tmp_path) == (a_status(), None)
    fresh = a_status(written_at=MachineClock().now())
    status.write(tmp_path, fresh)
    assert status.read(tmp_path) == (fresh, True)


@pytest.mark.parametrize(
    ("health", "path", "code", "why"),
    [
        (FINE, "/healthz", 200, FINE.polling_why),
        (FINE, "/readyz", 200, FINE.ready_why),
        (PREPARING, "/healthz", 200, FINE.polling_why),
        (PREPARING, "/readyz", 503, PREPARING.ready_why),
        (DEAF, "/healthz", 503, DEAF.polling_why),
        (DEAF, "/readyz", 200, FINE.ready_why),
    ],
)
def test_liveness_and_readiness_each_have_a_reason(health: Health, path: str, code: int, why: str) -> None:
    reply = routes(lambda: health)["GET", path](Request(method="GET", path=path))
    assert reply.status == code
    assert json.loads(reply.body) == {"ok": code == 200, "why": why}


def test_a_load_balancer_sees_it_change() -> None:
    now = [FINE]
    listener = Listener("127.0.0.1", 0, routes(lambda: now[0]), RUNTIME)
    listener.start()
    place = "{}:{}".format(*listener.address)
    try:
        assert ask(place, "HEAD", "/readyz").status == 200
        now[0] = PREPARING
        assert ask(place, "HEAD", "/readyz").status == 503
        assert ask(place, "GET", "/readyz").json["why"] == PREPARING.ready_why
    finally:
        listener.close()


def reporter(directory: Path, known: Sagas, *, observe: bool = False) -> Reporter:
    return Reporter(directory, known, idle_poller(), Notifier("", RUNTIME.monotonic), context(observe=observe))


def written(directory: Path) -> Any:
    return json.loads((directory / status.FILE).read_text())


def test_a_handlers_message_is_in_the_status_but_not_on_the_network(tmp_path: Path) -> None:
    known, story = sagas(tmp_path), Story()
    story.turn()
    for _ in range(3):
        story.end(Phase.PREPARE, ok=False, message="password=hunter2")
        story.wait(60)
        story.turn()
    known.begin(transitions.appeared(event(), T0))
    known.keep(replace(story.saga, memos={"drain": "of the handler"}), forward=False)
    found = reporter(tmp_path, known)
    found.report("web-0")
    assert found.health().ready_why == "Reboot: preparing"
    (shown,) = written(tmp_path)["sagas"]
    assert "hunter2" in shown["why"]
    assert shown["memos"] == {}


def test_a_vm_is_not_ready_while_its_journal_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    known = sagas(tmp_path)
    found = reporter(tmp_path, known)
    assert (found.health().ready, found.health().ready_why) == (False, "the journal has not been read yet")
    (tmp_path / "journal.db").rmdir()
    known.try_to_open()
    found.report("web-0")
    assert found.health().ready


def test_a_loop_that_makes_no_turns_is_not_healthy(tmp_path: Path) -> None:
    found = reporter(tmp_path, sagas(tmp_path))
    found._turned_at -= HANGS
    assert (found.health().polling_ok, found.health().polling_why) == (False, "the agent hangs")
    found.report("web-0")
    assert found.health().polling_why != "the agent hangs"


def test_an_agent_that_only_observes_is_as_ready_as_it_was(tmp_path: Path) -> None:
    known, story = sagas(tmp_path, observe=True), Story()
    story.turn(observes=True)
    known.begin(transitions.appeared(event(), T0))
    known.keep(story.saga, forward=True)
    assert story.saga.out
    found = reporter(tmp_path, known, observe=True)
    found.report("web-0")
    assert found.health().ready
    assert (written(tmp_path)["observe"], written(tmp_path)["sagas"][0]["would_approve_at"]) == (True, None)


def test_it_shows_which_peers_are_ready_and_which_have_not_answered(tmp_path: Path) -> None:
    known = sagas(tmp_path)
    known.begin(transitions.appeared(event(resources=("web-0", "Web-1", "web-2")), T0, ("web-0",)))
    known.peer_ready("E1", "web-1", T0)
    found = reporter(tmp_path, known)
    why = {"web-2": "no message sent yet"}

    def shown() -> list[dict[str, object]]:
        found.report("web-0", unacknowledged=lambda _: why)
        return list(written(tmp_path)["peers"]["E1"])

    ready = {"name": "Web-1", "ready_at": "2026-01-01T12:00:00Z", "trouble": ""}
    assert shown() == [ready, {"name": "web-2", "ready_at": None, "trouble": "no message sent yet"}]
    why["web-2"] = "slow: no answer within 5 s"
    assert shown()[1]["trouble"] == why["web-2"], "it is written as soon as it changes"
    found.report("web-0")
    assert written(tmp_path)["peers"] == {}
