"""Edges behind three NATS servers: how soon guests are told, and what an edge, a state and a beat cost."""

import http.client
import json
import os
import random
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import msgspec
from tests.nats_servers import NatsServers, nats_servers

from bench import fleets, guests, machine, polls, report, servers
from bench.effort import Effort
from bench.servers import Server
from forenotice.centre import host_states
from forenotice.cluster import messages
from forenotice.cluster.keys import Keys
from forenotice.cluster.messages import HostState
from forenotice.core.operations import Kind
from forenotice.core.reconciliation import FleetSpec
from forenotice.metadata.published import PublishedFleet
from forenotice.service import maintenance
from forenotice.service.calls import SYSTEM
from forenotice.views.maintenance import Operation, Operations

HOST = "host-0"
VMS = fleets.PER_HOST
TOLD_P50, TOLD_P99 = 0.010, 0.100
APPROVED_P50 = 0.015
RESIDENT_MIB, REST_PERCENT = 45.0, 0.5
POLLS_FACTOR = 0.95
FIRST_ANSWER = 0.2
ANNOUNCED_SECONDS = 10.0
MANY_POLLS = 500
"""A second, at an edge, while its service is watched."""
GROWTH_PERCENT = 0.3
"""Of a core: what counts as no growth."""
SETTLED_SECONDS = 15
"""An edge has beaten, and told who was heard."""
STATES = 50
"""So often one is made and applied; the median counts."""
PATIENCE = 300.0

_ETAG = re.compile(rb"ETag: (\S+)\r\n")


def measure(effort: Effort) -> list[report.Row]:
    return [*_state(), *_one_edge(effort), *_many_edges(effort)]


# One state


def _state() -> Iterator[report.Row]:
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        fleets.make(data, fleets.standalone(VMS, VMS))
        with fleets.service(data) as service:
            maintenance.schedule(service, SYSTEM, kind=Kind.HOST_UPDATE, names=[HOST])

            def make() -> bytes:
                with service.store.read() as reader:
                    (state,) = host_states.read(reader, [HOST], service.clock.now(), service.timing.speed)
                return messages.encode_state(state)

            data_, shown = make(), PublishedFleet()

            def decode() -> HostState:
                return messages.decode_state(data_, HOST)

            made, applied = _median_ms(make), _median_ms(lambda: shown.put_everything(decode().scopes))
            size = len(msgspec.json.encode(decode()))
    what = f"state of a host with {VMS} VMs and an event each"
    yield report.Row(
        what=f"{what}: compressed", measured=f"{len(data_) / 1000:.1f} KB", reference=f"{size / 1000:.1f} KB of JSON"
    )
    yield report.Row(what=f"{what}: made", measured=f"{made:.1f} ms", reference=f"{applied:.1f} ms to apply")


def _median_ms(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(STATES):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return 1000 * median(taken)


# Three NATS servers, a service, an edge


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
        file.parent.mkdir(exist_ok=True)
        file.write_text(self.keys.enrol(host, datetime.now(UTC)).credentials)
        return file

    @contextmanager
    def service(self, spec: FleetSpec) -> Iterator[Server]:
        data = self.directory / "serve"
        fleets.make(data, spec)
        credentials = ("--nats-credentials", str(self.keys.centre_credentials))
        with servers.forenotice(data, *self.flags, *credentials, address=fleets.address(0)) as server:
            servers.await_control(server)
            yield server

    @property
    def token(self) -> str:
        return (self.directory / "serve" / "admin.token").read_text().strip()

    def nats_cpu_seconds(self) -> float:
        return sum(machine.cpu_seconds(each.process.pid) for each in self.nats)

    def nats_resident_bytes(self) -> int:
        return sum(machine.resident_bytes(each.process.pid) for each in self.nats)


@contextmanager
def _cluster() -> Iterator[Cluster]:
    """NATS's servers are on all cores: in real life they are not where the others are."""
    with TemporaryDirectory(prefix="forenotice-bench-") as directory, ExitStack() as stack:
        root = Path(directory)
        keys = Keys.make(root / "keys", datetime.now(UTC))
        with machine.all_cores():
            nats = stack.enter_context(nats_servers(root, 3, keys=keys))
        yield Cluster(directory=root, nats=nats, keys=keys)


@contextmanager
def _edge(data: Path, credentials: Path, nats: Sequence[str]) -> Iterator[Server]:
    port, status = servers.free_port(), servers.free_port()
    command = [
        *(sys.executable, "-m", "forenotice", "edge", "run", "--host", HOST, "--data", str(data)),
        *("--metadata", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{status}", *nats),
        *("--nats-credentials", str(credentials), "--guest-rate", servers.RATE, "--log-level", "error"),
    ]
    with servers.running("edge", command, port, status, fleets.address(0), 200) as server:
        yield server


def _one_edge(effort: Effort) -> Iterator[report.Row]:
    with _cluster() as cluster, cluster.service(_one_host()) as service:
        credentials, data = cluster.enrol(HOST), cluster.directory / "edge"
        with _edge(data, credentials, cluster.flags) as edge, _operator(service, cluster.token) as operator:
            yield from _changes(operator, service, edge, effort)
            yield from _approvals(operator, service, edge, effort)
            yield from _rest(service, edge, effort)
            yield _polls(service, edge, effort)
        starts = []
        for _ in range(effort.starts):
            nowhere = ("--nats", f"nats://127.0.0.1:{servers.free_port()}")
            with _edge(data, credentials, nowhere) as edge:
                starts.append(edge.first_answer_seconds)
    yield report.within(
        "restarted edge without NATS, to its first answer",
        median(starts),
        FIRST_ANSWER,
        "{:.2f} s",
        reference=f"worst {max(starts):.2f} s of {len(starts)}",
    )


def _one_host() -> FleetSpec:
    """Its first VM is also whoever calls from 127.0.0.1."""
    spec = fleets.standalone(VMS, VMS)
    first = replace(spec.vms["vm-0"], addresses=(fleets.address(0), "127.0.0.1"))
    return replace(spec, vms={**spec.vms, "vm-0": first})


# Changes


@dataclass(frozen=True, slots=True)
class Told:
    """When, in seconds since the command was sent."""

    returned: float
    at_service: float
    at_edge: float

    @property
    def after_commit(self) -> float:
        """Of the guest behind the edge. The service answers its operator and its own guests after the commit."""
        return self.at_edge - min(self.returned, self.at_service)


def _changes(operator: "Operator", service: Server, edge: Server, effort: Effort) -> Iterator[report.Row]:
    """One VM after the other polls at both until it is restarted; in the next round the restarts are cancelled."""
    pause = random.Random(0)
    told: list[Told] = []
    operations: dict[int, str] = {}
    while len(told) < effort.changes:
        vm = len(told) % VMS
        source = [fleets.address(vm)]
        with guests.connected(service.port, source) as (here,), guests.connected(edge.port, source) as (there,):
            _poll_until_changed(here)
            _poll_until_changed(there)
            time.sleep(pause.uniform(0.005, 0.05))
            begin = time.perf_counter()
            if vm in operations:
                operator.send_cancel(operations[vm])
            else:
                operator.send_schedule(Kind.RESTART, [f"vm-{vm}"])
            moments = _readable_at([operator.socket, here, there])
        told.append(Told(*(moment - begin for moment in moments)))
        answer = operator.receive()
        if operations.pop(vm, None) is None:
            operations[vm] = _scheduled(answer).id
    for operation in operations.values():
        operator.send_cancel(operation)
        operator.receive()
    after = [each.after_commit for each in told]
    p50, p99 = median(after), _p99(after)
    whole, at_service = median(each.at_edge for each in told), median(each.at_service for each in told)
    what = "commit to a guest behind an edge that waits"
    yield report.within(
        f"{what}, p50",
        1000 * p50,
        1000 * TOLD_P50,
        "{:.1f} ms",
        reference=f"from the command {1000 * whole:.1f} ms, at serve {1000 * at_service:.1f} ms",
    )
    yield report.within(
        f"{what}, p99",
        1000 * p99,
        1000 * TOLD_P99,
        "{:.1f} ms",
        reference=f"worst {1000 * max(after):.0f} ms of {len(after)}",
    )


def _p99(taken: Sequence[float]) -> float:
    return quantiles(taken, n=100, method="inclusive")[98]


def _poll_until_changed(connection: socket.socket) -> None:
    connection.sendall(guests.POLL)
    found = _ETAG.search(connection.recv(65536))
    assert found is not None
    connection.sendall(guests.waiting_poll(found[1].decode(), seconds=60))


def _readable_at(sockets: Sequence[socket.socket]) -> list[float]:
    moments: dict[int, float] = {}
    with select.epoll() as poll:
        for each in sockets:
            poll.register(each, select.EPOLLIN)
        while len(moments) < len(sockets):
            ready = poll.poll(guests.PATIENCE)
            now = time.perf_counter()
            if not ready:
                raise TimeoutError(f"a guest or an operator was not answered for {guests.PATIENCE:.0f} s")
            for descriptor, _ in ready:
                moments[descriptor] = now
                poll.unregister(descriptor)
    return [moments[each.fileno()] for each in sockets]


# Approvals


def _approvals(operator: "Operator", service: Server, edge: Server, effort: Effort) -> Iterator[report.Row]:
    """Those of a host update, by every other VM at its edge, by the rest at the service. One never approves."""
    taken: dict[str, list[float]] = {service.name: [], edge.name: []}
    sources = [fleets.address(number) for number in range(VMS)]
    while len(taken[edge.name]) < effort.changes:
        operator.send_schedule(Kind.HOST_UPDATE, [HOST])
        made = _scheduled(operator.receive())
        events = {event.resources[0]: event.id for event in made.events}
        with guests.connected(service.port, sources) as here, guests.connected(edge.port, sources) as there:
            _await_shown(there[0], events["vm-0"])
            for vm in range(1, VMS):
                server, connection = (edge, there[vm]) if vm % 2 else (service, here[vm])
                taken[server.name].append(_approve(connection, events[f"vm-{vm}"]))
        operator.send_cancel(made.id)
        operator.receive()
    at_edge, at_service = taken[edge.name], taken[service.name]
    yield report.within(
        "approval through an edge, p50",
        1000 * median(at_edge),
        1000 * APPROVED_P50,
        "{:.1f} ms",
        reference=f"at serve {1000 * median(at_service):.1f} ms; p99 {1000 * _p99(at_edge):.0f} ms",
    )


def _await_shown(connection: socket.socket, event: str) -> None:
    deadline = time.perf_counter() + guests.PATIENCE
    while time.perf_counter() < deadline:
        connection.sendall(guests.POLL)
        if event.encode() in connection.recv(65536):
            return
        time.sleep(0.005)
    raise TimeoutError(f"the edge did not show event {event} for {guests.PATIENCE:.0f} s")


def _approve(connection: socket.socket, event: str) -> float:
    begin = time.perf_counter()
    connection.sendall(guests.approval(event))
    answer = connection.recv(65536)
    taken = time.perf_counter() - begin
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"an approval was answered {answer[:200]!r}")
    return taken


# Rest, and polls


def _rest(service: Server, edge: Server, effort: Effort) -> Iterator[report.Row]:
    nothing = _shares([edge, service], effort.idle_seconds)
    with _polling(edge, VMS):
        with_guests = _shares([edge, service], effort.idle_seconds)
        resident = edge.resident_bytes() / machine.MIB
    with _polling(edge, MANY_POLLS):
        with_many = _shares([edge, service], effort.idle_seconds)
    with _polling(service, MANY_POLLS):
        (at_service,) = _shares([service], effort.idle_seconds)
    what = f"edge with {VMS} guests that poll each second"
    yield report.within(f"{what}, resident memory", resident, RESIDENT_MIB, "{:.1f} MiB")
    yield report.within(
        f"{what}, CPU of one core",
        with_guests[0],
        REST_PERCENT,
        "{:.2f} %",
        reference=f"{nothing[0]:.2f} % without, {with_many[0]:.2f} % with {MANY_POLLS} polls/s",
    )
    yield report.within(
        f"serve's CPU of one core with {MANY_POLLS} polls/s at an edge, beyond that with none",
        with_many[1] - nothing[1],
        GROWTH_PERCENT,
        "{:.2f} %",
        reference=f"{nothing[1]:.2f} % with none, {at_service:.2f} % if they polled at serve",
    )


def _shares(observed: Sequence[Server], seconds: int) -> list[float]:
    """Percent of a core of each, once it has settled."""
    time.sleep(min(SETTLED_SECONDS, seconds))
    before, begin = [each.cpu_seconds() for each in observed], time.perf_counter()
    time.sleep(seconds)
    taken = time.perf_counter() - begin
    return [100 * (each.cpu_seconds() - used) / taken for each, used in zip(observed, before, strict=True)]


@contextmanager
def _polling(server: Server, per_second: int) -> Iterator[None]:
    """The guests of the host poll in turn."""
    over = threading.Event()
    with guests.connected(server.port, [fleets.address(number) for number in range(VMS)]) as connections:

        def poll() -> None:
            turn, begin = 0, time.perf_counter()
            while not over.wait(max(0, begin + turn / per_second - time.perf_counter())):
                connection = connections[turn % VMS]
                connection.sendall(guests.POLL)
                connection.recv(65536)
                turn += 1

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _polls(service: Server, edge: Server, effort: Effort) -> report.Row:
    rates: dict[str, list[float]] = {service.name: [], edge.name: []}
    for _ in range(effort.runs):
        for server in (service, edge):
            rates[server.name].append(polls.wrk(server, effort.seconds).per_second)
    ours, theirs = median(rates[edge.name]), median(rates[service.name])
    return report.at_least("keep-alive polls at an edge, against serve", ours, theirs, POLLS_FACTOR, "{:,.0f}/s")


# Many edges


def _many_edges(effort: Effort) -> Iterator[report.Row]:
    hosts = [f"host-{number}" for number in range(effort.edges)]
    with _cluster() as cluster, cluster.service(fleets.standalone(len(hosts) * VMS, VMS)) as service:
        for host in hosts:
            cluster.enrol(host)
        alone, resident = _costs(service, cluster, effort), cluster.nats_resident_bytes()
        with _simulated(cluster) as ask:
            ask("shown")
            together = _costs(service, cluster, effort)
            connected = cluster.nats_resident_bytes() - resident
            with _operator(service, cluster.token) as operator:
                begin = time.monotonic()
                operator.send_schedule(Kind.HOST_UPDATE, hosts)
                operator.receive()
            returned = time.monotonic() - begin
            shown = [moment - begin for moment in ask("announced")]
    what = f"{len(hosts):,} simulated edges"
    yield report.within(
        f"{what}: host update over all, {len(hosts) * VMS:,} VMs, to the last one announced",
        max(shown),
        ANNOUNCED_SECONDS,
        "{:.1f} s",
        reference=f"the command {returned:.1f} s, the first {min(shown):.1f} s, half {median(shown):.1f} s",
    )
    for whose, before, after in zip(("serve", "three NATS servers"), alone, together, strict=True):
        yield report.Row(
            what=f"{what} at rest: CPU of {whose}, of one core",
            measured=f"{after:.1f} %",
            reference=f"{before:.1f} % without",
        )
    yield report.Row(
        what=f"{what}: memory of NATS's servers for each",
        measured=f"{connected / len(hosts) / 1024:.0f} KiB",
        reference=f"{resident / len(cluster.nats) / machine.MIB:.0f} MiB each without",
    )


def _costs(service: Server, cluster: Cluster, effort: Effort) -> list[float]:
    """Percent of a core."""
    time.sleep(min(SETTLED_SECONDS, effort.idle_seconds))
    before, begin = (service.cpu_seconds(), cluster.nats_cpu_seconds()), time.perf_counter()
    time.sleep(effort.idle_seconds)
    taken = time.perf_counter() - begin
    after = (service.cpu_seconds(), cluster.nats_cpu_seconds())
    return [100 * (now - then) / taken for then, now in zip(before, after, strict=True)]


@contextmanager
def _simulated(cluster: Cluster) -> Iterator[Callable[[str], list[float]]]:
    """Edges of all hosts with credentials; gives when each began to show what it shows, once all are as asked."""
    command = [
        sys.executable,
        "-m",
        "bench.edges",
        *cluster.flags,
        "--credentials",
        str(cluster.directory / "credentials"),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FORENOTICE_")}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(what: str) -> list[float]:
        stdin.write(f"{what}\n")
        stdin.flush()
        if not select.select([stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(f"not all edges are {what} after {PATIENCE:.0f} s")
        moments: list[float] = json.loads(stdout.readline())
        return moments

    try:
        yield ask
    finally:
        process.kill()
        process.wait()
        stdin.close()
        stdout.close()


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


def _scheduled(answer: bytes) -> Operation:
    return msgspec.json.decode(answer, type=Operations).operations[0]


@contextmanager
def _operator(service: Server, token: str) -> Iterator[Operator]:
    operator = Operator(service.control, token)
    try:
        yield operator
    finally:
        operator.socket.close()
