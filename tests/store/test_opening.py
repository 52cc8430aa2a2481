"""Opening: made, brought up to date, or refused with advice; never repaired."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, make_url
from tests.store.samples import entry, executor_of, host, hosts_of, keep, positions

from forenotice.core import errors
from forenotice.core.fleet import Policy
from forenotice.store import opener, postgresql, schema, sqlite
from forenotice.store.database import Mark, Store
from forenotice.store.events import EventFilter
from forenotice.store.opener import open_store, replace

NEWEST = opener.OURS.newest
NEXT = f"{int(NEWEST) + 1:04}"
COLUMNS = [column.name for column in schema.hosts.columns]
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


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_file_gets_a_schema(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "new folder" / "it's 100%.db"
    path.parent.mkdir()
    if exists:
        path.touch()
    with closing(opened(path)) as store:
        keep(store, host("a"))
    assert {each.name for each in path.parent.iterdir()} == {path.name}


def test_every_commit_is_synced(sqlite_store: Store) -> None:
    with sqlite_store.read() as reader:
        connection = executor_of(reader)._connection
        assert connection.execute("PRAGMA journal_mode", ()).fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous", ()).fetchone() == (2,)


def test_migrations_lead_to_the_schema(url: str) -> None:
    if url.startswith("sqlite"):
        engine = create_engine(url)
    else:
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


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
    migrated = opened(sqlite_path, migrate=True, known=later(tmp_path))
    migrated.close()
    assert columns(sqlite_path) == [*COLUMNS, "rack"]
    assert columns(copy) == COLUMNS
    kept = opened(copy)
    assert hosts_of(kept) == {"a"}
    kept.close()
    opened(sqlite_path, known=later(tmp_path)).close()
    assert sorted(each.name for each in tmp_path.glob("forenotice.db*")) == [
        "forenotice.db",
        copy.name,
        sqlite.mark_beside(copy).name,
    ]


def test_a_migration_that_fails_changes_nothing(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"))
    sqlite_store.close()
    broken = later(tmp_path, then='op.execute("SELECT nonsense")')
    for _ in range(2):
        with pytest.raises(errors.UnsoundError, match=r"cannot use the database .*nonsense"):
            opened(sqlite_path, migrate=True, known=broken)
    assert columns(sqlite_path) == COLUMNS
    copies = {each.name for each in tmp_path.glob("*.before-*")}
    assert copies == {f"forenotice.db.before-{NEXT}", f"forenotice.db.before-{NEXT}.2"}
    again = opened(sqlite_path)
    assert hosts_of(again) == {"a"}
    again.close()


def test_postgresql_is_migrated_only_when_asked(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.UnsoundError, match=r"has no tables yet: run `forenotice migrate --database postgresql:"):
        open_store(postgres_url, migrate=False)
    store = open_store(postgres_url, migrate=True)
    keep(store, host("a"))
    store.close()
    open_store(postgres_url.replace("postgresql:", "postgres:"), migrate=False).close()
    with pytest.raises(errors.UnsoundError, match=f"is at the older revision {NEWEST}: run `forenotice migrate"):
        open_store(postgres_url, migrate=False, known=later(tmp_path))
    broken = later(tmp_path, then='op.execute("SELECT nonsense")')
    with pytest.raises(errors.UnsoundError, match="nonsense"):
        open_store(postgres_url, migrate=True, known=broken)
    open_store(postgres_url, migrate=True, known=later(tmp_path)).close()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT name, rack FROM hosts").fetchall() == [("a", None)]


def test_a_newer_database_is_refused(url: str, tmp_path: Path) -> None:
    open_store(url, migrate=True, known=later(tmp_path)).close()
    for migrate in (False, True):
        with pytest.raises(
            errors.UnsoundError,
            match=rf"newer forenotice \(its revision is {NEXT}, this one knows {NEWEST}\)",
        ):
            open_store(url, migrate=migrate)


def test_a_newer_database_is_not_touched_nor_its_log(sqlite_path: Path, tmp_path: Path) -> None:
    newer = opened(sqlite_path, migrate=True, known=later(tmp_path))
    keep(newer, host("a"))
    # As a crash leaves them behind: what makes it newer is in the log alone.
    for name in ("forenotice.db", "forenotice.db-wal"):
        (tmp_path / "crashed").mkdir(exist_ok=True)
        shutil.copy(sqlite_path.with_name(name), tmp_path / "crashed")
    newer.close()
    files = [tmp_path / "crashed" / name for name in ("forenotice.db", "forenotice.db-wal")]
    before = [file.read_bytes() for file in files]
    with closing(sqlite.connect(files[0], "ro&immutable=1")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (opener.OURS.newest,)
    with pytest.raises(errors.UnsoundError, match="newer forenotice"):
        opened(files[0], migrate=True)
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


def test_a_database_that_is_replaced_is_one_whole_file(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    """Whoever ends the process between two steps finds either the former one or the new one, with all that it had."""
    sqlite_store.backup(tmp_path / "backup.db")
    keep(sqlite_store, host("a"))
    (tmp_path / "crashed").mkdir()
    for name in ("forenotice.db", "forenotice.db-wal"):
        shutil.copy(sqlite_path.with_name(name), tmp_path / "crashed")
    path = tmp_path / "crashed" / "forenotice.db"
    (tmp_path / "crashed" / "forenotice.db.restoring").write_text("what a restore that was killed left behind")
    kept = replace(path, tmp_path / "backup.db")
    assert kept is not None
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}.mark", kept.name}
    with closing(opened(kept)) as former:
        assert hosts_of(former) == {"a"}


def test_a_backup_beside_the_log_of_another_is_refused(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    """SQLite would take what the log says for a part of the backup."""
    keep(sqlite_store, host("a"))
    sqlite_store.backup(tmp_path / "copied.db")
    log = Path(shutil.copy(sqlite.log_of(sqlite_path), tmp_path / "copied.db-wal"))
    content = (tmp_path / "copied.db").read_bytes()
    with pytest.raises(errors.UnsoundError, match=r"copied\.db-wal is not of .*move it away"):
        opened(tmp_path / "copied.db", migrate=True)
    assert (tmp_path / "copied.db").read_bytes() == content
    log.unlink()
    opened(tmp_path / "copied.db").close()


@pytest.mark.parametrize("left", [None, 0, 50, 4096, 20_000])
def test_a_database_that_is_missing_or_cut_off_is_refused_where_one_was_in_use(
    sqlite_store: Store, sqlite_path: Path, left: int | None
) -> None:
    keep(sqlite_store, host("a"), entry("host.added"))
    sqlite_store.checkpoint()
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


def test_what_is_settled_is_in_the_file_itself(sqlite_store: Store, sqlite_path: Path, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"), entry("host.added"))
    sqlite_store.checkpoint()
    assert sqlite_store.mark() == Mark(epoch=0, position=1)
    copy = shutil.copy(sqlite_path, tmp_path / "without the log.db")
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT name FROM hosts").fetchall() == [("a",)]


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


def test_alembic_stays_out_of_a_start_that_needs_none(sqlite_path: Path) -> None:
    code = (
        "import sys; from forenotice.store.opener import open_store; "
        f"open_store('sqlite:///{sqlite_path}', migrate=False).close(); print('alembic' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_a_backup_equals_and_opens(sqlite_store: Store, tmp_path: Path) -> None:
    keep(sqlite_store, host("a"), entry("host.added"))
    backup = tmp_path / "backup.db"
    sqlite_store.backup(backup)
    keep(sqlite_store, host("b"))
    assert {each.name for each in tmp_path.glob("backup*")} == {"backup.db"}
    copied = opened(backup)
    assert hosts_of(copied) == {"a"}
    with copied.read() as reader:
        assert reader.journal.page() == [(1, entry("host.added"))]
    copied.close()


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


def test_postgresql_has_its_own_backup(postgres_store: Store, tmp_path: Path) -> None:
    with pytest.raises(errors.RefusedError, match="pg_dump"):
        postgres_store.backup(tmp_path / "backup.db")


OLD = (
    "INSERT INTO operations (id, kind, host, vms, status, created_at, not_before, ended_at, held, attempt, author,"
    " reason) VALUES ('o', 'host-update', 'a', '[\"web-0\", \"db\"]', 'Completed', 1, 2, 3, false, 0, 'ada', '')",
    "INSERT INTO events (id, operation, scope, resources, update_domain, type, source, description, duration, status,"
    " created_at, not_before, implied, ended_at)"
    " VALUES ('E', 'o', 'group:web', '[\"web-0\"]', 0, 'Freeze', 'Platform', '', 9, 'Completed', 1, 2, false, 3)",
    "INSERT INTO journal (position, at, action, author, operation) VALUES (1, 1, 'operation.scheduled', '', 'o')",
    "INSERT INTO journal (position, at, action, author, scope, event, operation)"
    " VALUES (2, 1, 'event.scheduled', '', 'group:web', 'E', 'o')",
    "INSERT INTO operations (id, kind, host, vms, status, created_at, not_before, due_at, held, attempt, author,"
    " reason) VALUES ('d', 'degraded-hardware', 'a', '[\"db\"]', 'Scheduled', 1, 7, 7, false, 0, '', '')",
    "INSERT INTO tokens (id, name, role, digest, created_at) VALUES ('t', 'ada', 'admin', 'd', 1)",
    "INSERT INTO scopes (key, kind, tag, incarnation, listening, auto_approve)"
    " VALUES ('vm:both', 'standalone', 'tag', 1, 'auto', true), ('vm:neither', 'standalone', 'tag', 1, 'auto', false)",
)


@pytest.fixture(params=["sqlite", "postgresql"])
def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, Sequence[str]], Store]:
    """A store whose database was filled by these statements at an older revision."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'old.db'}" if is_sqlite else request.getfixturevalue("postgres_url")

    def upgrade(last: str, statements: Sequence[str]) -> Store:
        names = opener.OURS.names
        open_store(url, migrate=True, known=opener.Revisions(names=names[: names.index(last) + 1])).close()
        engine = create_engine(make_url(url).set(drivername="sqlite" if is_sqlite else "postgresql+psycopg"))
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()
        return open_store(url, migrate=True)

    return upgrade


def test_what_the_first_release_kept_is_there_and_found_by_vm(
    upgraded: Callable[[str, Sequence[str]], Store],
) -> None:
    with closing(upgraded("0001", OLD)) as store, store.read() as reader:
        assert (positions(reader, vm="web-0"), positions(reader, vm="db")) == ([1, 2], [1])
        assert [event.id for event in reader.events.page(None, 9, EventFilter(vm="web-0"))] == ["E"]
        (token,) = reader.tokens.page(None, 9)
        assert (token.role, token.selector, token.expires_at) == ("admin", None, None)
        scopes = reader.scopes.named(["vm:both", "vm:neither"])
        assert scopes["vm:both"].policy == Policy(auto_approve_restart=True, auto_approve_redeploy=True)
        assert scopes["vm:neither"].policy == Policy()
        degraded = reader.worlds.load(operations=["d"]).operations["d"]
        assert degraded.due_at == degraded.created_at


LIVE = """
INSERT INTO scopes (key, kind, tag, incarnation, listening, auto_approve_restart) VALUES
    ('group:ss', 'placement-group', 'tag', 5, 'auto', false), ('group:web', 'placement-group', 'tag', 5, 'auto', false),
    ('group:twins', 'placement-group', 'tag', 5, 'auto', false), ('vm:db', 'standalone', 'tag', 5, 'auto', false);
INSERT INTO operations (id, kind, host, vms, status, created_at, not_before, held, attempt, author, reason) VALUES
    ('o', 'host-update', 'a', '["db","ss_10","ss_2","web-1","web-2"]', 'Scheduled', 1, 2, false, 0, '', '');
INSERT INTO events (id, operation, scope, resources, update_domain, type, source, description, duration, status,
    created_at, not_before, implied) VALUES
    ('A', 'o', 'group:ss', '["ss_10","ss_2"]', 0, 'Freeze', 'Platform', '', 9, 'Scheduled', 1, 2, false),
    ('B', 'o', 'group:web', '["web-1","web-2"]', 0, 'Freeze', 'Platform', '', 9, 'Started', 1, 2, false),
    ('C', 'o', 'vm:db', '["db"]', 0, 'Freeze', 'Platform', '', 9, 'Scheduled', 1, 2, false),
    ('D', 'o', 'group:twins', '["t-10"]', 0, 'Reboot', 'User', '', -1, 'Scheduled', 1, 2, false),
    ('E', 'o', 'group:twins', '["t-9"]', 0, 'Reboot', 'User', '', -1, 'Scheduled', 1, 2, false)
"""


def test_a_document_that_looks_different_in_natural_order_has_a_new_incarnation(
    upgraded: Callable[[str, Sequence[str]], Store],
) -> None:
    with closing(upgraded("0011", LIVE.split(";"))) as store, store.read() as reader:
        incarnations = {key: scope.incarnation for key, scope in reader.worlds.fleet().scopes.items()}
        assert incarnations == {"group:ss": 6, "group:web": 5, "group:twins": 6, "vm:db": 5}
        world = reader.worlds.load(operations=["o"])
        assert world.events["A"].resources == ("ss_2", "ss_10")
        assert world.operations["o"].vms == ("db", "ss_2", "ss_10", "web-1", "web-2")
        shown = {scope.key: events for scope, _, events in reader.worlds.scopes(["group:twins"])}
        assert [event.id for event in shown["group:twins"]] == ["E", "D"]
