"""`forenotice serve`: the one place where everything is put together."""

import asyncio
import importlib
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Literal, Protocol

import structlog

from forenotice import cluster, control_socket, data_directory, demo, garbage_collection, logs
from forenotice.control import tls as control_tls
from forenotice.control.metrics import Metrics
from forenotice.core import errors
from forenotice.core.draft import UserLimits
from forenotice.core.inventory import Rule
from forenotice.core.timing import Retries, Timing
from forenotice.drivers import inventory_rules, registry
from forenotice.drivers.call_queue import DriverChoice
from forenotice.drivers.surroundings import Surroundings
from forenotice.failures import Failures
from forenotice.metadata.options import Options
from forenotice.metadata.published import LoopPublisher, PublishedFleet
from forenotice.metadata.server import MetadataServer, new_event_loop
from forenotice.metadata.upstream import ServiceUpstream
from forenotice.portal.pages.sign_in import SignInLink
from forenotice.runtime import Runtime
from forenotice.service import gates, housekeeping, inventory, tokens
from forenotice.service.guests import Guests
from forenotice.service.inventory import InventoryLoop, Watcher
from forenotice.service.loops import Follower, watching_for_deaths
from forenotice.service.rollouts import RolloutLoop
from forenotice.service.service import Service
from forenotice.service.tick import TickLoop
from forenotice.settings import Address, Settings
from forenotice.ssrf import OutgoingClient, SocketAddress
from forenotice.store.database import UnreachedStore
from forenotice.store.opener import open_store

if TYPE_CHECKING:
    from forenotice.control.server import ControlServer

log = structlog.get_logger()

REACH_SECONDS = 1.0
"""Between two tries to reach a database that is away at the start."""

STOP_SECONDS = 28.0
"""The process ends this long after a signal at the latest; less than the unit's TimeoutStopSec."""


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM."""
    # Files are for this user alone; sockets get their own modes.
    os.umask(0o077)
    # A command's thread gives way to polls sooner than by default.
    sys.setswitchinterval(0.0005)
    logs.configure(settings.log_level, settings.log_format)
    if settings.former_data and not settings.demo:
        log.warning(
            "There is data under the project's former name; to use it, give it with --data",
            action="serve.former_data",
            directory=str(settings.former_data),
        )
    garbage_collection.raise_threshold()
    options = Options.of(settings)
    if settings.nats:
        cluster.require()
    tls = _tls(settings)
    runtime = Runtime()
    with ExitStack() as held:
        held.enter_context(data_directory.held(settings.directory, settings.database_file))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            died = held.enter_context(watching_for_deaths(lambda: os.kill(os.getpid(), signal.SIGTERM)))
            runner.run(_serve(settings, options, tls, runtime))
        log.info("Stopped", action="serve.stopped")
    return 1 if died else 0


async def _serve(settings: Settings, options: Options, tls: SSLContext | None, runtime: Runtime) -> None:
    published = PublishedFleet()
    published.loaded = False
    loop = asyncio.get_running_loop()
    publisher = LoopPublisher(published, loop)

    def polled(vm: str) -> datetime | None:
        """Here or at an edge."""
        return max(filter(None, (published.polled(vm), service.edges.polled(vm))), default=None)

    surroundings = Surroundings(
        last_poll=polled,
        end_long_polls=publisher.end_long_polls,
        definition=lambda vm: inventory.definition(service, vm),
    )
    rules = inventory_rules.load(settings.inventory_rules) if settings.inventory_rules else []
    drivers, retries = registry.open_drivers(settings.driver, settings.speed, runtime, surroundings)
    stopping = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, stopping)
    own: list[SocketAddress] = []
    """Our listeners, once they are bound: subscriptions and gates must not reach them."""
    outgoing = partial(OutgoingClient, private=settings.allow_private_targets, own=own)
    metrics = Metrics(
        events=lambda: _live_events(service),
        guests=lambda: metadata.counters.by_kind(),
        threads=lambda: service.liveness.seconds_since(),
        behind=lambda: runtime.clock.behind,
        drift=lambda: _drift(service),
        silent=lambda: len(service.silent),
        edges=lambda: service.edges.all(),
    )
    service = _service(settings, options, runtime, drivers, retries, metrics, publisher, outgoing)
    metadata = MetadataServer(
        published=published,
        upstream=ServiceUpstream(Guests(service), options.limits, service.liveness, runtime.start_thread),
        clock=service.clock,
        timing=service.timing,
        options=options,
        monotonic=runtime.monotonic,
    )
    async with AsyncExitStack() as workers, _answering() as shells:
        workers.callback(lambda: service.store.close())
        reaching = asyncio.create_task(_reach(settings, service))
        told = asyncio.create_task(stopping.wait())
        if await _first_of(reaching, told, None if settings.database_file else REACH_SECONDS):
            reaching.result()
        elif told.done():
            return
        metadata.start(settings.metadata)
        shells.append(metadata)
        workers.callback((settings.directory / control_socket.NAME).unlink, missing_ok=True)
        once = _once(settings)
        control = await _start_control(settings, service, metadata, polled, tls, once, metrics)
        shells.append(control)
        operators_at = Address(host=settings.control.host, port=control.port)
        own += _places(metadata, operators_at)
        listeners = {"metadata": [str(each) for each in metadata.listening], "control": str(operators_at)}
        if not reaching.done():
            log.warning("Waiting for the database", action="serve.waiting", **listeners)
        if not await _first_of(reaching, told):
            return
        service.give_grace()
        if service.edges.hosts and not settings.nats:
            log.warning(
                "Hosts have edges, which this process cannot reach: give --nats, or forget them with `edge forget`",
                action="serve.without_nats",
                hosts=len(service.edges.hosts),
            )
        for thread in _threads(settings, service, reaching.result(), outgoing(), rules):
            thread.start()
            workers.push_async_callback(asyncio.to_thread, thread.stop)
        if settings.demo:
            demo.show(demo.text(metadata.bound[0], str(operators_at), settings, once.secret if once else None))
        elif once:
            demo.show(demo.link(str(operators_at), settings, once.secret))
        log.info("Serving", action="serve.started", **listeners, speed=settings.speed)
        await told
        log.info("Stopping", action="serve.stopping")


def _service(
    settings: Settings,
    options: Options,
    runtime: Runtime,
    drivers: Sequence[DriverChoice],
    retries: Retries,
    metrics: Metrics,
    publisher: LoopPublisher,
    outgoing: Callable[..., OutgoingClient],
) -> Service:
    return Service(
        store=UnreachedStore(),
        runtime=runtime,
        timing=Timing(speed=settings.speed, retries=retries),
        publisher=publisher,
        telemetry=metrics,
        drivers=drivers,
        outgoing=outgoing(),
        gates=gates.Gates(
            {gate.name: gate.command for gate in settings.gate}, outgoing(seconds=gates.SECONDS), runtime
        ),
        allows_loopback=settings.allow_loopback_addresses,
        limits=UserLimits(fleet=settings.max_user_operations, tenant=settings.max_tenant_operations),
        edge_patience=settings.edge_patience,
        versions=options.versions,
        token_file=settings.token_file,
    )


class _Thread(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


def _threads(
    settings: Settings, service: Service, position: int, outgoing: OutgoingClient, rules: Sequence[Rule]
) -> Iterator[_Thread]:
    # Now, because the control plane has loaded what it needs.
    from forenotice.delivery import worker

    yield TickLoop(service)
    yield RolloutLoop(service)
    yield Follower(service, position)
    yield worker.Worker(service, outgoing)
    yield InventoryLoop(service, partial(_watch_libvirt, service.runtime), rules)
    if settings.nats:
        # Only where there are edges: it is an extra.
        from forenotice.centre.centre import Centre
        from forenotice.cluster.connection import Servers

        yield Centre(service, Servers.of(settings))


def _watch_libvirt(runtime: Runtime, changed: Callable[[str], None]) -> Watcher:
    # Only where a host is watched: it is an extra.
    from forenotice.drivers.libvirt.connections import shared
    from forenotice.drivers.libvirt.inventory import LibvirtInventory

    return LibvirtInventory(runtime, shared(runtime), changed)


def _stop(stopping: asyncio.Event) -> None:
    """A hanging database must not keep the process alive: everything acknowledged is durable already."""
    if not stopping.is_set():
        stopping.set()
        deadline = threading.Timer(STOP_SECONDS, _abandon)
        deadline.daemon = True
        deadline.start()


def _abandon() -> None:
    log.error("Not everything stopped in time; the process ends", action="serve.abandoned", seconds=STOP_SECONDS)
    logs.writer.flush()
    os._exit(1)


@asynccontextmanager
async def _answering() -> "AsyncIterator[list[MetadataServer | ControlServer]]":
    """Servers are stopped together, so that no response waits for another server."""
    shells: list[MetadataServer | ControlServer] = []
    try:
        yield shells
    finally:
        await asyncio.gather(*(shell.stop() for shell in shells))


async def _first_of(
    wanted: "asyncio.Task[int]", other: "asyncio.Task[Literal[True]]", seconds: float | None = None
) -> bool:
    """Waits for either, or the time; gives whether `wanted` is done."""
    await asyncio.wait({wanted, other}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return wanted.done()


async def _reach(settings: Settings, service: Service) -> int:
    """Open the store and show guests what is in it; gives the journal position of that. Waits for PostgreSQL."""
    failures = Failures()
    while True:
        try:
            with garbage_collection.paused():
                # In a thread, so that a signal is handled even if the database hangs.
                position = await asyncio.to_thread(_prepare, settings, service)
            garbage_collection.freeze()
            return position
        except errors.UnavailableError as error:
            if settings.database_file is not None:
                raise
            if failures.again(error.message):
                log.warning("The database cannot be reached", action="serve.unreachable", reason=error.message)
        await asyncio.sleep(REACH_SECONDS)


def _prepare(settings: Settings, service: Service) -> int:
    """All that must be right before the first answer; gives the journal position that guests are shown."""
    alone = settings.database_file is not None
    service.store.close()
    # SQLite is brought up to date by itself, PostgreSQL only by `forenotice migrate`.
    service.store = open_store(settings.database_url, migrate=alone)
    housekeeping.require_sane_clock(service)
    housekeeping.notice_restored_backup(service)
    housekeeping.resume(service, alone=alone)
    if settings.demo:
        demo.make_fleet(service)
    _look_at_tokens(settings, service)
    _warn_of_strangers(settings, service)
    return service.refresh()


def _look_at_tokens(settings: Settings, service: Service) -> None:
    def keep(secret: str) -> None:
        try:
            data_directory.write_secret(settings.token_file, secret)
        except OSError as error:
            raise errors.RefusedError(
                f"the token file {settings.token_file} cannot be written ({error.strerror}): make room for it"
            ) from None

    alone = settings.database_file is not None
    if alone and tokens.create_first(service, keep):
        log.info(
            "The administrator's token was created; it does not expire",
            action="token.first",
            file=str(settings.token_file),
        )
    elif not tokens.list_all(service).items:
        log.warning("There is no token yet: make one with `forenotice token create --offline`", action="token.none")
    elif unending := tokens.never_expiring(service):
        log.info("Some tokens never expire", action="token.unending", count=len(unending), such_as=unending[:5])


def _warn_of_strangers(settings: Settings, service: Service) -> None:
    """Callers may be taken for a VM that is added later, or that is misspelt."""
    named = {name for name in (settings.as_vm, *(listener.vm for listener in settings.metadata)) if name}
    with service.store.read() as reader:
        known = reader.worlds.load(vms=sorted(named)).vms
    for name in sorted(named - set(known)):
        log.warning("Callers are taken for a VM that does not exist", action="serve.unknown_vm", vm=name)


def _tls(settings: Settings) -> SSLContext | None:
    certificate, key = settings.control_certificate, settings.control_key
    found = control_tls.context(certificate, key) if certificate and key else None
    control_tls.require(settings.control.host, found, without=settings.control_without_tls)
    if found is None and not control_tls.is_loopback(settings.control.host):
        log.warning("Tokens of operators may cross the network unencrypted", action="serve.without_tls")
    return found


async def _start_control(
    settings: Settings,
    service: Service,
    metadata: MetadataServer,
    polled: Callable[[str], datetime | None],
    tls: SSLContext | None,
    once: SignInLink | None,
    metrics: Metrics,
) -> "ControlServer":
    # Late and in a thread, so that guests are answered while the control plane is loaded.
    await asyncio.to_thread(importlib.import_module, "forenotice.portal.app")
    from forenotice.control import app, requests
    from forenotice.control.limits import Throttle
    from forenotice.control.server import ControlServer
    from forenotice.control.stream import Tail
    from forenotice.portal import app as portal

    tail, at, bound = Tail(service), settings.control, metadata.bound[0]
    # Where guests find us, if that is not the address that it always is in a VM.
    guests_at = f"http://{bound}" if settings.demo and isinstance(bound, Address) else None
    api = app.Api(service, metrics, tail, token_rate=settings.token_rate)
    served = portal.beside(api, service, once=once, polled=polled, guests_at=guests_at)
    if tls is None:
        served = requests.KnownHosts(served, {*settings.control_name, at.host.lower()})
    control = ControlServer(Throttle(served), at.host, at.port, tls=tls, on_stop=tail.close)
    await control.start(local=_local_socket(settings))
    return control


def _local_socket(settings: Settings) -> socket.socket | None:
    try:
        return control_socket.listen(settings.directory)
    except OSError as error:
        # Some file systems have none; commands then need an address and a token.
        log.warning(
            "The socket for local commands could not be made", action="serve.no_socket", reason=str(error.strerror)
        )
        return None


def _once(settings: Settings) -> SignInLink | None:
    """For the user who runs this on this machine and sees its output."""
    here = control_tls.is_loopback(settings.control.host)
    if not settings.sign_in_link or not here or not settings.token_file.is_file():
        return None
    return SignInLink(settings.token_file.read_text().strip())


def _places(metadata: MetadataServer, control: Address) -> list[SocketAddress]:
    # What listens in another network namespace cannot be reached from ours.
    guests = (each.at for each in metadata.listening if isinstance(each.at, Address) and each.netns is None)
    return [
        (ipaddress.ip_address(found[4][0]), at.port)
        for at in (control, *guests)
        for found in socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)
    ]


def _live_events(service: Service) -> Mapping[tuple[str, str], int]:
    with service.store.read() as reader:
        return reader.events.counts_by_type()


def _drift(service: Service) -> Mapping[str, int]:
    with service.store.read() as reader:
        return reader.drift.counts_by_kind()
