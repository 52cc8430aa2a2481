"""The processes of a cluster, each on a machine of its own: they can be killed, paused, and started again."""

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psycopg
from tests.acceptance.running import PROGRAMS, Said, until
from tests.cluster.faults.machines import NETWORK, Disk, Machine
from tests.nats_servers import PROGRAM as NATS
from tests.postgres import copy_programs

from forenotice.cluster.keys import Keys

START_SECONDS = 60.0
GUESTS, OPERATORS, METRICS, MONITORING = 8254, 8255, 8256, 8222
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"


class Process:
    """Nothing of it but its files outlives a kill; it ends with the tests, however these end."""

    def __init__(self, name: str, machine: Machine, root: Path, *command: str | Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.machine = machine
        self.root = root
        self._command = command
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        """Without waiting for it."""
        assert self._process is None, f"{self.name} runs already"
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.machine.enter, *self._command],
                env=self._env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def runs(self) -> bool:
        return self._process is not None

    def wait_until_ready(self) -> None:
        until(self._is_ready_or_dead, START_SECONDS, lambda: f"{self.name} is ready: {self.log[-5000:]}")

    def _is_ready_or_dead(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} has ended: {self.log[-5000:]}"
        return self.is_ready()

    def is_ready(self) -> bool:
        raise NotImplementedError

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        """Does nothing to one that does not run."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    def ask(self, port: int, target: str, seconds: float = 2) -> Said | None:
        try:
            return self.machine.ask(port, "GET", target, seconds=seconds)
        except (OSError, HTTPException):
            return None


class Nats(Process):
    def __init__(self, name: str, machine: Machine, root: Path, peers: Sequence[str], keys: Keys) -> None:
        root.mkdir()
        self.disk = Disk(_made(root / "disk"), megabytes=64)
        routes = ", ".join(f'"nats://{peer}:6222"' for peer in peers)
        lines = [
            f"server_name: {name}",
            f'listen: "{machine.address}:4222"',
            f'http: "127.0.0.1:{MONITORING}"',
            f'jetstream {{ store_dir: "{self.disk.path}", sync_interval: always, max_file: 10G }}',
            f'cluster {{ name: faults, listen: "{machine.address}:6222", routes: [{routes}] }}',
            keys.server_configuration(root / "accounts"),
        ]
        (root / "nats.conf").write_text("\n".join(lines))
        super().__init__(name, machine, root, *self.disk.enter, NATS, "-c", root / "nats.conf", env=os.environ)
        self.url = f"nats://{machine.address}:4222"

    def is_ready(self) -> bool:
        said = self.ask(MONITORING, "/healthz")
        return said is not None and said.status == 200

    def leader_of(self, stream: str) -> str | None:
        """By this server's knowledge: its name."""
        said = self.ask(MONITORING, "/jsz?accounts=true&streams=true")
        if said is None:
            return None
        return next(
            (
                found["cluster"].get("leader")
                for account in said.json.get("account_details", ())
                for found in account.get("stream_detail", ())
                if found["name"] == stream
            ),
            None,
        )


class Postgres(Process):
    def __init__(self, name: str, machine: Machine, root: Path) -> None:
        root.mkdir()
        self._programs = copy_programs(root / "programs")
        self._data, self._sockets = root / "data", root / "sockets"
        # PostgreSQL refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        self._user = ("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
        for folder in (self._data, self._sockets):
            folder.mkdir(mode=0o700)
        for path in (root, *root.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username=postgres")
        self._run("initdb", *options, "--pgdata", str(self._data))
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK}.0/24 trust\n")
        settings = {
            "fsync": "off",
            "full_page_writes": "off",
            "autovacuum": "off",
            "shared_buffers": "16MB",
            "listen_addresses": machine.address,
            "unix_socket_directories": str(self._sockets),
        }
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        command += [f"--{setting}={value}" for setting, value in settings.items()]
        user = (*self._user, "--pdeathsig", "KILL")
        super().__init__(name, machine, root, *user, *command, env={**os.environ, "LC_ALL": "C"})
        self.url = f"postgresql://postgres@{machine.address}/{name}"
        self.local_url = f"postgresql://postgres@/{name}?host={self._sockets}"
        """From any network namespace."""

    def is_ready(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def kill(self) -> None:
        """With all its children, which would otherwise take their time."""
        if self.runs:
            self.pause()
            children = self._children()
            super().kill()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            until(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children), 10)

    def _signal(self, number: signal.Signals) -> None:
        super()._signal(number)
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def _children(self) -> list[int]:
        """All of them, if it is paused: it makes no more then."""
        assert self._process is not None
        own = self._process.pid
        return [*map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split())]

    def execute(self, *commands: str) -> None:
        where = f"postgresql://postgres@/postgres?host={self._sockets}"
        with psycopg.connect(where, autocommit=True, connect_timeout=2) as connection:
            for command in commands:
                connection.execute(command.encode())

    def create(self) -> None:
        self.execute(f"CREATE DATABASE {self.name}")

    def back_up(self) -> None:
        """Into the one backup that there is."""
        self._run("pg_dump", "-Fc", "-f", str(self._data / "backup"), self.local_url)

    def restore(self) -> None:
        """Whoever uses the database finds the older one in its place a moment later."""
        self.execute("CREATE DATABASE restored")
        restored = f"postgresql://postgres@/restored?host={self._sockets}"
        self._run("pg_restore", "--single-transaction", "-d", restored, str(self._data / "backup"))
        self.execute(
            f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{self.name}'",
            f"ALTER DATABASE {self.name} RENAME TO replaced",
            f"ALTER DATABASE restored RENAME TO {self.name}",
            "DROP DATABASE replaced",
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._user, str(self._programs / program), *arguments],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )


class Forenotice(Process):
    def __init__(self, name: str, machine: Machine, root: Path, *command: str, env: Mapping[str, str]) -> None:
        root.mkdir()
        where = ("--data", str(root / "data"), "--metadata", f"127.0.0.1:{GUESTS}", "--log-format", "json")
        super().__init__(name, machine, root, PROGRAMS / "forenotice", *command, *where, env=env)

    def poll(self, address: str) -> Said | None:
        """As the VM with this address."""
        try:
            return self.machine.ask(GUESTS, "GET", TARGET, headers={"Metadata": "true"}, source=address, seconds=2)
        except (OSError, HTTPException):
            return None

    def approve(self, address: str, *event_ids: str, seconds: float = 10) -> Said | None:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
        try:
            return self.machine.ask(GUESTS, "POST", TARGET, body, {"Metadata": "true"}, source=address, seconds=seconds)
        except (OSError, HTTPException):
            return None

    @property
    def defects(self) -> list[dict[str, Any]]:
        """What it logged with a traceback of its own."""
        found = [entry for entry in self.entries() if "exception" in entry]
        return [entry for entry in found if entry["action"] != "library"]

    def entries(self) -> list[dict[str, Any]]:
        """Of its log; the last line may not be complete, nor one that was cut by a kill."""
        found = []
        for line in self.log.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


class Serve(Forenotice):
    token = ""

    def is_ready(self) -> bool:
        said = self.ask(OPERATORS, "/readyz")
        return said is not None and said.status == 200

    def command(self, method: str, path: str, body: object = None, *, seconds: float = 3) -> Said:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return self.machine.ask(OPERATORS, method, path, data, headers, seconds=seconds)


class Edge(Forenotice):
    def is_ready(self) -> bool:
        said = self.ask(METRICS, "/readyz")
        return said is not None and said.status == 200


def _made(path: Path) -> str:
    path.mkdir()
    return str(path)
