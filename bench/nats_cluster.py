"""A cluster to measure on: three NATS servers with a service and an edge, and an operator's connection."""

import http.client
import json
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from tests.nats_servers import NatsServer, NatsServers, nats_servers

from bench import fleets, machine, servers
from bench.servers import Server
from forenotice import data_directory
from forenotice.cluster.keys import Keys
from forenotice.core.operations import Kind
from forenotice.core.reconciliation import FleetSpec
from forenotice.service import fleet, tokens
from forenotice.service.calls import SYSTEM
from forenotice.views.maintenance import Operation, Operations

HOST = "host-0"
PATIENCE = 300.0
SETTLED_SECONDS = 15
"""An edge has beaten, and told who was heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    directory: Path
    nats: NatsServers
    keys: Keys

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(part for url in self.nats.urls for part in ("--nats", url))

    def enrol(self, host: str) -> Path:
        file = self.directory / "credentials" / f"{host}.creds"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        data_directory.write_secret(file, self.keys.enrol(host, datetime.now(UTC)).credentials)
        return file

    def make_fleet(self, spec: FleetSpec, database: str | None = None) -> str:
        """An administrator's token."""
        with fleets.service(self.directory / "serve", database) as service:
            fleet.apply_spec(service, SYSTEM, spec, prune=False)
            return str(tokens.create(service, SYSTEM, name="bench").token)

    @contextmanager
    def service(self, *flags: str, name: str = "serve", core: int = machine.SERVER_CORE) -> Iterator[Server]:
        data = self.directory / name
        data.mkdir(exist_ok=True)
        credentials = ("--nats-credentials", str(self.keys.centre_credentials))
        flags = (*self.flags, *credentials, *flags)
        with servers.forenotice(data, *flags, address=fleets.address(0), core=core) as server:
            servers.await_control(server)
            yield server

    def nats_cpu_seconds(self) -> float:
        return sum(machine.cpu_seconds(each.process.pid) for each in self.nats)

    def nats_resident_bytes(self) -> int:
        return sum(machine.resident_bytes(each.process.pid) for each in self.nats)

    def await_health(self) -> None:
        """Each of NATS's servers has all that the others have, and knows who leads."""
        self.nats.wait_until_ready()
        deadline = time.perf_counter() + PATIENCE
        for each in self.nats:
            while not _is_healthy(each):
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"NATS's {each.name} is not healthy after {PATIENCE:.0f} s")
                time.sleep(0.1)


def _is_healthy(server: NatsServer) -> bool:
    try:
        urllib.request.urlopen(f"{server.monitoring}/healthz", timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def cluster() -> Iterator[Cluster]:
    """NATS's servers are on all cores: in real life they are not where the others are."""
    with TemporaryDirectory(prefix="forenotice-bench-") as directory, ExitStack() as stack:
        root = Path(directory)
        keys = Keys.make(root / "keys", datetime.now(UTC))
        with machine.all_cores():
            nats = stack.enter_context(nats_servers(root, 3, keys=keys))
        yield Cluster(directory=root, nats=nats, keys=keys)


@contextmanager
def edge(data: Path, credentials: Path, nats: Sequence[str]) -> Iterator[Server]:
    port, status = servers.free_port(), servers.free_port()
    command = [
        *(sys.executable, "-m", "forenotice", "edge", "run", "--host", HOST, "--data", str(data)),
        *("--metadata", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{status}", *nats),
        *("--nats-credentials", str(credentials), "--guest-rate", servers.RATE, "--log-level", "error"),
    ]
    with servers.running("edge", command, port, status, fleets.address(0), 200) as server:
        yield server


class Operator:
    """Commands on one connection, which can be sent without waiting for the answer."""

    def __init__(self, port: int, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    def send_schedule(self, kind: Kind, names: Sequence[str]) -> None:
        self._send("/v1/operations", json.dumps({"kind": kind, "names": names}))

    def send_cancel(self, operation: str) -> None:
        self._send(f"/v1/operations/{operation}/cancel", "")

    def receive(self) -> bytes:
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        answer = response.read()
        if response.status not in (200, 201):
            raise RuntimeError(f"a command was answered {response.status}: {answer[:500]!r}")
        return answer

    def _send(self, path: str, body: str) -> None:
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self.socket.sendall((head + body).encode())


def scheduled(answer: bytes) -> Operation:
    return msgspec.json.decode(answer, type=Operations).operations[0]


@contextmanager
def operator(service: Server, token: str) -> Iterator[Operator]:
    made = Operator(service.control, token)
    try:
        yield made
    finally:
        made.socket.close()
