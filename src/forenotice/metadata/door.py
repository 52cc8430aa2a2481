"""One listener: it lets guests in, and answers those at once that only want one document and be gone."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, Protocol

from forenotice.accepting import Acceptor
from forenotice.core import errors
from forenotice.metadata import answers, identity
from forenotice.metadata.answers import Persistence
from forenotice.metadata.desk import Desk
from forenotice.metadata.protocol import Connection
from forenotice.settings import Address, Listener

BACKLOG = 4096
RECEIVE_BUFFER = 64 * 1024
"""The kernel's receive buffer per connection: guests send little, and a flood should block."""
SEND_BUFFER = 64 * 1024
"""The kernel's send buffer: by default it takes megabytes before we notice that a client does not read."""
FIRST_BYTES = 4096
SOCKET_MODE = 0o660
HOP_LIMIT = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TTL),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS),
}
DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)
"""Saves a call for each connection; Windows has to be told before."""
LAST = DONT_WAIT | getattr(socket, "MSG_MORE", 0)
"""More follows at once, the end of the connection: where the system can, both go in one packet."""


class Connect(Protocol):
    """How a door makes a connection of somebody it has let in."""

    def __call__(
        self,
        desk: Desk,
        listener_vm: str | None,
        peer: str | None,
        caller: str | None,
        /,
        *,
        first: bytes = b"",
        last: bytes = b"",
    ) -> Connection: ...


class Door:
    """Accepts by itself rather than through the loop's server.

    A guest that polls once per connection has usually sent its request before it is accepted. When these bytes are
    known (see `Desk.recall`), the answer goes out and the connection is closed before any transport is made for it.
    """

    def __init__(self, desk: Desk, listener: Listener, connect: Connect = Connection) -> None:
        self._desk = desk
        self._new_connection = connect
        self._listener = listener
        self._vm = listener.vm
        self._unix = isinstance(listener.at, Path)
        self._sockets: list[socket.socket] = []
        self._acceptors: list[Acceptor] = []
        self._adopting: set[asyncio.Task[None]] = set()
        self._inode: tuple[int, int] | None = None

    @property
    def bound(self) -> tuple[Address | Path, ...]:
        if isinstance(self._listener.at, Path):
            return (self._listener.at,)
        return tuple(Address(host=name[0], port=name[1]) for name in (s.getsockname() for s in self._sockets))

    def open(self) -> None:
        try:
            if isinstance(self._listener.at, Path):
                self._open_unix(self._listener.at)
            else:
                self._open_tcp(self._listener.at)
        except OSError as error:
            self._close_sockets()
            reason = error.strerror or str(error)
            forbidden = isinstance(error, PermissionError) and not self._unix
            remedy = "ports below 1024 are root's (or CAP_NET_BIND_SERVICE):" if forbidden else "free it or"
            raise errors.RefusedError(
                f"Guests cannot be served at {self._listener}: {reason}; {remedy} choose another with --metadata."
            ) from None
        self._acceptors += (Acceptor(listening, self._listener, self._accept) for listening in self._sockets)

    async def close(self) -> None:
        while self._acceptors:
            self._acceptors.pop().close()
        self._sockets.clear()
        if isinstance(self._listener.at, Path):
            # Another process may have taken the path over.
            with contextlib.suppress(FileNotFoundError):
                if _identity(self._listener.at) == self._inode:
                    self._listener.at.unlink()
        if self._adopting:
            await asyncio.wait(self._adopting)

    def _open_tcp(self, at: Address) -> None:
        port = at.port
        found = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, proto, _, name in dict.fromkeys(found):
            listening = socket.socket(family, kind, proto)
            self._sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if self._listener.one_hop:
                # Connections inherit it; even the handshake has it.
                listening.setsockopt(*HOP_LIMIT[family], 1)
            if hasattr(socket, "TCP_DEFER_ACCEPT"):
                # Woken by the request rather than by the handshake; a client that sends nothing comes in after this.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
            listening.bind((name[0], port, *name[2:]))
            port = listening.getsockname()[1]
            listening.listen(BACKLOG)

    def _open_unix(self, path: Path) -> None:
        _remove_stale(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(listening)
        listening.bind(str(path))
        # Nobody can connect before listen.
        path.chmod(SOCKET_MODE)
        self._inode = _identity(path)
        listening.listen(BACKLOG)

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def _accept(self, client: socket.socket, address: Any) -> None:
        self._receive(client, None if self._unix else identity.canonical(address[0]))

    def _receive(self, client: socket.socket, peer: str | None) -> None:
        desk = self._desk
        desk.counters.accepted += 1
        try:
            if not DONT_WAIT:
                client.setblocking(False)
            first = client.recv(FIRST_BYTES, DONT_WAIT)
        except BlockingIOError:
            first = None
        if first == b"":
            client.close()
            return
        answer = self._answer(first, peer) if first else None
        caller = self._caller(peer) if answer is None else None
        if answer is None and not desk.room.admits(caller):
            answer = desk.letterhead.compose(answers.FULL, Persistence.CLOSES)
        if answer is None:
            self._adopt(client, peer, caller, first=first or b"")
            return
        sent = _send(client, answer)
        if sent == len(answer):
            client.close()
        else:
            self._adopt(client, peer, self._caller(peer), last=answer[sent:])

    def _answer(self, first: bytes, peer: str | None) -> bytes | None:
        desk = self._desk
        request = desk.recall(first)
        if request is None or request.quick is None or request.persistence is not Persistence.CLOSES:
            return None
        # What was learnt from these bytes holds for callers that are not trusted.
        if self._vm is None and desk.callers.trusts(peer):
            return None
        guest = desk.callers.known(self._vm, peer)
        return None if guest is None else desk.poll(request, guest)

    def _caller(self, peer: str | None) -> str | None:
        """Against whose share of the connections one counts; None: it serves many VMs."""
        if self._vm is not None:
            return f"the listener of {self._vm}"
        return None if peer is None else self._desk.callers.share(peer)

    def _adopt(
        self, client: socket.socket, peer: str | None, caller: str | None, *, first: bytes = b"", last: bytes = b""
    ) -> None:
        connection = self._new_connection(self._desk, self._vm, peer, caller, first=first, last=last)
        # Before there is a transport, so that those accepted together are counted.
        self._desk.room.arrive(connection)
        task = self._desk.loop.create_task(self._connect(client, connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        client.setblocking(False)
        try:
            await self._desk.loop.connect_accepted_socket(lambda: connection, client)
        except OSError:
            client.close()
            self._desk.room.leave(connection)


def _send(client: socket.socket, answer: bytes) -> int:
    try:
        return client.send(answer, LAST)
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
