"""The guests' endpoint as a whole: its listeners, its timers, and a stop that first sends what is under way."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from forenotice import descriptors
from forenotice.clock import Clock
from forenotice.core import errors
from forenotice.core.timing import Timing
from forenotice.descriptors import Acceptor
from forenotice.logs import log
from forenotice.metadata import identity, interfaces, responses
from forenotice.metadata.connection import Connection, Interceptor
from forenotice.metadata.endpoint import Counters, GuestEndpoint
from forenotice.metadata.options import Options
from forenotice.metadata.published import PublishedFleet
from forenotice.metadata.responses import Persistence
from forenotice.metadata.upstream import Upstream
from forenotice.settings import Address, Listener

BACKLOG = 4096
BUFFER = 64 * 1024
"""The kernel's buffers per connection: guests send little, and by default the kernel takes megabytes of responses
before we notice that a client does not read."""
TCP_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER),
    (socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER),
    # Wake us by the request rather than by the handshake; a client that sends nothing is accepted after a second.
    *([(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)] if hasattr(socket, "TCP_DEFER_ACCEPT") else []),
)
FIRST_BYTES = 4096
FOLLOW_SECONDS = 1.0
"""How often we look whether the interfaces and network namespaces of listeners are still there."""
SOCKET_MODE = 0o660
HOP_LIMIT = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TTL),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS),
}
DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)
"""Saves a call for each connection; Windows has to be told before."""
LAST = DONT_WAIT | getattr(socket, "MSG_MORE", 0)
"""More follows at once, the end of the connection: where the system can, both go in one packet."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed; Windows has none, and a test needs none."""
    try:
        import uvloop
    except ImportError:
        # Not the one that Windows has by default, which cannot watch a listening socket.
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()


class MetadataServer:
    """Made and used on a running loop; `published` is filled before or meanwhile."""

    def __init__(
        self,
        *,
        published: PublishedFleet,
        upstream: Upstream,
        clock: Clock,
        timing: Timing,
        options: Options | None = None,
        connection: type[Connection] = Connection,
        intercept: Callable[[Connection], Interceptor] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or Options()
        allowed = descriptors.allow(options.limits.connections + descriptors.SPARE)
        self._options = replace(options, limits=options.limits.within(allowed))
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._upstream = upstream
        self._endpoint = GuestEndpoint(
            published=published,
            upstream=self._upstream,
            clock=clock,
            timing=timing,
            options=self._options,
            loop=self._loop,
            monotonic=monotonic,
            intercept=intercept,
        )
        self._connection = connection
        self._listeners: list[OpenListener] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def counters(self) -> Counters:
        return self._endpoint.counters

    @property
    def listening(self) -> tuple[Listener, ...]:
        """Where guests are answered, each name resolved, with the ports that the system chose."""
        return tuple(each for opened in self._listeners for each in opened.listening)

    @property
    def bound(self) -> tuple[Address | Path, ...]:
        return tuple(each.at for each in self.listening)

    def start(self, listeners: Sequence[Listener]) -> None:
        try:
            for listener in listeners:
                self.open(listener)
        except BaseException:
            for one in self._listeners:
                self._loop.create_task(one.close())
            self._listeners.clear()
            raise
        self._upstream.start()
        self._refresh()
        self._sweep()
        self._follow()

    def open(self, listener: Listener) -> Address | Path:
        """One more listener, also while others are served; gives where it is bound."""
        opened = OpenListener(self._endpoint, listener, self._connection)
        opened.open()
        self._listeners.append(opened)
        return opened.listening[0].at

    def refresh(self) -> None:
        """Read the clock now; it is read once a second anyway."""
        self._endpoint.refresh()

    def keep_to(self, timing: Timing) -> None:
        self._endpoint.listening.keep_to(timing)

    def tell_polls(self) -> None:
        """Those that are due, now; it is done once a minute anyway."""
        self._endpoint.listening.flush()

    @property
    def is_mute(self) -> bool:
        """Whether it could not tell for long who polled."""
        return self._endpoint.listening.is_mute

    def add_headers(self, headers: bytes) -> None:
        """To every response, from the next second on; each with its line's end."""
        self._endpoint.headers = headers

    def take_callers_for(self, vm: str) -> None:
        """Callers that no other way identifies are this VM from now on."""
        self._endpoint.callers.default = vm
        self._endpoint.published.generation += 1

    async def stop(self, grace: float = 5) -> None:
        """Accept no more connections, send responses that are under way, store which scopes polled, then close."""
        if following := self._timers.pop("follow", None):
            following.cancel()
        for one in self._listeners:
            await one.close()
        self._endpoint.stopping = True
        for connection in tuple(self._endpoint.connections.open):
            connection.stop()
        deadline = self._loop.time() + grace
        self._endpoint.listening.flush(last=True)
        await self._until_empty(grace)
        if not await self._upstream.close(max(0.1, deadline - self._loop.time())):
            log.error("The store did not answer in time", action="guests.abandoned")
        for timer in self._timers.values():
            timer.cancel()
        for connection in tuple(self._endpoint.connections.open):
            connection.abort()
        await self._until_empty(1)

    async def _until_empty(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._endpoint.connections.empty.wait(), seconds)

    def _refresh(self) -> None:
        self._endpoint.refresh()
        # Just after the second changes, so that the Date is hardly ever late.
        seconds = 1.001 - self._clock.now().microsecond / 1_000_000
        self._timers["refresh"] = self._loop.call_later(seconds, self._refresh)

    def _sweep(self) -> None:
        self._endpoint.connections.sweep()
        self._timers["sweep"] = self._loop.call_later(self._options.limits.sweep_seconds, self._sweep)

    def _follow(self) -> None:
        for one in self._listeners:
            one.follow()
        self._timers["follow"] = self._loop.call_later(FOLLOW_SECONDS, self._follow)


class OpenListener:
    """Accepts connections itself rather than through the loop's server.

    A guest that polls once per connection has usually sent its request before it is accepted. When these bytes are
    known (see `GuestEndpoint.recall`), the response goes out and the connection is closed before a transport is made.
    """

    def __init__(self, endpoint: GuestEndpoint, listener: Listener, connection: type[Connection]) -> None:
        self._endpoint = endpoint
        self._listener = listener
        self._connection = connection
        self._vm = listener.vm
        self._unix = isinstance(listener.at, Path)
        self._sockets: list[socket.socket] = []
        self.listening: tuple[Listener, ...] = ()
        """One for each address of the name that was given."""
        self._bound: list[Address] = []
        self._namespace: tuple[int, int] | None = None
        self._lost = False
        self._acceptors: list[Acceptor] = []
        self._adopting: set[asyncio.Task[None]] = set()
        self._inode: tuple[int, int] | None = None

    def open(self) -> None:
        listener = self._listener
        self._namespace = interfaces.identity(listener.netns)
        try:
            if isinstance(listener.at, Path):
                self._open_unix(listener.at)
            elif listener.netns is None:
                self._open_tcp(listener.at)
            else:
                interfaces.call_in(listener.netns, partial(self._open_tcp, listener.at))
        except interfaces.UnusableError as error:
            self._close_sockets()
            raise errors.ConflictError(f"Guests cannot be served at {listener}: {error}.") from None
        except OSError as error:
            self._close_sockets()
            reason = error.strerror or str(error)
            forbidden = isinstance(error, PermissionError) and not self._unix
            remedy = "ports below 1024 are root's (or CAP_NET_BIND_SERVICE):" if forbidden else "free it or"
            raise errors.ConflictError(
                f"Guests cannot be served at {listener}: {reason}; {remedy} choose another with --metadata."
            ) from None
        self._acceptors += (Acceptor(listening, self._listener, self._accept) for listening in self._sockets)

    def follow(self) -> None:
        """Open it again when its interface or network namespace has been made anew, as a VM's tap is at each start."""
        if not self._has_moved():
            return
        self._close_acceptors()
        try:
            self.open()
        except errors.ConflictError as error:
            if not self._lost:
                log.error("A listener has lost its interface", action="listener.lost", reason=str(error))
            self._lost = True
        else:
            log.info("A listener has found its interface again", action="listener.found", at=str(self._listener))
            self._lost = False

    def _has_moved(self) -> bool:
        interface, netns = self._listener.interface, self._listener.netns
        is_same = interfaces.identity(netns) == self._namespace
        if netns is not None and netns.is_relative_to("/proc") and not is_same:
            # A process id is not a name: the next process with it may be anywhere.
            return False
        if self._lost or not is_same:
            return True
        return interface is not None and not all(interfaces.is_bound(each, interface) for each in self._sockets)

    async def close(self) -> None:
        self._close_acceptors()
        if isinstance(self._listener.at, Path):
            # Another process may have taken the path over.
            with contextlib.suppress(FileNotFoundError):
                if _identity(self._listener.at) == self._inode:
                    self._listener.at.unlink()
        if self._adopting:
            await asyncio.wait(self._adopting)

    def _open_tcp(self, at: Address) -> None:
        # A name is looked up once, because nothing may block the loop later. A zone's number may have changed.
        places = [at] if "%" in at.host or not self._bound else self._bound
        port, bound = places[0].port, []
        look_up = partial(socket.getaddrinfo, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        found = [info for place in places for info in look_up(place.host, place.port)]
        for family, kind, proto, _, name in dict.fromkeys(found):
            listening = socket.socket(family, kind, proto)
            self._sockets.append(listening)
            for level, option, value in TCP_OPTIONS:
                listening.setsockopt(level, option, value)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if self._listener.interface is not None:
                interfaces.bind(listening, self._listener.interface, self._listener.netns)
            if self._listener.one_hop:
                # Connections inherit it; even the handshake has it.
                listening.setsockopt(*HOP_LIMIT[family], 1)
            listening.bind((name[0], port, *name[2:]))
            host, port = listening.getsockname()[:2]
            listening.listen(BACKLOG)
            bound.append(Address(host=host, port=port))
        self._bound = bound
        self.listening = tuple(structs.replace(self._listener, at=each) for each in bound)

    def _open_unix(self, path: Path) -> None:
        _remove_stale(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(listening)
        listening.bind(str(path))
        # Nobody can connect before listen.
        path.chmod(SOCKET_MODE)
        self._inode = _identity(path)
        listening.listen(BACKLOG)
        self.listening = (self._listener,)

    def _close_acceptors(self) -> None:
        while self._acceptors:
            self._acceptors.pop().close()
        self._sockets.clear()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def _accept(self, client: socket.socket, address: Any) -> None:
        peer = None if self._unix else identity.canonical(address[0])
        endpoint = self._endpoint
        endpoint.counters.accepted += 1
        try:
            if not DONT_WAIT:
                client.setblocking(False)
            first = client.recv(FIRST_BYTES, DONT_WAIT)
        except BlockingIOError:
            first = None
        if first == b"":
            client.close()
            return
        response = self._known_response(first, peer) if first else None
        caller = self._caller(peer) if response is None else None
        if response is None and not endpoint.connections.admits(caller):
            response = endpoint.status_lines.compose(responses.FULL, Persistence.CLOSES)
        if response is None:
            self._adopt(client, peer, caller, first=first or b"")
            return
        sent = _send(client, response)
        if sent == len(response):
            client.close()
        else:
            self._adopt(client, peer, self._caller(peer), last=response[sent:])

    def _known_response(self, first: bytes, peer: str | None) -> bytes | None:
        endpoint = self._endpoint
        request = endpoint.recall(first)
        if request is None or request.plain_poll is None or request.persistence is not Persistence.CLOSES:
            return None
        # What was learnt from these bytes holds for callers that are not trusted.
        if self._vm is None and endpoint.callers.trusts(peer):
            return None
        guest = endpoint.callers.known(self._vm, peer)
        return None if guest is None else endpoint.poll(request, guest)

    def _caller(self, peer: str | None) -> str | None:
        """Whose connection limit it counts against; None: it serves many VMs."""
        if self._vm is not None:
            return f"the listener of {self._vm}"
        return None if peer is None else self._endpoint.callers.share(peer)

    def _adopt(
        self, client: socket.socket, peer: str | None, caller: str | None, *, first: bytes = b"", last: bytes = b""
    ) -> None:
        connection = self._connection(self._endpoint, self._vm, peer, caller, _first=first, _last=last)
        # Before there is a transport, so that those accepted together are counted.
        self._endpoint.connections.arrive(connection)
        task = self._endpoint.loop.create_task(self._connect(client, connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        client.setblocking(False)
        try:
            await self._endpoint.loop.connect_accepted_socket(lambda: connection, client)
        except OSError:
            client.close()
            self._endpoint.connections.leave(connection)


def _send(client: socket.socket, response: bytes) -> int:
    try:
        return client.send(response, LAST)
    except BlockingIOError:
        return 0


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _remove_stale(path: Path) -> None:
    """A socket that nobody listens at any more is left behind by a process that was killed."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file of that name which is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
