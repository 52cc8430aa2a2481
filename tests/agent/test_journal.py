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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.rules.builders import T0, Story, after, event

from forenotice.agent.journal import FILE, KEPT, Copy, Journal, JournalError, Lock, is_running
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import Pause, Saga, State
from forenotice.core import errors


def a_rich_saga() -> Saga:
    story = Story()
    story.turn()
    story.finish(Phase.PREPARE, message="fine")
    story.approve()
    return replace(story.saga, memos={"drain": "a b"}, pause=Pause(seconds=4.2, resolution=0.1, by="own clock"))


def done(number: int) -> Saga:
    return replace(transitions.appeared(event(id=f"E{number}"), T0), state=State.DONE)


def test_a_saga_comes_back_as_it_was(tmp_path: Path) -> None:
    saga = a_rich_saga()
    first = Journal(tmp_path)
    first.write(saga, {"drain": "{}"})
    first.close()
    again = Journal(tmp_path)
    assert again.sagas() == [saga]
    assert again.configs(saga.id) == {"drain": "{}"}


def test_sagas_stay_in_order_whatever_is_written_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in (3, 1, 2):
        journal.write(done(number), {})
    journal.write(done(3), {})
    assert [saga.id for saga in journal.sagas()] == ["E3", "E1", "E2"]


def test_only_so_many_are_kept_and_no_live_one_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(a_rich_saga(), {"drain": "{}"})
    for number in range(100, 100 + KEPT + 5):
        journal.write(done(number), {"drain": "{}"})
    kept = [saga.id for saga in journal.sagas()]
    assert len(kept) == KEPT + 1
    assert (kept[0], kept[1]) == ("E1", "E105")
    assert journal.configs("E100") == {}


def test_anew_forgets_the_handlers_of_the_time_before(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(done(1), {"drain": "{}"})
    journal.write(transitions.appeared(event(), T0), {}, anew=True)
    assert journal.configs("E1") == {}


def test_a_new_journal_says_so_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.is_new()
    journal.close()
    journal = Journal(tmp_path)
    assert journal.is_new()
    journal.mark_old(transitions.after_loss(T0))
    assert not journal.is_new()
    assert [saga.id for saga in journal.sagas()] == [transitions.LOST]


def test_what_peers_told_comes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.peer_ready("E1", "b", T0)
    journal.peer_ready("E1", "b", after(1))
    journal.peer_ready("E2", "c", T0)
    journal.close()
    assert Journal(tmp_path).peers() == {"E1": {"b": after(1)}, "E2": {"c": T0}}


def test_what_peers_told_and_nobody_can_read_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.peer_ready("E1", "b", T0)
    with sqlite3.connect(tmp_path / "journal.db") as raw:
        raw.execute("INSERT INTO peers VALUES ('E2', 'c', 'some time ago')")
    raw.close()
    assert journal.peers()["E1"] == {"b": T0}


def test_what_cannot_be_read_any_more_is_an_error_of_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal._connection.execute("DROP TABLE marks")
    journal._connection.execute("DROP TABLE sagas")
    with pytest.raises(JournalError, match="cannot be read"):
        journal.is_new()
    with pytest.raises(JournalError, match="cannot be read"):
        journal.sagas()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    Journal(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "journal.db").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"this is no database, and it is long enough to show it" * 20, b"SQLite format 3\0"]
)
def test_one_that_cannot_be_read_is_put_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.db").write_bytes(content)
    journal = Journal(tmp_path)
    assert journal.is_new()
    journal.write(a_rich_saga(), {})
    assert journal.put_aside == tmp_path / "journal.db.unreadable-1"
    assert journal.put_aside.read_bytes() == content


def test_one_of_another_time_is_put_aside(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(a_rich_saga(), {})
    journal.close()
    with sqlite3.connect(tmp_path / "journal.db") as raw:
        raw.execute("""UPDATE sagas SET content = '{"later": true}'""")
    raw.close()
    journal = Journal(tmp_path)
    assert journal.sagas() == []
    journal.close()
    (tmp_path / "journal.db").write_bytes(b"no database" * 100)
    Journal(tmp_path)
    assert (tmp_path / "journal.db.unreadable-2").exists()


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
    journal = Journal(tmp_path / "closed")
    journal.write(a_rich_saga(), {"drain": "{}"})
    journal.close()
    journal = Journal(tmp_path / "open")
    journal.write(a_rich_saga(), {"drain": "{}"})
    shutil.copytree(tmp_path / "open", tmp_path / "crashed")
    with full_disk():
        for name in ("closed", "crashed"):
            with pytest.raises(JournalError, match="cannot be used"):
                Journal(tmp_path / name)
            found = Journal(tmp_path / name, writable=False)
            assert found.sagas() == [a_rich_saga()]
            assert found.configs("E1") == {"drain": "{}"}
            found.close()
    with pytest.raises(JournalError, match="cannot be read"):
        Journal(tmp_path / "nowhere", writable=False)


def damage(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / "journal.db") as raw:
        raw.execute(statement)
    raw.close()


@pytest.mark.parametrize(
    "content", ["CAST(x'ff' AS TEXT)", "CAST(x'7b22ff' AS TEXT)", "'{'", "x'00'", "(SELECT content FROM sagas LIMIT 1)"]
)
def test_one_saga_that_cannot_be_read_is_all_that_is_lost(tmp_path: Path, content: str) -> None:
    journal = Journal(tmp_path)
    journal.mark_old(None)
    journal.write(a_rich_saga(), {"drain": "{}"})
    journal.close()
    damage(tmp_path, f"INSERT INTO sagas VALUES ('E7', true, 7, {content})")
    journal = Journal(tmp_path)
    assert journal.sagas() == [a_rich_saga()]
    assert (journal.dropped, journal.put_aside) == (1, tmp_path / "journal.db.unreadable-1")
    assert not journal.is_new()
    with sqlite3.connect(tmp_path / "journal.db.unreadable-1") as copy:
        assert copy.execute("SELECT count(*) FROM sagas").fetchone() == (2,)
    copy.close()
    journal.close()
    assert Journal(tmp_path).put_aside is None


def test_when_no_live_saga_could_be_read_it_is_as_after_a_loss(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.mark_old(transitions.after_loss(T0))
    journal.write(replace(transitions.after_loss(T0), state=State.DONE), {})
    journal.write(a_rich_saga(), {})
    journal.close()
    damage(tmp_path, "UPDATE sagas SET content = '{' WHERE id = 'E1'")
    journal = Journal(tmp_path)
    assert journal.is_new()
    journal.mark_old(transitions.after_loss(T0))
    assert [saga.live for saga in journal.sagas()] == [True]


@pytest.mark.parametrize("table", ["sagas", "handlers", "peers", "marks"])
def test_one_with_other_tables_is_put_aside(tmp_path: Path, table: str) -> None:
    damage(tmp_path, f"CREATE TABLE {table} (something TEXT)")
    journal = Journal(tmp_path)
    assert journal.put_aside
    assert (journal.sagas(), journal.peers(), journal.configs("E1"), journal.is_new()) == ([], {}, {}, True)


def test_a_text_that_cannot_be_read_takes_no_other_with_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(a_rich_saga(), {"drain": "{}"})
    journal.close()
    damage(tmp_path, "INSERT INTO handlers VALUES ('E1', 'other', CAST(x'ff' AS TEXT))")
    assert Journal(tmp_path).configs("E1") == {"drain": "{}", "other": ""}


@pytest.mark.parametrize("writable", [True, False])
def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path: Path, writable: bool) -> None:
    os.mkfifo(tmp_path / "journal.db", 0o600)
    with pytest.raises(errors.RefusedError, match=r"journal\.db is neither a file nor a directory"):
        Journal(tmp_path, writable=writable)


@pytest.mark.parametrize("made", [Journal, Lock])
def test_a_place_that_cannot_be_used(tmp_path: Path, made: type[Journal | Lock]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be used"):
        made(tmp_path / "file")
    assert is_running(tmp_path / "nowhere") is None


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    saga = a_rich_saga()
    journal.write(saga, {})
    journal._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(JournalError, match="cannot be written"):
        journal.write(done(1), {})
    journal._connection.execute("PRAGMA query_only = OFF")
    journal.peer_ready("E1", "b", T0)
    assert journal.sagas() == [saga]


# A copy in memory


def test_what_is_written_to_a_copy_does_not_reach_the_file(tmp_path: Path) -> None:
    saga = a_rich_saga()
    journal = Journal(tmp_path)
    journal.write(saga, {"drain": "{}"})
    copy = Copy(tmp_path)
    assert (copy.sagas(), copy.configs(saga.id), copy.is_new()) == ([saga], {"drain": "{}"}, True)
    copy.write(done(7), {})
    copy.mark_old(None)
    copy.peer_ready("E1", "web-1", T0)
    assert (len(copy.sagas()), copy.is_new(), copy.is_there()) == (2, False, True)
    assert (journal.sagas(), journal.is_new(), journal.peers()) == ([saga], True, {})
    journal.close()
    copy.close()


def test_a_copy_of_nothing_makes_no_file(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "nowhere")
    copy.write(a_rich_saga(), {})
    assert copy.sagas() == [a_rich_saga()]
    assert not (tmp_path / "nowhere").exists()
    copy.close()


def test_a_journal_that_cannot_be_read_cannot_be_copied_and_stays(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="cannot be read"):
        Copy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
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


def test_who_only_looks_is_not_in_the_way(tmp_path: Path) -> None:
    """`agent status` asks for the lock, for a moment, just when the agent starts."""
    Lock(tmp_path).release()
    looking = sqlite3.connect(tmp_path / "lock", isolation_level=None, check_same_thread=False)
    looking.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.1, looking.close)
    timer.start()
    Lock(tmp_path).release()
    timer.join()


def test_a_lock_that_is_none_is_held_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"this is no database, and it is long enough to show it" * 20)
    assert not is_running(tmp_path)
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
    lock.release()


def test_a_lock_that_was_removed_keeps_nobody_out(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert lock.is_there()
    (tmp_path / "lock").unlink()
    assert not lock.is_there()
    other = Lock(tmp_path)
    assert (lock.is_there(), other.is_there()) == (False, True)
    lock.release()
    assert is_running(tmp_path)
    other.release()


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(errors.RefusedError, match=f"the state directory {tmp_path} can be changed by other users"):
        Lock(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_no_lock_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock", 0o600)
    assert is_running(tmp_path) is None
    with pytest.raises(errors.RefusedError, match="lock is neither a file nor a directory"):
        Lock(tmp_path)


def test_what_others_could_have_written_is_no_lock_nor_made_anew(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        Lock(tmp_path).release()
    finally:
        os.umask(mask)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "lock").chmod(0o666)
    with pytest.raises(errors.RefusedError, match="lock can be changed by other users"):
        Lock(tmp_path)


def test_a_lock_that_can_only_be_read_is_none(tmp_path: Path) -> None:
    Lock(tmp_path).release()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    program = (
        "import sys; from pathlib import Path; from forenotice.agent import journal;"
        " print(journal.is_running(Path(sys.argv[1]))); journal.Lock(Path(sys.argv[1]))"
    )
    ran = [sys.executable, "-c", program, str(tmp_path)]
    told = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", str(tmp_path), *ran], capture_output=True, text=True, check=False
    )
    if "mount:" in told.stderr or "unshare:" in told.stderr:
        assert os.environ.get("CI") != "true", "this test needs to mount a file system of its own"
        pytest.skip("needs to mount a file system of its own, as root or in a user namespace")
    assert told.stdout == "None\n"
    assert "JournalError" in told.stderr
