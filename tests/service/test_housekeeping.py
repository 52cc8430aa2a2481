"""A backup that is restored: guests take nothing in it for what they have seen before."""

import shutil
from pathlib import Path

from tests.service.rig import Rig

from forenotice.core.operations import Kind
from forenotice.service import housekeeping
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.wire import document

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
