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

MEMOS = {"drain": "it ran"}


def saga(number: int = 1, state: State = State.SEEN) -> Saga:
    return replace(transitions.appeared(event(id=f"E{number}"), T0), state=state)


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
    with unwritable(found):
        assert not found.keep(saga(state=State.PREPARING), {"drain": "{}"}, forward=True)
        assert found.sagas["E1"].state is State.SEEN
        assert not found.keep(replace(found.sagas["E1"], memos=MEMOS), {}, forward=True)
    assert found.keep(saga(state=State.PREPARING), {"drain": "{}"}, forward=True)
    assert found.keep(replace(found.sagas["E1"], memos=MEMOS), {}, forward=True)
    again = sagas(tmp_path)
    assert again.sagas["E1"] == replace(saga(state=State.PREPARING), memos=MEMOS)
    assert again.configs == {"E1": {"drain": "{}"}}
    assert log.getvalue().count("The state directory can be used again") == 2


def test_what_goes_back_is_done_and_written_later(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.begin(saga())
    with unwritable(found):
        assert found.keep(saga(state=State.RECOVERING), {}, forward=False)
        found.write_unwritten()
        assert found.sagas["E1"].state is State.RECOVERING
        assert kept(tmp_path) == {"E1": State.SEEN}
    found.write_unwritten()
    assert kept(tmp_path) == {"E1": State.RECOVERING}


def test_what_was_left_is_written_with_what_comes_next(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.begin(saga())
    with unwritable(found):
        found.keep(saga(state=State.RECOVERING), {}, forward=False)
    found.keep(replace(saga(state=State.RECOVERING), why="another sentence"), {}, forward=False)
    assert kept(tmp_path) == {"E1": State.RECOVERING}


def test_sentences_alone_are_not_written(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.begin(saga())
    with unwritable(found):
        assert found.keep(replace(saga(), why="waits"), {}, forward=True)
        assert found.writable
    assert found.sagas["E1"].why == "waits"


def test_a_new_journal_is_settled_once(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    assert found.is_new()
    with unwritable(found):
        assert not found.mark_old(saga())
    assert found.is_new()
    assert found.mark_old(saga())
    assert not found.is_new()
    assert [each.id for each in found.live] == ["E1"]
    assert not sagas(tmp_path).is_new()


def test_what_peers_told_is_remembered(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.peer_ready("E1", "b", T0)
    found.peer_ready("E1", "b", after(1))
    assert sagas(tmp_path).peers == found.peers == {"E1": {"b": after(1)}}


def test_only_so_many_that_are_over_are_remembered(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    for number in range(KEPT + 3):
        found.begin(saga(number))
        found.peer_ready(f"E{number}", "b", T0)
        found.keep(saga(number, State.DONE), {}, forward=False)
    assert (len(found.sagas), "E0" in found.sagas, found.live) == (KEPT, False, [])
    assert (found.configs, found.peers) == ({}, {})
    assert [each.id for each in found.recent] == [f"E{number}" for number in range(KEPT - 7, KEPT + 3)]


def test_no_journal_no_sagas(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    found = sagas(tmp_path / "state")
    assert (found.open, found.writable, found.is_new(), found.begin(saga())) == (False, False, False, False)
    (tmp_path / "state").unlink()
    found.try_to_open()
    assert (found.open, found.writable) == (True, True)
    found.close()


def test_a_peer_that_is_no_longer_ready_is_forgotten(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.peer_ready("E1", "b", T0)
    found.peer_ready("E1", "c", T0)
    found.peer_ready("E1", "b", None)
    found.peer_ready("E1", "d", None)
    assert sagas(tmp_path).peers == found.peers == {"E1": {"c": T0}}


def test_that_a_peer_is_not_ready_is_written_as_soon_as_the_disk_allows_it(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.peer_ready("E1", "b", T0)
    with unwritable(found):
        found.peer_ready("E1", "b", None)
    assert sagas(tmp_path).peers == {"E1": {"b": T0}}
    found.peer_ready("E1", "b", None)
    assert sagas(tmp_path).peers == {}


def test_who_was_ready_in_an_event_that_is_over_is_not_ready_when_it_comes_again(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.peer_ready("E1", "b", T0)
    assert found.begin(saga())
    assert sagas(tmp_path).peers == found.peers == {"E1": {"b": T0}}, "others may see it first"
    found.keep(saga(state=State.DONE), {}, forward=False)
    assert sagas(tmp_path).peers == found.peers == {}
    found.peer_ready("E1", "b", T0)
    found.begin(saga())
    assert sagas(tmp_path).peers == found.peers == {}


def test_what_goes_back_is_done_from_a_disk_that_was_full_at_the_start(tmp_path: Path) -> None:
    first = sagas(tmp_path)
    first.mark_old(None)
    first.begin(saga(1))
    first.keep(saga(1, State.PREPARING), {"drain": "{}"}, forward=True)
    first.begin(saga(2))
    first.close()
    log = io.StringIO()
    with full_disk():
        found = sagas(tmp_path, log)
        assert (found.open, found.unread) == (False, False)
        assert found.sagas["E1"] == saga(1, State.PREPARING)
        assert found.configs == {"E1": {"drain": "{}"}, "E2": {}}
        assert not found.begin(saga(3))
        assert not found.keep(saga(2, State.PREPARING), {}, forward=True)
        assert found.keep(saga(1, State.DONE), {}, forward=False)
        found.try_to_open()
        assert found.sagas["E1"].state is State.DONE
    found.try_to_open()
    found.write_unwritten()
    assert (found.open, found.is_new(), list(found.configs)) == (True, False, ["E2"])
    assert kept(tmp_path) == {"E1": State.DONE, "E2": State.SEEN}
    assert log.getvalue().count("An event is resumed") == 2


def test_a_journal_that_was_not_read_is_not_taken_for_none(tmp_path: Path) -> None:
    assert not sagas(tmp_path / "other").unread
    (tmp_path / "journal.db").mkdir()
    found = sagas(tmp_path)
    assert (found.open, found.unread) == (False, True)
    (tmp_path / "journal.db").rmdir()
    assert not found.unread


def test_what_is_told_of_events_that_are_not_known_is_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_only_so_many_events_that_are_not_known_are_kept(tmp_path: Path) -> None:
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


def test_no_event_has_any_number_of_vms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sagas, "MOST_PEERS", 2)
    found = sagas(tmp_path)
    for name in ("a", "b", "c"):
        found.peer_ready("E1", name, T0)
    assert found.peers == {"E1": {"a": T0, "b": T0}}


def test_it_is_opened_only_with_the_lock(tmp_path: Path) -> None:
    first = sagas(tmp_path)
    first.begin(saga())
    first.close()
    others = Lock(tmp_path)
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
    found.keep(saga(1, State.PREPARING), {"drain": "{}"}, forward=True)
    found.begin(saga(2))
    state.rename(tmp_path / "gone")
    if replaced:
        other = sagas(state)
        other.begin(saga(2))
        other.begin(saga(3))
    else:
        (tmp_path / "state").write_text("in the way")
        assert not found.keep(saga(1, State.APPROVED), {}, forward=True)
        assert found.keep(saga(2, State.RECOVERING), {}, forward=False)
        (tmp_path / "state").unlink()
        found.try_to_open()
    assert found.keep(saga(1, State.APPROVED), {}, forward=True)
    found.write_unwritten()
    again = sagas(state)
    assert again.sagas["E1"].state is State.APPROVED
    assert again.sagas["E2"].state is (State.SEEN if replaced else State.RECOVERING)
    assert ("E3" in again.sagas, again.is_new()) == (replaced, False)
    assert again.configs["E1"] == {"drain": "{}"}


def test_what_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    found = sagas(tmp_path)
    found.begin(saga())
    found.close()
    (tmp_path / "journal.db").chmod(0o666)
    log = io.StringIO()
    assert (sagas(tmp_path, log).sagas, "journal.db can be changed by other users" in log.getvalue()) == ({}, True)


def test_what_others_could_have_written_is_not_even_looked_at(tmp_path: Path) -> None:
    """A directory that cannot be locked is only read, and what goes back is done."""
    found = sagas(tmp_path)
    found.begin(saga())
    found.close()

    def unlockable() -> None:
        raise JournalError("read-only file system")

    assert sagas(tmp_path, lock=unlockable).sagas
    (tmp_path / "journal.db").chmod(0o666)
    assert not sagas(tmp_path, lock=unlockable).sagas
