"""The file that `forenotice agent status` reads."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.agent.rules.builders import T0, Story, event
from tests.agent.test_journal import a_rich_saga

from forenotice.agent import status
from forenotice.agent.journal import Lock
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import State
from forenotice.agent.status import Status
from forenotice.clock import MachineClock
from forenotice.core import errors


def a_status(**more: object) -> Status:
    found = Status(
        pid=1,
        written_at=T0,
        name="web-0",
        endpoint="http://169.254.169.254",
        polling=True,
        polling_why="",
        ready=False,
        ready_why="Reboot: prepared",
        journal=True,
        sagas=status.of_sagas([a_rich_saga()]),
        recent=(),
    )
    return msgspec.structs.replace(found, **more)


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / status.FILE, 0o600)
    with pytest.raises(errors.UnavailableError, match="cannot be read"):
        status.read(tmp_path)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    assert status.read(tmp_path) == (None, None)
    status.write(tmp_path, a_status())
    Lock(tmp_path).release()
    assert status.read(tmp_path) == (a_status(), False)
    lock = Lock(tmp_path)
    assert status.read(tmp_path) == (a_status(), True)
    lock.release()


def test_what_it_tells_of_an_event() -> None:
    story = Story()
    story.turn()
    story.end(Phase.PREPARE, ok=False, said="exit code 1")
    story.turn()
    (found,) = status.of_sagas([story.saga])
    assert (found.event_id, found.type, found.state, found.resources) == ("E1", "Reboot", "preparing", ("web-0",))
    assert (found.not_before, found.announced_seconds, found.pause) == (event().deadline, None, None)
    (step,) = found.steps
    assert (step.phase, step.handler, step.progress, step.said) == ("prepare", "drain", "retrying", "exit code 1")
    done = replace(story.saga, state=State.DONE, done_at=T0, pause=a_rich_saga().pause)
    (found,) = status.of_sagas([done])
    assert (found.state, found.done_at, found.pause) == ("done", T0, a_rich_saga().pause)


def test_half_of_it_is_never_there(tmp_path: Path) -> None:
    """A disk that fills up takes some of what is written, and says nothing until more is."""
    status.write(tmp_path, a_status())
    program = (
        "import resource, sys; from pathlib import Path; from forenotice.agent import status;"
        " directory = Path(sys.argv[1]); found, _ = status.read(directory);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); status.write(directory, found)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "OSError" in ended.stderr
    assert status.read(tmp_path)[0] == a_status()


def test_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(errors.UnavailableError, match="cannot be read"):
        status.read(tmp_path)
    (tmp_path / "status.json").unlink()
    (tmp_path / "status.json").mkdir()
    with pytest.raises(errors.UnavailableError, match="cannot be read"):
        status.read(tmp_path)


def test_an_agent_without_the_lock_is_known_by_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    status.write(tmp_path, a_status())
    assert status.read(tmp_path) == (a_status(), None)
    fresh = a_status(written_at=MachineClock().now())
    status.write(tmp_path, fresh)
    assert status.read(tmp_path) == (fresh, True)
