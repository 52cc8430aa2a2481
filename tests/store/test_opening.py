"""Opening: made, brought up to date, or refused with advice; never repaired."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import make_url
from tests.store.samples import entry, executor_of, host, hosts_of, keep, positions

from forenotice.core import errors
from forenotice.store import opener, postgresql, schema, sqlite
from forenotice.store.database import Mark, Store
from forenotice.store.opener import open_store, replace

NEWEST = opener.OURS.newest
NEXT = f"{int(NEWEST) + 1:04}"
COLUMNS = [column.name for column in schema.hosts.columns]
BROKEN = 'op.execute("SELECT nonsense")'
LATER = """
from alembic import op
from sqlalchemy import Column, Text

revision = "{later}"
down_revision = "{newest}"


def upgrade() -> None:
    op.add_column("hosts", Column("rack", Text))
    {then}
"""


def later(folder: Path, then: str = "pass") -> opener.Revisions:
    """What a later forenotice will know."""
    (folder / "later").mkdir(exist_ok=True)
    (folder / "later" / f"{NEXT}_rack.py").write_text(LATER.format(newest=NEWEST, later=NEXT, then=then))
    ours = opener.OURS
    return opener.Revisions(names=(*ours.names, NEXT), locations=(*ours.locations, folder / "later"))


def opened(path: Path | str, *, migrate: bool = False, known: opener.Revisions = opener.OURS) -> Store:
    return open_store(f"sqlite:///{path}", migrate=migrate, known=known)


def columns(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(hosts)")]


@pytest.fixture
def crashed(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> Path:
    """A database with host `a` as a crash leaves it behind: what was written last is in the log alone."""
    keep(sqlite_store, host("a"))
    return leave(sqlite_path, tmp_path / "crashed")


def leave(path: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(path.with_name(name), folder)
    return folder / path.name


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_file_gets_a_schema_and_every_commit_is_synced(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "new folder" / "it's 100%.db"
    path.parent.mkdir()
    if exists:
        path.touch()
    with closing(opened(path)) as store:
        keep(store, host("a"))
        with store.read() as reader:
            connection = executor_of(reader)._connection
            assert connection.execute("PRAGMA journal_mode", ()).fetchone() == ("wal",)
            assert connection.execute("PRAGMA synchronous", ()).fetchone() == (2,)
    assert {each.name for each in path.parent.iterdir()} == {path.name}


def test_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(opener._MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert [each.revision for each in script.walk_revisions()][::-1] == list(opener.OURS.names)


def test_an_older_file_is_migrated_after_a_copy(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"), entry("host.added"))
    sqlite_store.close()
    copy = sqlite_path.with_name(f"forenotice.db.before-{NEXT}")
    with pytest.raises(errors.UnsoundError, match=f"is at the older revision {NEWEST}: run `forenotice serve`"):
        opened(sqlite_path, known=later(tmp_path))
    assert not copy.exists()
    opened(sqlite_path, migrate=True, known=later(tmp_path)).close()
    assert (columns(sqlite_path), columns(copy)) == ([*COLUMNS, "rack"], COLUMNS)
    with closing(opened(copy)) as kept:
        assert hosts_of(kept) == {"a"}
    opened(sqlite_path, known=later(tmp_path)).close()
    files = sorted(each.name for each in tmp_path.glob("forenotice.db*"))
    assert files == ["forenotice.db", copy.name, sqlite.mark_beside(copy).name]


def test_a_migration_that_fails_changes_nothing(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"))
    sqlite_store.close()
    for _ in range(2):
        with pytest.raises(errors.UnsoundError, match=r"cannot use the database .*nonsense"):
            opened(sqlite_path, migrate=True, known=later(tmp_path, then=BROKEN))
    assert columns(sqlite_path) == COLUMNS
    copies = {each.name for each in tmp_path.glob("*.before-*")}
    assert copies == {f"forenotice.db.before-{NEXT}", f"forenotice.db.before-{NEXT}.2"}
    with closing(opened(sqlite_path)) as again:
        assert hosts_of(again) == {"a"}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_may_be_created_by_several_at_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/new.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    together = threading.Barrier(4)

    def create(number: int) -> None:
        together.wait(60)
        with closing(open_store(url, migrate=True)) as store:
            keep(store, host(f"host-{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(4)))
    with closing(open_store(url, migrate=False)) as store:
        assert hosts_of(store) == {f"host-{number}" for number in range(4)}


NEWER = rf"newer forenotice \(its revision is {NEXT}, this one knows {NEWEST}\)"


def test_postgresql_is_migrated_only_when_asked(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.UnsoundError, match=r"has no tables yet: run `forenotice migrate --database postgresql:"):
        open_store(postgres_url, migrate=False)
    with closing(open_store(postgres_url, migrate=True)) as store:
        keep(store, host("a"))
    open_store(postgres_url.replace("postgresql:", "postgres:"), migrate=False).close()
    with pytest.raises(errors.UnsoundError, match=f"is at the older revision {NEWEST}: run `forenotice migrate"):
        open_store(postgres_url, migrate=False, known=later(tmp_path))
    with pytest.raises(errors.UnsoundError, match="nonsense"):
        open_store(postgres_url, migrate=True, known=later(tmp_path, then=BROKEN))
    open_store(postgres_url, migrate=True, known=later(tmp_path)).close()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT name, rack FROM hosts").fetchall() == [("a", None)]
    for migrate in (False, True):
        with pytest.raises(errors.UnsoundError, match=NEWER):
            open_store(postgres_url, migrate=migrate)


def test_a_newer_file_is_refused_and_neither_it_nor_its_log_is_touched(sqlite_path: Path, tmp_path: Path) -> None:
    with closing(opened(sqlite_path, migrate=True, known=later(tmp_path))) as newer:
        keep(newer, host("a"))
        left = leave(sqlite_path, tmp_path / "crashed")
    files = [left, sqlite.log_of(left)]
    before = [file.read_bytes() for file in files]
    with closing(sqlite.connect(left, "ro&immutable=1")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (opener.OURS.newest,)
    for migrate in (False, True):
        with pytest.raises(errors.UnsoundError, match=NEWER):
            opened(left, migrate=migrate)
    assert [file.read_bytes() for file in files] == before


def test_a_link_to_the_file_is_as_good_as_the_file(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"))
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(sqlite_path)
    # While another has it open, so that what makes it ours is in the log alone.
    with closing(opened(link)) as linked:
        keep(linked, host("b"))
        assert hosts_of(linked) == {"a", "b"}
        link.unlink()
        with pytest.raises(errors.UnsoundError, match=r"link\.db was removed, replaced"):
            keep(linked, host("c"))


def test_a_database_that_is_replaced_is_one_whole_file(crashed: Path, sqlite_store: Store, tmp_path: Path) -> None:
    """After a crash between two steps there is either the former one or the new one, with all that it had."""
    sqlite_store.backup(tmp_path / "backup.db")
    crashed.with_name("forenotice.db.restoring").write_text("what a restore that was killed left behind")
    kept = replace(crashed, tmp_path / "backup.db")
    assert kept is not None
    assert {each.name for each in crashed.parent.iterdir()} == {crashed.name, f"{crashed.name}.mark", kept.name}
    with closing(opened(kept)) as former:
        assert hosts_of(former) == {"a"}


def test_a_backup_beside_the_log_of_another_is_refused(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    """SQLite would take what the log says for a part of the backup."""
    keep(sqlite_store, host("a"))
    copied = tmp_path / "copied.db"
    sqlite_store.backup(copied)
    log = Path(shutil.copy(sqlite.log_of(sqlite_path), tmp_path / "copied.db-wal"))
    content = copied.read_bytes()
    with pytest.raises(errors.UnsoundError, match=r"copied\.db-wal is not of .*move it away"):
        opened(copied, migrate=True)
    assert copied.read_bytes() == content
    log.unlink()
    opened(copied).close()


@pytest.mark.parametrize("left", [None, 0, 50, 4096, 20_000])
def test_a_database_that_is_missing_or_cut_off_is_refused_where_one_was_in_use(
    sqlite_store: Store, sqlite_path: Path, tmp_path: Path, left: int | None
) -> None:
    keep(sqlite_store, host("a"), entry("host.added"))
    sqlite_store.checkpoint()
    assert sqlite_store.mark() == Mark(epoch=0, position=1)
    # The file itself has it all, without the log.
    with closing(sqlite3.connect(shutil.copy(sqlite_path, tmp_path / "copy.db"))) as connection:
        assert connection.execute("SELECT name FROM hosts").fetchall() == [("a",)]
    sqlite_store.close()
    if left is None:
        sqlite_path.unlink()
    else:
        os.truncate(sqlite_path, left)
    advice = "restore" if left else r"was in use before: put it back, or run `forenotice restore` with a backup"
    with pytest.raises(errors.UnsoundError, match=advice):
        opened(sqlite_path, migrate=True)
    assert (sqlite_path.stat().st_size if sqlite_path.exists() else None) == left
    if not left:
        sqlite.mark_beside(sqlite_path).unlink()
        opened(sqlite_path, migrate=True).close()


def test_a_mark_that_cannot_be_read_is_one_all_the_same(sqlite_path: Path) -> None:
    sqlite.mark_beside(sqlite_path).write_text("nonsense")
    assert sqlite.read_mark(sqlite_path) == Mark()
    opened(sqlite_path).close()


def damage(path: Path) -> None:
    with closing(opened(path)) as store:
        keep(store, *(host(f"host-{number:04}") for number in range(3000)))
    with closing(sqlite3.connect(path)) as connection:
        [root] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'hosts'").fetchone()
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(b"\x55" * 64)


def keep_songs(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: path.write_text("This is not a database, only text.\n" * 200), "damaged or no database"),
        (lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\x07" * 5000), "damaged or no database"),
        (damage, "damaged"),
        (keep_songs, "belongs to another program: name another"),
    ],
)
def test_what_is_no_sound_database_of_ours_is_refused_and_left_alone(
    sqlite_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    spoil(sqlite_path)
    content = sqlite_path.read_bytes()
    with pytest.raises(errors.UnsoundError, match=told):
        opened(sqlite_path, migrate=True)
    assert sqlite_path.read_bytes() == content


def test_tables_of_another_program_are_refused(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE hosts (title TEXT)")
    with pytest.raises(errors.UnsoundError, match=r"cannot use the database .*already exists"):
        open_store(postgres_url, migrate=True)


@pytest.mark.parametrize(
    "other",
    ["", "forenotice.db", "sqlite://", "sqlite:///:memory:", "mysql://x/y", "postgresql://host", "sqlite:/x", "://"],
)
def test_other_urls_are_refused(other: str) -> None:
    with pytest.raises(errors.RefusedError, match=r"give sqlite:///PATH or postgresql://"):
        open_store(other, migrate=False)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(errors.RefusedError, match=r"there is no directory .*missing for the database"):
        opened(tmp_path / "missing" / "forenotice.db")
    with pytest.raises(errors.UnavailableError, match="cannot open the database"):
        opened(tmp_path)


def test_a_url_that_is_wrong_is_not_one_that_cannot_be_reached(postgres_url: str) -> None:
    for wrong in (postgres_url.replace("/test_", "/no_test_"), postgres_url.replace("postgres@", "stranger@")):
        with pytest.raises(errors.UnsoundError, match=r"PostgreSQL refuses .* does not exist"):
            open_store(wrong, migrate=False)


def test_a_password_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(errors.UnavailableError) as caught:
        open_store(f"postgresql://me:secret@/none?host={tmp_path}", migrate=False)
    assert "secret" not in str(caught.value)


def test_what_the_url_says_wins() -> None:
    url = make_url("postgresql://me@db/x?connect_timeout=1&keepalives_idle=60")
    assert "connect_timeout" not in postgresql.connecting(url)
    assert postgresql.connecting(url)["keepalives_count"] == 3


def test_alembic_stays_out_of_a_start_that_needs_none(tmp_path: Path) -> None:
    code = (
        "import sys; from forenotice.store.opener import open_store; "
        f"open_store('sqlite:///{tmp_path}/new.db', migrate=False).close(); print('alembic' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_a_backup_equals_and_opens(sqlite_store: Store, postgres_store: Store, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"), entry("host.added"))
    sqlite_store.backup(tmp_path / "backup.db")
    keep(sqlite_store, host("b"))
    assert {each.name for each in tmp_path.glob("backup*")} == {"backup.db"}
    with closing(opened(tmp_path / "backup.db")) as copied, copied.read() as reader:
        assert hosts_of(copied) == {"a"}
        assert reader.journal.page() == [(1, entry("host.added"))]
    with pytest.raises(errors.RefusedError, match="pg_dump"):
        postgres_store.backup(tmp_path / "backup.db")


def test_a_backup_overwrites_nothing_and_leaves_nothing_behind_when_it_fails(
    sqlite_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("precious " * 100)
    with pytest.raises(errors.RefusedError, match="is there already: name a new file"):
        sqlite_store.backup(tmp_path / "text")
    with pytest.raises(errors.RefusedError, match="there is no directory"):
        sqlite_store.backup(tmp_path / "missing" / "backup.db")
    with pytest.raises(errors.UnsoundError):
        sqlite.copy(tmp_path / "text", tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))
    assert (tmp_path / "text").read_text() == "precious " * 100


SHAPE = {
    "sqlite": (
        'SELECT t.name, t.wr, c.name, c.type, c."notnull", c.dflt_value, c.pk'
        " FROM pragma_table_list t, pragma_table_xinfo(t.name) c WHERE t.type = 'table' AND t.schema = 'main'",
        "SELECT name, sql FROM sqlite_master WHERE type = 'index'",
        "SELECT name, substr(sql, instr(sql, 'CHECK')) FROM sqlite_master WHERE sql LIKE '%CHECK%'",
    ),
    "postgresql": (
        "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name"
        " FROM information_schema.columns WHERE table_schema = 'public'",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace AND contype <> 'n'",
    ),
}


def shape(url: str) -> list[set[tuple[object, ...]]]:
    """Columns, indexes and constraints."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return [set(connection.execute(query)) for query in SHAPE["sqlite"]]
    with psycopg.connect(url) as server:
        return [set(server.execute(query.encode()).fetchall()) for query in SHAPE["postgresql"]]


@pytest.fixture
def old_url(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database as revision 0014 left it, of the same kind as `url`."""
    kind = url.partition(":")[0]
    left = (Path(__file__).parent / f"revision_0014.{kind}.sql").read_text()
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
            connection.executescript(left)
        return f"sqlite:///{tmp_path / 'old.db'}"
    old: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(old) as server:
        server.execute(left.encode())
    return old


def test_what_an_older_release_kept_is_there_in_the_newest_schema(old_url: str, url: str) -> None:
    with closing(open_store(old_url, migrate=True)) as store, store.read() as reader:
        assert [(host, vms) for host, vms in reader.hosts.page(None, 9)] == [
            (host("rack1-01", cordoned=True, labels={"zone": "a"}, capacity=2.5), 1)
        ]
        world = reader.worlds.load(operations=["o"], addresses=["10.0.0.1"])
        assert (world.operations["o"].vms, world.events["E"].scope) == (("web-0",), "group:web")
        assert world.scopes["group:web"].policy.auto_approve_restart
        assert world.addresses == {"10.0.0.1": "web-0"}
        rollout = world.rollouts["r"]
        # A result that a gate gave in the former shape is asked for again.
        assert (rollout.wave, rollout.gate_result) == (1, None)
        assert [(each.host, each.wave) for each in reader.rollouts.hosts("r", "", 9, None)] == [
            ("rack1-01", 1),
            ("rack1-02", 2),
        ]
        assert [entry.action for _, entry in reader.journal.page()] == ["rollout.wave_began", "event.scheduled"]
        assert positions(reader, vm="web-0") == [2]
        [subscription] = reader.subscriptions.active()
        assert subscription.types == ("forenotice.rollout.wave_began", "forenotice.event.*")
        assert [each.position for each in reader.subscriptions.pending("s")] == [1]
        [token] = reader.tokens.page()
        assert (token.name, token.networks, reader.meta.epoch()) == ("ada", ("10.0.0.0/8",), 3)
    assert shape(old_url) == shape(url)


def test_a_database_from_before_the_first_migration_is_refused(old_url: str) -> None:
    update = "UPDATE alembic_version SET version_num = '0013'"
    if old_url.startswith("sqlite"):
        with closing(sqlite3.connect(old_url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(update)
    else:
        with psycopg.connect(old_url) as server:
            server.execute(update)
    with pytest.raises(errors.UnsoundError, match=r"is at revision 0013, and this forenotice upgrades from revision 0"):
        open_store(old_url, migrate=True)
