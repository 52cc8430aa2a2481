"""The sagas in memory and in the journal, and what happens when the disk fails."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.parts import sagas
from tests.agent.rules.builders import T0, after, event
from tests.agent.test_journal import full_disk

from forenotice.agent import sagas as agent_sagas
from forenotice.agent.journal import KEPT, JournalError, Lock
from forenotice.agent.rules import transitions
from forenotice.agent.rules.saga import Saga, State
from forenotice.agent.sagas import Sagas


def saga(number: int = 1, state: State = State.SEEN, **more: object) -> Saga:
    return replace(transitions.appeared(event(id=f"E{number}"), T0), state=state, **more)  # type: ignore[arg-type]


@contextmanager
def unwritable(memory: Sagas) -> Iterator[None]:
    assert memory._journal is not None
    memory._journal._connection.execute("PRAGMA query_only = ON")
    yield
    memory._journal._connection.execute("PRAGMA query_only = OFF")


def kept(directory: Path) -> dict[str, State]:
    """What the next agent would find."""
    return {name: saga.state for name, saga in sagas(directory).sagas.items()}


def test_what_goes_forward_is_written_first(tmp_path: Path) -> None:
    log = io.StringIO()
    found = sagas(tmp_path, log)
    with unwritable(found):
        assert not found.begin(saga())
        assert (found.sagas, found.writable) == ({}, False)
    assert found.begin(saga())
    assert found.writable
    preparing = saga(state=State.PREPARING, configs={"drain": "{}"}, memos={"drain": "it ran"})
    with unwritable(found):
        assert not found.keep(preparing, forward=True)
        assert found.sagas["E1"] == saga()
        assert found.keep(replace(saga(), why="waits"), forward=True), "a sentence alone is not written"
    assert found.keep(preparing, forward=True)
    assert sagas(tmp_path).sagas["E1"] == preparing
    assert log.getvalue().count("The state directory can be used again") == 2


def test_what_goes_back_is_done_and_written_later(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    for number in (1, 2):
        found.begin(saga(number))
    with unwritable(found):
        for number in (1, 2):
            assert found.keep(saga(number, State.RECOVERING))
        found.write_unwritten()
        assert {each.state for each in found.live} == {State.RECOVERING}
        assert kept(tmp_path) == {"E1": State.SEEN, "E2": State.SEEN}
    found.keep(saga(1, State.RECOVERING, why="another sentence"))
    assert kept(tmp_path) == {"E1": State.RECOVERING, "E2": State.SEEN}, "with what comes next"
    found.write_unwritten()
    assert kept(tmp_path)["E2"] is State.RECOVERING


def test_a_new_journal_is_settled_once(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    with unwritable(found):
        assert not found.mark_old(saga())
    assert found.is_new()
    assert found.mark_old(saga())
    assert not found.is_new()
    assert [each.id for each in found.live] == ["E1"]
    assert not sagas(tmp_path).is_new()


def test_only_so_many_that_are_over_are_remembered(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    assert found._journal is not None
    found._journal._connection.execute("PRAGMA synchronous = OFF")
    for number in range(KEPT + 3):
        found.begin(saga(number))
        found.peer_ready(f"E{number}", "b", T0)
        found.keep(saga(number, State.DONE))
    assert (len(found.sagas), "E0" in found.sagas, found.live, found.peers) == (KEPT, False, [], {})
    assert [each.id for each in found.recent] == [f"E{number}" for number in range(KEPT - 7, KEPT + 3)]


# What peers report


def test_the_readiness_of_peers_is_remembered_until_they_withdraw_it(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    for name, ready_at in (("b", T0), ("b", after(1)), ("c", T0), ("d", None)):
        found.peer_ready("E1", name, ready_at)
    assert sagas(tmp_path).peers == found.peers == {"E1": {"b": after(1), "c": T0}}
    with unwritable(found):
        found.peer_ready("E1", "b", None)
    assert sagas(tmp_path).peers["E1"].keys() == {"b", "c"}
    found.peer_ready("E1", "b", None)
    assert sagas(tmp_path).peers == found.peers == {"E1": {"c": T0}}, "written as soon as the disk allows it"


def test_readiness_for_an_event_that_is_over_does_not_count_when_it_comes_again(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.peer_ready("E1", "b", T0)
    assert found.begin(saga())
    assert sagas(tmp_path).peers == found.peers == {"E1": {"b": T0}}, "others may see it first"
    found.keep(saga(state=State.DONE))
    assert sagas(tmp_path).peers == found.peers == {}
    found.peer_ready("E1", "b", T0)
    found.begin(saga())
    assert sagas(tmp_path).peers == found.peers == {}


def test_readiness_for_unknown_events_is_kept_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sagas(tmp_path)
    found.begin(saga())
    for name in ("E1", "E2"):
        found.peer_ready(name, "b", T0)
    found.peer_ready("E3", "b", None)
    found.forget_unseen()
    assert sagas(tmp_path).peers == found.peers == {"E1": {"b": T0}, "E2": {"b": T0}}
    again = sagas(tmp_path)
    monkeypatch.setattr(agent_sagas, "UNSEEN_SECONDS", 0.0)
    for each in (found, again):
        each.forget_unseen()
        assert sagas(tmp_path).peers == each.peers == {"E1": {"b": T0}}


def test_peers_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sagas(tmp_path)
    found.begin(saga())
    for number in range(1, KEPT + 4):
        found.peer_ready(f"E{number}", "b", T0)
    found.peer_ready("E2", "b", T0)
    found.forget_unseen()
    assert len(found.peers) == len(sagas(tmp_path).peers) == KEPT + 1
    assert {"E1", "E2"} <= found.peers.keys()
    assert not {"E3", "E4"} & found.peers.keys()
    assert found._received_at.keys() == found.peers.keys()
    monkeypatch.setattr(agent_sagas, "MOST_PEERS", 2)
    for name in ("c", "d"):
        found.peer_ready("E1", name, T0)
    assert found.peers["E1"] == {"b": T0, "c": T0}


# Opening


def test_what_goes_back_is_done_from_a_disk_that_was_full_at_the_start(tmp_path: Path) -> None:
    first = sagas(tmp_path)
    first.mark_old(None)
    first.begin(saga(1))
    first.keep(saga(1, State.PREPARING), forward=True)
    first.begin(saga(2))
    first.close()
    log = io.StringIO()
    with full_disk():
        found = sagas(tmp_path, log)
        assert (found.open, found.unread) == (False, False)
        assert found.sagas["E1"] == saga(1, State.PREPARING)
        assert not found.begin(saga(3))
        assert not found.keep(saga(2, State.PREPARING), forward=True)
        assert found.keep(saga(1, State.DONE))
        found.try_to_open()
        assert found.sagas["E1"].state is State.DONE
    found.try_to_open()
    found.write_unwritten()
    assert (found.open, found.is_new()) == (True, False)
    assert kept(tmp_path) == {"E1": State.DONE, "E2": State.SEEN}
    assert log.getvalue().count("An event is resumed") == 2


def test_while_there_is_no_journal_there_are_no_sagas(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    found = sagas(tmp_path / "state")
    assert (found.open, found.writable, found.is_new(), found.begin(saga())) == (False, False, False, False)
    (tmp_path / "state").unlink()
    assert not found.unread
    found.try_to_open()
    assert (found.open, found.writable) == (True, True)
    (tmp_path / "other" / "journal.db").mkdir(parents=True, mode=0o700)
    other = sagas(tmp_path / "other")
    assert (other.open, other.unread) == (False, True), "what cannot be read is not taken for none"


def test_it_is_opened_only_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sagas(tmp_path)
    first.begin(saga())
    first.close()
    others = Lock(tmp_path)
    monkeypatch.setattr("forenotice.agent.journal.LOCK_TIMEOUT", 0.01)
    found = sagas(tmp_path, lock=lambda: Lock(tmp_path).release())
    assert (found.open, found.sagas, found.unread) == (False, {}, True)
    others.release()
    found.try_to_open()
    assert (found.open, list(found.sagas)) == (True, ["E1"])


@pytest.mark.parametrize("replaced", [False, True])
def test_a_journal_that_was_removed_is_made_anew_before_anything_goes_forward(tmp_path: Path, replaced: bool) -> None:
    state = tmp_path / "state"
    found = sagas(state)
    found.mark_old(None)
    found.begin(saga(1))
    found.keep(saga(1, State.PREPARING), forward=True)
    found.begin(saga(2))
    state.rename(tmp_path / "gone")
    if replaced:
        other = sagas(state)
        other.begin(saga(2))
        other.begin(saga(3))
    else:
        (tmp_path / "state").write_text("in the way")
        assert not found.keep(saga(1, State.APPROVED), forward=True)
        assert found.keep(saga(2, State.RECOVERING))
        (tmp_path / "state").unlink()
        found.try_to_open()
    assert found.keep(saga(1, State.APPROVED), forward=True)
    found.write_unwritten()
    again = sagas(state)
    assert again.sagas["E1"].state is State.APPROVED
    assert again.sagas["E2"].state is (State.SEEN if replaced else State.RECOVERING)
    assert ("E3" in again.sagas, again.is_new()) == (replaced, False)


def test_what_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    """Neither with the lock, nor from a directory that cannot be locked and is only read."""

    def unlockable() -> None:
        raise JournalError("read-only file system")

    found = sagas(tmp_path)
    found.begin(saga())
    found.close()
    assert sagas(tmp_path, lock=unlockable).sagas
    (tmp_path / "journal.db").chmod(0o666)
    log = io.StringIO()
    assert not sagas(tmp_path, log).sagas
    assert "journal.db can be changed by other users" in log.getvalue()
    assert not sagas(tmp_path, lock=unlockable).sagas
