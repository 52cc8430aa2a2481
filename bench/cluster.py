"""Edges behind three NATS servers: how soon guests are told, and what an edge, a state and a beat cost."""

import random
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import msgspec

from bench import edges, fleets, guests, machine, nats_cluster, polls, report, servers
from bench.effort import Effort
from bench.nats_cluster import HOST, Cluster, Operator
from bench.servers import Server
from forenotice.centre import host_states
from forenotice.cluster import messages
from forenotice.cluster.messages import HostState
from forenotice.core.operations import Kind
from forenotice.core.reconciliation import FleetSpec
from forenotice.metadata.published import PublishedFleet
from forenotice.service import maintenance
from forenotice.service.calls import SYSTEM

VMS = fleets.PER_HOST
TOLD_P50, TOLD_P99 = 0.010, 0.100
APPROVED_P50 = 0.015
RESIDENT_MIB, REST_PERCENT = 45.0, 0.5
POLLS_FACTOR = 0.95
FIRST_ANSWER = 0.2
MANY_POLLS = 500
"""A second, at an edge, while its service is watched."""
GROWTH_PERCENT = 0.3
"""Of a core: what counts as no growth."""
STATES = 50
"""So often one is made and applied; the median counts."""

_ETAG = re.compile(rb"ETag: (\S+)\r\n")


def measure(effort: Effort) -> list[report.Row]:
    return [*_state(), *_one_edge(effort), *_on_postgresql(effort), *edges.measure(effort)]


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


def _one_edge(effort: Effort) -> Iterator[report.Row]:
    with nats_cluster.cluster() as cluster:
        token = cluster.make_fleet(_one_host())
        credentials, data = cluster.enrol(HOST), cluster.directory / "edge"
        with cluster.service() as service, nats_cluster.edge(data, credentials, cluster.flags) as edge:
            with nats_cluster.operator(service, token) as operator:
                yield from _changes("", operator, service, edge, effort)
                yield from _approvals(operator, service, edge, effort)
            yield _killed(cluster, token, service, edge)
            yield from _rest(service, edge, effort)
            yield _polls(service, edge, effort)
        starts = []
        for _ in range(effort.starts):
            nowhere = ("--nats", f"nats://127.0.0.1:{servers.free_port()}")
            with nats_cluster.edge(data, credentials, nowhere) as edge:
                starts.append(edge.first_answer_seconds)
    yield report.within(
        "restarted edge without NATS, to its first answer",
        median(starts),
        FIRST_ANSWER,
        "{:.2f} s",
        reference=f"worst {max(starts):.2f} s of {len(starts)}",
    )


def _on_postgresql(effort: Effort) -> Iterator[report.Row]:
    """Of two processes the first publishes; commands are given to either."""
    with nats_cluster.cluster() as cluster, ExitStack() as stack:
        with machine.all_cores():
            database = stack.enter_context(servers.postgresql())
        token = cluster.make_fleet(_one_host(), database)
        first = stack.enter_context(cluster.service("--database", database))
        edge = stack.enter_context(nats_cluster.edge(cluster.directory / "edge", cluster.enrol(HOST), cluster.flags))
        second = stack.enter_context(cluster.service("--database", database, name="second", core=machine.LOAD_CORE))
        for what, service in ((", PostgreSQL", first), (", PostgreSQL, by the other process", second)):
            with nats_cluster.operator(service, token) as operator:
                yield from _changes(what, operator, service, edge, effort)


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


def _changes(which: str, operator: Operator, service: Server, edge: Server, effort: Effort) -> Iterator[report.Row]:
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
            operations[vm] = nats_cluster.scheduled(answer).id
    for operation in operations.values():
        operator.send_cancel(operation)
        operator.receive()
    after = [each.after_commit for each in told]
    p50, p99 = median(after), _p99(after)
    whole, at_service = median(each.at_edge for each in told), median(each.at_service for each in told)
    what = f"commit to a guest behind an edge that waits{which}"
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


def _approvals(operator: Operator, service: Server, edge: Server, effort: Effort) -> Iterator[report.Row]:
    """Those of a host update, by every other VM at its edge, by the rest at the service. One never approves."""
    taken: dict[str, list[float]] = {service.name: [], edge.name: []}
    sources = [fleets.address(number) for number in range(VMS)]
    while len(taken[edge.name]) < effort.changes:
        operator.send_schedule(Kind.HOST_UPDATE, [HOST])
        made = nats_cluster.scheduled(operator.receive())
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


# Failures


def _killed(cluster: Cluster, token: str, service: Server, edge: Server) -> report.Row:
    """Each of NATS's servers in turn, and at the same moment somebody restarts a VM."""
    taken = []
    for vm, server in enumerate(cluster.nats):
        with (
            guests.connected(edge.port, [fleets.address(vm)]) as (guest,),
            nats_cluster.operator(service, token) as operator,
        ):
            _poll_until_changed(guest)
            server.kill()
            begin = time.perf_counter()
            operator.send_schedule(Kind.RESTART, [f"vm-{vm}"])
            operator.receive()
            taken.append(_readable_at([guest])[0] - begin)
        with machine.all_cores():
            server.start()
        cluster.await_health()
    return report.Row(
        what="a NATS server killed, to a guest behind an edge that is told of what comes next, worst of three",
        measured=f"{max(taken):.1f} s",
        reference=f"best {min(taken):.2f} s",
    )


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
    time.sleep(min(nats_cluster.SETTLED_SECONDS, seconds))
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
