"""What the agent writes down survives, and what cannot be read is put aside."""

import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.rules.builders import T0, Story, after, event

from forenotice.agent.journal import FILE, KEPT, Copy, Journal, JournalError, Lock, is_running
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import Pause, Saga, State
from forenotice.core import errors

NO_DATABASE = b"this is no database, and it is long enough to show it" * 20


def a_rich_saga() -> Saga:
    story = Story()
    story.turn()
    story.finish(Phase.PREPARE, message="fine")
    story.approve()
    pause = Pause(seconds=4.2, resolution=0.1, by="own clock")
    return replace(story.saga, memos={"drain": "a b"}, configs={"drain": "{}"}, pause=pause)


def done(number: int) -> Saga:
    return replace(transitions.appeared(event(id=f"E{number}"), T0), state=State.DONE)


def written(directory: Path, *sagas: Saga) -> None:
    with closing(Journal(directory)) as journal:
        for saga in sagas or (a_rich_saga(),):
            journal.write(saga)


def damage(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / FILE) as raw:
        raw.execute(statement)
    raw.close()


def test_everything_comes_back_as_it_was_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with closing(Journal(directory)) as journal:
        for saga in (done(3), a_rich_saga(), done(2), done(3)):
            journal.write(saga)
        journal.peer_ready("E1", "b", T0)
        journal.peer_ready("E1", "b", after(1))
        journal.peer_ready("E2", "c", T0)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, directory / FILE)] == [0o700, 0o600]
    damage(directory, "INSERT INTO peers VALUES ('E3', 'c', 'some time ago'), ('E3', 'd', CAST(x'ff' AS TEXT))")
    again = Journal(directory)
    assert again.sagas() == [done(3), a_rich_saga(), done(2)], "in the order in which they were first written"
    assert again.peers() == {"E1": {"b": after(1)}, "E2": {"c": T0}}


def test_only_so_many_are_kept_and_no_live_one_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal._connection.execute("PRAGMA synchronous = OFF")
    for saga in (a_rich_saga(), *map(done, range(100, 100 + KEPT + 5))):
        journal.write(saga)
    kept = [saga.id for saga in journal.sagas()]
    assert (len(kept), kept[0], kept[1]) == (KEPT + 1, "E1", "E105")


def test_a_new_journal_is_new_until_the_past_is_settled(tmp_path: Path) -> None:
    for _ in range(2):
        with closing(Journal(tmp_path)) as journal:
            assert journal.is_new()
    journal = Journal(tmp_path)
    journal.mark_old(transitions.after_loss(T0))
    assert not journal.is_new()
    assert [saga.id for saga in journal.sagas()] == [transitions.LOST]


def test_what_cannot_be_read_any_more_is_an_error_of_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for table in ("sagas", "peers"):
        journal._connection.execute(f"DROP TABLE {table}")
    for read in (journal.sagas, journal.peers):
        with pytest.raises(JournalError, match="cannot be read"):
            read()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    written(tmp_path)
    journal = Journal(tmp_path)
    journal._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(JournalError, match="cannot be written"):
        journal.write(done(1))
    journal._connection.execute("PRAGMA query_only = OFF")
    journal.peer_ready("E1", "b", T0)
    assert journal.sagas() == [a_rich_saga()]


@pytest.mark.parametrize("content", [NO_DATABASE, b"SQLite format 3\0"])
def test_one_that_cannot_be_read_is_put_aside(tmp_path: Path, content: bytes) -> None:
    for number in (1, 2):
        (tmp_path / FILE).write_bytes(content)
        with closing(Journal(tmp_path)) as journal:
            assert journal.is_new()
            journal.write(a_rich_saga())
            assert journal.put_aside == tmp_path / f"journal.db.unreadable-{number}"
            assert journal.put_aside.read_bytes() == content


@pytest.mark.parametrize("table", ["sagas", "peers"])
def test_one_with_other_tables_is_put_aside(tmp_path: Path, table: str) -> None:
    damage(tmp_path, f"CREATE TABLE {table} (something TEXT)")
    journal = Journal(tmp_path)
    assert journal.put_aside
    assert (journal.sagas(), journal.peers(), journal.is_new()) == ([], {}, True)


@pytest.mark.parametrize(
    "content",
    [
        "CAST(x'ff' AS TEXT)",
        "CAST(x'7b22ff' AS TEXT)",
        "'{\"later\": true}'",
        "x'00'",
        "(SELECT content FROM sagas LIMIT 1)",
    ],
)
def test_one_saga_that_cannot_be_read_is_all_that_is_lost(tmp_path: Path, content: str) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.mark_old(None)
        journal.write(a_rich_saga())
    damage(tmp_path, f"INSERT INTO sagas VALUES ('E7', true, 7, {content})")
    with closing(Journal(tmp_path)) as journal:
        assert (journal.sagas(), journal.dropped, journal.is_new()) == ([a_rich_saga()], 1, False)
        assert journal.put_aside == tmp_path / "journal.db.unreadable-1"
        with closing(sqlite3.connect(journal.put_aside)) as copy:
            assert copy.execute("SELECT count(*) FROM sagas").fetchone() == (2,)
    assert Journal(tmp_path).put_aside is None


def test_when_no_live_saga_could_be_read_it_is_as_after_a_loss(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.mark_old(transitions.after_loss(T0))
        journal.write(replace(transitions.after_loss(T0), state=State.DONE))
        journal.write(a_rich_saga())
    damage(tmp_path, "UPDATE sagas SET content = '{' WHERE id = 'E1'")
    journal = Journal(tmp_path)
    assert journal.is_new()
    journal.mark_old(transitions.after_loss(T0))
    assert [saga.live for saga in journal.sagas()] == [True]


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing that this process writes gets longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_can_be_read(tmp_path: Path) -> None:
    written(tmp_path / "closed")
    journal = Journal(tmp_path / "open")
    journal.write(a_rich_saga())
    shutil.copytree(tmp_path / "open", tmp_path / "crashed")
    with full_disk():
        for name in ("closed", "crashed"):
            with pytest.raises(JournalError, match="cannot be used"):
                Journal(tmp_path / name)
            with closing(Journal(tmp_path / name, writable=False)) as found:
                assert found.sagas() == [a_rich_saga()]
    with pytest.raises(JournalError, match="cannot be read"):
        Journal(tmp_path / "nowhere", writable=False)


@pytest.mark.parametrize("name", [FILE, "lock"])
def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name, 0o600)
    for use in (Journal, lambda directory: Journal(directory, writable=False), Lock):
        with pytest.raises(errors.RefusedError, match=f"{name} is neither a file nor a directory"):
            use(tmp_path)
    assert is_running(tmp_path) is None


@pytest.mark.parametrize("made", [Journal, Lock])
def test_a_place_that_cannot_be_used(tmp_path: Path, made: type[Journal | Lock]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be used"):
        made(tmp_path / "file")
    assert is_running(tmp_path / "nowhere") is None


# A copy in memory


def test_what_is_written_to_a_copy_does_not_reach_the_file(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.write(a_rich_saga())
        with closing(Copy(tmp_path)) as copy:
            assert (copy.sagas(), copy.is_new()) == ([a_rich_saga()], True)
            copy.write(done(7))
            copy.mark_old(None)
            copy.peer_ready("E1", "web-1", T0)
            assert (len(copy.sagas()), copy.is_new(), copy.is_there()) == (2, False, True)
        assert (journal.sagas(), journal.is_new(), journal.peers()) == ([a_rich_saga()], True, {})


def test_a_copy_makes_no_file_and_leaves_one_that_cannot_be_read(tmp_path: Path) -> None:
    with closing(Copy(tmp_path / "nowhere")) as copy:
        copy.write(a_rich_saga())
        assert copy.sagas() == [a_rich_saga()]
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / FILE).write_bytes(NO_DATABASE)
    with pytest.raises(JournalError, match="cannot be read"):
        Copy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


# The lock


def test_one_agent_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
    monkeypatch.setattr("forenotice.agent.journal.LOCK_TIMEOUT", 0.01)
    with pytest.raises(errors.ConflictError, match="another agent runs"):
        Lock(tmp_path)
    lock.release()
    assert not is_running(tmp_path)


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from forenotice.agent.journal import Lock;"
        " lock = Lock(Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    Lock(tmp_path).release()


def test_a_process_that_only_looks_is_not_in_the_way(tmp_path: Path) -> None:
    """`agent status` takes the lock for a moment, just when the agent starts."""
    Lock(tmp_path).release()
    looking = sqlite3.connect(tmp_path / "lock", isolation_level=None, check_same_thread=False)
    looking.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.1, looking.close)
    timer.start()
    Lock(tmp_path).release()
    timer.join()


def test_a_file_that_is_no_database_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(NO_DATABASE)
    (tmp_path / "lock").chmod(0o600)
    assert not is_running(tmp_path)
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
    lock.release()


def test_a_lock_that_was_removed_excludes_nobody(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert lock.is_there()
    (tmp_path / "lock").unlink()
    other = Lock(tmp_path)
    assert (lock.is_there(), other.is_there()) == (False, True)
    lock.release()
    assert is_running(tmp_path)
    other.release()


def test_a_directory_or_lock_that_others_can_change_is_refused(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        Lock(tmp_path).release()
    finally:
        os.umask(mask)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "lock").chmod(0o666)
    with pytest.raises(errors.RefusedError, match="lock can be changed by other users"):
        Lock(tmp_path)
    (tmp_path / "lock").unlink()
    tmp_path.chmod(0o777)
    with pytest.raises(errors.RefusedError, match=f"the state directory {tmp_path} can be changed by other users"):
        Lock(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_lock_that_can_only_be_read_is_none(tmp_path: Path) -> None:
    Lock(tmp_path).release()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    program = (
        "import sys; from pathlib import Path; from forenotice.agent import journal;"
        " print(journal.is_running(Path(sys.argv[1]))); journal.Lock(Path(sys.argv[1]))"
    )
    ran = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", str(tmp_path), *ran], capture_output=True, text=True, check=False
    )
    if "mount:" in ended.stderr or "unshare:" in ended.stderr:
        assert os.environ.get("CI") != "true", "this test needs to mount a file system of its own"
        pytest.skip("needs to mount a file system of its own, as root or in a user namespace")
    assert ended.stdout == "None\n"
    assert "JournalError" in ended.stderr
