"""The file that `forenotice agent status` reads, and what is reported after each turn."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.parts import FINE, RUNTIME, context, idle_poller, sagas
from tests.agent.rules.builders import T0, Story, event
from tests.agent.test_journal import a_rich_saga

from forenotice.agent import status
from forenotice.agent.journal import Lock
from forenotice.agent.posix import Notifier
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import HANGS, Reporter, Status
from forenotice.clock import MachineClock
from forenotice.core import errors


def a_status(**more: object) -> Status:
    found = Status(
        pid=1,
        written_at=T0,
        name="web-0",
        endpoint="http://169.254.169.254",
        health=replace(FINE, ready=False, ready_why="preparing for a Reboot"),
        journal=True,
        sagas=(a_rich_saga(),),
        recent=(),
    )
    return msgspec.structs.replace(found, **more)


def test_it_comes_back_as_it_was_and_a_lock_tells_whether_the_agent_runs(tmp_path: Path) -> None:
    assert status.read(tmp_path) == (None, None)
    status.write(tmp_path, a_status())
    Lock(tmp_path).release()
    assert status.read(tmp_path) == (a_status(), False)
    lock = Lock(tmp_path)
    assert status.read(tmp_path) == (a_status(), True)
    lock.release()


def test_an_agent_without_the_lock_is_known_by_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    status.write(tmp_path, a_status())
    assert status.read(tmp_path) == (a_status(), None)
    fresh = a_status(written_at=MachineClock().now())
    status.write(tmp_path, fresh)
    assert status.read(tmp_path) == (fresh, True)


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
    known.keep(replace(story.saga, memos={"drain": "of the handler"}, configs={"drain": "{}"}))
    found = reporter(tmp_path, known)
    found.report("web-0")
    assert found.health().ready_why == "Reboot: preparing"
    (shown,) = written(tmp_path)["sagas"]
    assert "hunter2" in shown["why"]
    assert shown["memos"] == shown["configs"] == {}


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


def test_it_shows_which_peers_are_ready_and_which_have_not_acknowledged(tmp_path: Path) -> None:
    known = sagas(tmp_path)
    known.begin(transitions.appeared(event(resources=("web-0", "Web-1", "web-2")), T0, ("web-0",)))
    known.peer_ready("E1", "web-1", T0)
    found = reporter(tmp_path, known)
    ready = {"name": "Web-1", "ready_at": "2026-01-01T12:00:00Z", "trouble": ""}
    for trouble in ("no message sent yet", "slow: no answer within 5 s"):
        found.report("web-0", unacknowledged=lambda _, trouble=trouble: {"web-2": trouble})  # type: ignore[misc]
        assert written(tmp_path)["peers"]["E1"] == [ready, {"name": "web-2", "ready_at": None, "trouble": trouble}]
    found.report("web-0")
    assert written(tmp_path)["peers"] == {}
