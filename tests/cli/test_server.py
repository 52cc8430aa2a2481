"""Commands that work on the database itself: tokens, backup, migrate, clock."""

import re
import sqlite3
import stat
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.control.running import running

from forenotice import data_directory
from forenotice.cli import server
from forenotice.core import errors


@pytest.fixture
def data(tmp_path: Path, run: Run) -> Path:
    """A data directory with a database."""
    directory = tmp_path / "data"
    directory.mkdir()
    assert run("migrate", "--data", str(directory)).out == "The database is up to date.\n"
    return directory


def test_a_lost_token_is_replaced(run: Run, data: Path) -> None:
    where = ("--offline", "--data", str(data))
    token = run("token", "create", "me", *where).out.strip()
    assert token.startswith("fn_")
    [listed] = run("token", "list", *where, "--json").json
    assert (listed["name"], listed["role"], listed["last_used_at"]) == ("me", "admin", None)
    with running(data) as control:
        reached = ("--control-url", control.url)
        assert run("vm", "list", *reached, "--token", token).code == 0
        assert run("token", "revoke", listed["id"], *where).out == f"Token {listed['id']} is revoked.\n"
        assert run("vm", "list", *reached, "--token", token).code == 1


def test_tokens_over_the_api(cli: Run) -> None:
    without = cli("token", "create", "ci")
    assert (without.code, "--role viewer, tenant, platform, admin" in without.err) == (2, True)
    role = ("--role", "viewer")
    made = cli("token", "create", "ci", *role, "--json").json
    assert made["token"].startswith("fn_")
    listed = cli("token", "list").out
    assert made["id"] in listed
    assert made["token"] not in listed
    key = ("--idempotency-key", "k")
    assert cli("token", "create", "again", *role, *key).out.startswith("fn_")
    assert "was shown when this was first asked for" in cli("token", "create", "again", *role, *key).out
    assert "there is already a token 'again'" in cli("token", "create", "again", *role).err
    assert cli("token", "revoke", made["id"], "--yes", "--json").json["revoked_at"]
    assert "there is no token" in cli("token", "revoke", made["id"]).err
    assert "1 to 64 letters, digits" in cli("token", "create", "a b", *role).err


def test_a_tenants_token(cli: Run, data: Path) -> None:
    what = ("--role", "tenant", "--scopes", "web-*,vm:db", "--expires", "90d")
    for where in ((), ("--offline", "--data", str(data))):
        made = cli("token", "create", "shop", *what, *where, "--reason", "the shop", "--json").json
        assert (made["role"], made["scopes"]) == ("tenant", "web-*,vm:db")
        lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
        assert lasts == timedelta(days=90)
        assert "web-*,vm:db" in cli("token", "list", *where).out
        assert "'soon' is not a duration" in cli("token", "create", "x", *what[:4], "--expires", "soon", *where).err
    [entry] = [each for each in cli("history", "--json").json if each["data"].get("name") == "shop"]
    assert (entry["reason"], entry["origin"]) == ("the shop", "127.0.0.1")


def test_a_reason_is_kept_in_the_history(cli: Run) -> None:
    cli("host", "add", "h")
    cli("host", "remove", "h", "--yes", "--reason", "zu groß & alt")
    [removed] = cli("history", "--json", "--action", "host.removed").json
    assert removed["reason"] == "zu groß & alt"
    assert cli("history", "--reason", "x").code == 2


def test_backup(run: Run, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert run("backup", str(copy), "--data", str(data)).out == f"The database is copied to {copy}.\n"
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    again = run("backup", str(copy), "--data", str(data))
    assert (again.code, again.err) == (1, f"forenotice: {copy} exists already: give the name of a new file\n")
    assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE((data / "forenotice.db").stat().st_mode) == 0o600
    other = tmp_path / "other.db"
    assert run("backup", str(other), "--data", str(data), "--json").json == {"file": str(other)}


def test_restore(run: Run, data: Path, tmp_path: Path) -> None:
    where = ("--data", str(data))
    backup = tmp_path / "backup.db"
    run("token", "create", "before", "--offline", *where)
    assert run("backup", str(backup), *where).code == 0
    run("token", "create", "after", "--offline", *where)

    def tokens(*where: str) -> list[str]:
        return [token["name"] for token in run("token", "list", "--offline", *where, "--json").json]

    kept = f"The previous database is kept as {data}/forenotice.db.replaced."
    assert run("restore", str(backup), *where).out == f"The database is restored from {backup}.\n{kept}\n"
    assert tokens(*where) == ["before"]
    assert tokens("--database", f"sqlite:///{data}/forenotice.db.replaced") == ["before", "after"]
    first = run("restore", str(backup), *where, "--json").json
    assert first["kept"] == f"{data}/forenotice.db.replaced.2"
    (data / "forenotice.db").unlink()
    again = run("restore", str(backup), *where, "--json").json
    assert (again["kept"], again["epoch"] > first["epoch"]) == (None, True)
    assert stat.S_IMODE((data / "forenotice.db").stat().st_mode) == 0o600
    assert not list(data.glob("*.restoring*"))


def test_restore_refuses_and_changes_nothing(run: Run, data: Path, tmp_path: Path) -> None:
    where = ("--data", str(data))
    (tmp_path / "text").write_text("not a database " * 100)
    before = sorted(path.name for path in data.iterdir() if path.name != "lock")
    for arguments, said in (
        ((), "name the file of the backup"),
        ((str(tmp_path / "none"),), "is missing or empty: name the file of a backup"),
        ((str(tmp_path / "text"),), "damaged or no database"),
        ((str(data / "forenotice.db"),), "is the database itself"),
        ((str(tmp_path / "text"), "--database", "postgresql://db/x"), "restore PostgreSQL with pg_restore"),
    ):
        ran = run("restore", *arguments, *where)
        assert (ran.code, ran.err.count("\n")) == (1, 1), ran
        assert said in ran.err
    with data_directory.held(data):
        assert "another `forenotice serve` uses" in run("restore", str(tmp_path / "text"), *where).err
    assert sorted(path.name for path in data.iterdir() if path.name != "lock") == before


def test_a_restored_postgresql_is_told_so(run: Run, tmp_path: Path, migrated_postgres_url: str) -> None:
    where = ("--data", str(tmp_path / "data"), "--database", migrated_postgres_url)
    first = run("restore", *where, "--json").json
    assert (first["file"], first["kept"]) == (None, None)
    assert run("restore", *where, "--json").json["epoch"] > first["epoch"]


def test_a_database_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    for arguments in (("backup", str(tmp_path / "copy.db")), ("token", "create", "me", "--offline")):
        ran = run(*arguments, "--data", str(tmp_path))
        assert ran.code == 1
        assert f"there is no database {tmp_path}/forenotice.db" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_migrate_says_when_it_cannot(run: Run, tmp_path: Path) -> None:
    assert run("migrate", "--data", str(tmp_path), "--json").json == {"migrated": True}
    assert run("migrate", "--data", str(tmp_path / "none")).code == 1
    (tmp_path / "forenotice.db").write_bytes(b"not a database at all" * 100)
    ran = run("migrate", "--data", str(tmp_path))
    assert ran.code == 1
    assert ran.err.count("\n") == 1


def test_missing_server_packages_are_named() -> None:
    advice = r"starlette, which is not installed: pip install 'forenotice\[server\]'"
    with pytest.raises(errors.RefusedError, match=advice), server.server_packages():
        raise ModuleNotFoundError("No module named 'starlette'", name="starlette")
    with pytest.raises(ModuleNotFoundError), server.server_packages():
        raise ModuleNotFoundError("No module named 'forenotice.gone'", name="forenotice.gone")


def test_a_clock_that_was_wrong_is_accepted(run: Run, data: Path) -> None:
    where = ("--data", str(data))
    assert run("token", "create", "me", "--offline", *where).code == 0
    assert "there is nothing to accept" in run("clock", "accept", *where).err
    with closing(sqlite3.connect(data / "forenotice.db")) as database:
        database.execute("UPDATE journal SET at = at + 86400000000")
        database.commit()
    refused = run("token", "list", "--offline", *where).err
    assert "correct the clock or, if it is right now and was wrong before, run `forenotice clock accept`" in refused
    with data_directory.held(data):
        assert "another `forenotice serve` uses the data directory" in run("clock", "accept", *where).err
    said = run("clock", "accept", *where, "--reason", "a new battery").out
    assert re.match(
        r"Time continues from \d{4}-\S+ \S+ UTC; the journal was at \d{4}-\S+ \S+ UTC\. Announced events keep", said
    )
    assert run("token", "list", "--offline", *where).code == 0
    with closing(sqlite3.connect(data / "forenotice.db")) as database:
        [newest] = database.execute("SELECT action, reason FROM journal ORDER BY position DESC LIMIT 1")
    assert newest == ("clock.accepted", "a new battery")
    assert run("clock", "accept", *where).code == 1


def test_a_token_is_rotated_by_its_name(fresh: Run, tmp_path: Path) -> None:
    made = fresh("token", "create", "bot", "--role", "viewer", "--from", "127.0.0.0/8", "--from", "::1", "--json").json
    assert made["networks"] == ["127.0.0.0/8", "::1/128"]
    assert "127.0.0.0/8, ::1/128" in fresh("token", "list").out
    rotated = fresh("token", "rotate", "bot", "--overlap", "0s", "--expires", "never").out.strip()
    assert "never" in fresh("token", "list").out
    assert fresh("vm", "list", "--token", rotated).code == 0
    assert fresh("vm", "list", "--token", made["token"]).code == 1
    where = ("--offline", "--data", str(tmp_path))
    again = fresh("token", "rotate", made["id"], *where, "--expires", "30d", "--json").json
    assert again["previous_until"] is not None
    for secret in (rotated, again["token"]):
        assert fresh("vm", "list", "--token", secret).code == 0
    file = tmp_path / "admin.token"
    file.write_text(again["token"])
    kept = fresh("token", "rotate", "bot", *where).out
    assert file.read_text() == kept
    assert "is not a duration" in fresh("token", "rotate", "bot", "--overlap", "long", *where).err
    assert "there is no token 'nobody'" in fresh("token", "rotate", "nobody").err
