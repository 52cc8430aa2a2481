"""History: pages, exports, what is pruned; and backups, whose documents guests never take for what they have seen."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.service.rig import OPERATOR, START, Rig

from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.service import history, housekeeping, queries
from forenotice.service.calls import Call
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.store.opener import open_store
from forenotice.wire import document

DAY = timedelta(days=1)


def test_the_life_of_an_event_is_told_to_its_end(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.RESTART, "db", reason="new kernel")
    (event,) = operation.events
    rig.approve("db", "vm:db", event.id)
    rig.run(120)
    told = history.page(rig.service, JournalFilter(event=event.id.lower())).items
    assert [entry.action for entry in told] == ["event.scheduled", "event.approved", "event.started", "event.completed"]
    assert told[-1].data["results"] == {"db": "done"}
    assert told[0].by == OPERATOR.actor
    of_vm = rig.actions(vm="db", since=START)
    assert set(rig.actions(event=event.id)) < set(of_vm)
    assert {"operation.scheduled", "operation.started", "operation.completed", "vm.added"} <= set(of_vm)


def test_pages_in_both_directions_end(rig: Rig) -> None:
    oldest = history.page(rig.service, limit=10_000).items
    for newest_first in (False, True):
        found: list[Any] = []
        after: Any = None
        while True:
            page = history.page(rig.service, limit=7, newest_first=newest_first, after=after)
            found += page.items
            after = page.next
            if after is None:
                break
        assert found == (oldest[::-1] if newest_first else oldest)


def test_an_export_ends_with_what_was_there_when_it_began(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MANY", 5)
    before = history.page(rig.service, limit=10_000).items
    pages = history.everything(rig.service)
    found = list(next(pages))
    rig.schedule(Kind.RESTART, "db")
    for page in pages:
        found += page
    assert found == before
    assert list(history.everything(rig.service, JournalFilter(vm="nobody"))) == []


def test_what_is_old_and_over_is_forgotten_everywhere(rig: Rig) -> None:
    (over,) = rig.schedule(Kind.RESTART, "db")
    rig.approve("db", "vm:db", over.events[0].id)
    rig.run(120)
    (live,) = rig.schedule(Kind.DEGRADED_HARDWARE, "host-a")
    rig.clock.advance(days=3)
    before = rig.clock.now() - DAY
    foretold = history.prune(rig.service, OPERATOR, before=before, dry_run=True)
    assert rig.operation(over).status == "Completed"
    pruned = history.prune(rig.service, OPERATOR, before=before)
    assert pruned == replace(foretold, complete=True, dry_run=False)
    assert (pruned.operations, pruned.events, pruned.rollouts) == (1, 1, 0)
    assert pruned.kept == len(rig.actions(until=before)) > 0
    assert {entry.operation for entry in history.page(rig.service, JournalFilter(until=before)).items} == {live.id}
    with pytest.raises(errors.NotFoundError):
        rig.operation(over)
    assert [each.id for each in queries.operations(rig.service).items] == [live.id]
    assert [each.id for each in queries.events(rig.service, vm="db").items] == []
    started, noted = rig.entries(action="history.")
    assert (started.action, noted.action) == ("history.prune_started", "history.pruned")
    assert noted.by == OPERATOR.actor
    told = msgspec.to_builtins(foretold)
    assert noted.data == {name: told[name] for name in ("before", *history.REMOVED)}


def test_the_last_day_is_never_forgotten(rig: Rig) -> None:
    for moment in (START, START + DAY, START - DAY + timedelta(seconds=1)):
        with pytest.raises(errors.RefusedError, match="the last 24 hours"):
            history.prune(rig.service, OPERATOR, before=moment)
    with pytest.raises(errors.RefusedError, match="zone"):
        history.prune(rig.service, OPERATOR, before=START.replace(tzinfo=None))
    assert history.prune(rig.service, OPERATOR, before=START - DAY).entries == 0


def test_the_same_key_prunes_once(rig: Rig) -> None:
    rig.clock.advance(days=3)
    call = Call(actor="ada", token_id="t1", key="k", digest="d")
    first = history.prune(rig.service, call, before=START + DAY)
    assert first.entries > 0
    assert history.prune(rig.service, call, before=START + DAY) == first
    with pytest.raises(errors.ConflictError):
        history.prune(rig.service, Call(actor="ada", token_id="t1", key="k", digest="other"), before=START)
    assert rig.actions(action="history.pruned") == ["history.pruned"]


def test_what_takes_too_long_is_gone_on_with(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.clock.advance(days=3)
    monkeypatch.setattr("forenotice.store.retention.ENTRIES", 5)
    monkeypatch.setattr(history, "PATIENCE_SECONDS", 0.0)
    foretold = history.prune(rig.service, OPERATOR, before=START + DAY, dry_run=True)
    first = history.prune(rig.service, OPERATOR, before=START + DAY)
    assert (first.entries, first.complete) == (5, False)
    monkeypatch.undo()
    second = history.prune(rig.service, OPERATOR, before=START + DAY)
    assert second.complete
    # The newest entry of those days is no longer the newest of all.
    assert first.entries + second.entries == foretold.entries + 1


SCOPE = "vm:db"


def seen(rig: Rig) -> tuple[str, str, int]:
    """What a guest compares: tag, epoch and incarnation."""
    rig.service.refresh()
    shown = rig.published.by_key[SCOPE].document
    assert shown is not None
    return document.etag(shown), shown.tag, shown.incarnation


def test_neither_tags_nor_incarnations_repeat_or_fall(sqlite_store: Store, tmp_path: Path) -> None:
    rig = Rig(sqlite_store).settle_demo()
    backup = tmp_path / "backup.db"
    sqlite_store.backup(backup)
    known = [seen(rig)]
    for _ in range(3):
        rig.clock.advance(seconds=1)
        rig.schedule(Kind.RESTART, "db")
        known.append(seen(rig))
        rig.run(3600, step=60)
        known.append(seen(rig))
        housekeeping.run(rig.service)
        rig.service.store.close()

        # Somebody puts the backup in its place, without asking us.
        shutil.copy(backup, tmp_path / "forenotice.db")
        clock = rig.clock
        rig = Rig(open_store(f"sqlite:///{tmp_path / 'forenotice.db'}", migrate=False), clock=clock)
        housekeeping.notice_restored_backup(rig.service)
        known.append(seen(rig))
        assert rig.actions()[-1] == "database.restored"
        before = rig.actions()
        housekeeping.notice_restored_backup(rig.service)
        assert rig.actions() == before
    rig.service.store.close()
    tags, epochs, incarnations = zip(*known, strict=True)
    assert len(set(tags)) == len(tags)
    assert list(incarnations) == sorted(set(incarnations))
    assert max(incarnations) < 2**31
    assert len(set(epochs)) == 4


def test_a_backup_is_noticed_however_young_it_is(sqlite_store: Store, tmp_path: Path) -> None:
    """After a crash the mark may be older than the backup."""
    rig = Rig(sqlite_store).settle_demo()
    housekeeping.run(rig.service)
    rig.schedule(Kind.RESTART, "db")
    sqlite_store.backup(tmp_path / "backup.db")
    before = seen(rig)
    sqlite_store.close()
    for database in ("forenotice.db", "on another machine.db"):
        shutil.copy(tmp_path / "backup.db", tmp_path / database)
        rig = Rig(open_store(f"sqlite:///{tmp_path / database}", migrate=False))
        housekeeping.notice_restored_backup(rig.service)
        after = seen(rig)
        assert (after[0] != before[0], after[1] != before[1], after[2] > before[2]) == (True, True, True)
        rig.service.store.close()


def test_what_goes_on_where_it_was_stays_in_its_epoch(sqlite_store: Store, tmp_path: Path) -> None:
    rig = Rig(sqlite_store).settle_demo()
    housekeeping.run(rig.service)
    # Beyond the mark, as after a crash.
    rig.schedule(Kind.RESTART, "db")
    before = seen(rig)
    sqlite_store.close()
    rig = Rig(open_store(f"sqlite:///{tmp_path / 'forenotice.db'}", migrate=False))
    housekeeping.notice_restored_backup(rig.service)
    assert seen(rig) == before
    rig.service.store.close()


def test_a_database_of_any_kind_can_be_told(rig: Rig) -> None:
    before = seen(rig)
    epoch = housekeeping.begin_epoch(rig.service)
    after = seen(rig)
    assert after[2] == epoch > before[2]
    assert (after[0] != before[0], after[1] != before[1]) == (True, True)
    assert housekeeping.begin_epoch(rig.service) > epoch


def test_the_file_has_a_change_of_the_fleet_soon(sqlite_store: Store, tmp_path: Path) -> None:
    rig = Rig(sqlite_store)
    housekeeping.resume(rig.service, alone=True)
    housekeeping.checkpoint_fleet(rig.service)
    rig.settle_demo()
    assert rig.service.fleet_changed
    housekeeping.checkpoint_fleet(rig.service)
    assert not rig.service.fleet_changed
    housekeeping.checkpoint_fleet(rig.service)
    copied = open_store(f"sqlite:///{shutil.copy(tmp_path / 'forenotice.db', tmp_path / 'copy.db')}", migrate=False)
    with copied.read() as reader:
        assert "db" in reader.worlds.fleet().vms
    copied.close()


def test_work_goes_on_though_the_mark_cannot_be_written(sqlite_store: Store, tmp_path: Path) -> None:
    rig = Rig(sqlite_store).settle_demo()
    (tmp_path / "forenotice.db.mark-new").mkdir()
    rig.schedule(Kind.RESTART, "db")
    housekeeping.run(rig.service)
    (tmp_path / "forenotice.db.mark-new").rmdir()
    housekeeping.run(rig.service)
    marked = sqlite_store.mark()
    assert marked is not None
    assert marked.position == len(rig.actions())
