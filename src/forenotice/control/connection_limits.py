"""Limits for connections to the control plane: their number, a head's bytes, pipelining, time to send and to read.

When there are too many connections, the address with most of them makes room, with the one that has been waited for
longest. What is being answered, and read, is left alone, unless it is of an address that has many.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import socket
import ssl
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from forenotice import descriptors
from forenotice.limits import ConnectionLimit

CONNECTIONS = 256
"""Operators are few, and guests' connections need the descriptors."""
CONNECTIONS_OF_ONE = 128
"""From one address: half, so that nobody takes everything."""
FEW = 16
"""An address with no more connections than this keeps those that are being answered, even during a flood."""
KEPT_FOR_LOOPBACK = 16
"""Of all: whoever is on this machine gets in, however many others there are."""
HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0
"""From the connection, or the response before, to the end of a request's head; `requests` limits the body."""
READ_SECONDS = 10.0
LEAST_READ = 16 * 1024
"""Bytes of an answer that a client must take in so many seconds while more of it waits here than a buffer holds."""
LINGER_BYTES = 1024 * 1024
LINGER_SECONDS = 1.0
"""What is still read of a request after its answer, and for how long."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_moments = itertools.count(1)
"""Orders connections; the loop's clock gives many of them the same time."""


class PipelinedError(Exception):
    """A client pipelined a third request while one is being answered and one waits."""


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._awaited_since = 0
        self._client: socket.socket | None = None
        self._address: Address | None = None
        self._running: RequestResponseCycle | None = None
        self._hears_no_more = False
        self._is_evicted = False

    def arrive(self, client: socket.socket, address: str) -> None:
        """Under TLS there is no transport before the handshake, which a client need never finish."""
        self._client = client
        self._address = address_of(address)
        self._awaited_since = next(_moments)
        self.connections.add(self)
        self._require_room()

    async def shake_hands(self, client: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: self, client, ssl=tls, ssl_handshake_timeout=HEAD_SECONDS)
        except OSError:
            # It has left, was too slow, or speaks something else.
            self.connections.discard(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self._address = address_of(self.client[0]) if self.client else None
        # Clients of the unix socket are on this machine.
        self.client = self.client or ("127.0.0.1", 0)
        self._require_room()

    def _require_room(self) -> None:
        near = self._address is None or self._address.is_loopback
        possible = descriptors.for_operators(descriptors.allowed())
        of_one, most = min(CONNECTIONS_OF_ONE, possible // 2), min(CONNECTIONS, possible)
        self._make_room([each for each in self._open() if each._address == self._address], of_one)
        self._make_room(self._open(), most if near else most - KEPT_FOR_LOOPBACK)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_deadline)
        _cancel(self._write_deadline)
        super().connection_lost(exc)
        if self._running is not None:
            # It is not the last request if another one waits behind it.
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._hears_no_more:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        # A head that ended with this data, or a body in it, has set the count back.
        if self._head_bytes > HEAD_BYTES and not self._hears_no_more and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        if self.pipeline:
            raise PipelinedError
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        _cancel(self._head_deadline)
        self._head_bytes = 0
        self._awaited_since = next(_moments)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Not in the middle of another answer: complete requests are answered first, and nothing more is read."""
        if self._running is None or not self._answering or not (self._came_whole or self._running.response_started):
            super().send_400_response(msg)
            return
        self._hears_no_more = True
        self.flow.pause_reading()
        if self.cycle.more_body:
            self.pipeline.clear()
        (self.pipeline[0][0] if self.pipeline else self._running).keep_alive = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._awaited_since = next(_moments)
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._write_deadline)
        if not self._answering:
            self._await_head()

    def evict(self) -> None:
        self._is_evicted = True
        self._cut()

    def shutdown(self) -> None:
        if self.transport is None:
            self._cut()
        else:
            super().shutdown()

    def _cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self._client is not None:
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    @property
    def is_awaited(self) -> bool:
        """Whether we wait for the client: for a head, a body, or to read the answer."""
        return not self._answering or not self._came_whole or self.flow.write_paused

    @property
    def _answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    @property
    def _came_whole(self) -> bool:
        return self._running is not None and not self._running.more_body

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, partial(_linger, app, cycle))

    @property
    def _holder(self) -> Address | str:
        return self._address or "this machine"

    def _open(self) -> list["BoundedProtocol"]:
        return [each for each in self.connections if isinstance(each, BoundedProtocol) and not each._is_evicted]

    def _make_room(self, connections: list["BoundedProtocol"], most: int) -> None:
        """If all others are being answered and no address has many, this new connection itself goes."""
        if len(connections) <= most:
            return
        limit: ConnectionLimit[BoundedProtocol] = ConnectionLimit()
        for each in connections:
            limit.add(each, each._holder)
        many = max(FEW, limit.held_by(self._holder))

        def rank(each: BoundedProtocol) -> tuple[bool, int] | None:
            movable = each.is_awaited or limit.held_by(each._holder) > many
            return (each.is_awaited, -each._awaited_since) if movable else None

        (limit.first_to_go(rank) or [self])[0].evict()

    def _await_head(self) -> None:
        _cancel(self._head_deadline)
        self._head_bytes = 0
        if self.flow.write_paused:
            # The client has not read the previous answer yet.
            return
        self._awaited_since = next(_moments)
        self._head_deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        # Of two requests sent at once, the second may be under way since before the first was answered.
        if not self._answering:
            self.transport.abort()

    def _await_reader(self) -> None:
        _cancel(self._write_deadline)
        unread = self.transport.get_write_buffer_size()
        self._write_deadline = self.loop.call_later(READ_SECONDS, self._look_at_reader, unread)

    def _look_at_reader(self, unread: int) -> None:
        if unread - self.transport.get_write_buffer_size() < LEAST_READ:
            self.transport.abort()
        else:
            self._await_reader()


def _cancel(deadline: asyncio.TimerHandle | None) -> None:
    if deadline is not None:
        deadline.cancel()


async def _linger(app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send) -> None:
    """An answer that comes before the whole body would be lost, if the connection closed while the client sends."""
    invited = True

    async def patient(message: Message) -> None:
        nonlocal invited
        if message["type"] == "http.response.start":
            invited = not cycle.waiting_for_100_continue
        elif cycle.more_body and invited and not message.get("more_body", False):
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await _pass_over(receive)
            message = {"type": "http.response.body"}
        await send(message)

    await app(scope, receive, patient)


async def _pass_over(receive: Receive) -> None:
    size = 0
    while size < LINGER_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def address_of(text: str) -> Address:
    """Whose it is: whoever has one address of IPv6 has all that begin with the same 64 bits."""
    found = ipaddress.ip_address(text)
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return found
    return found.ipv4_mapped or ipaddress.IPv6Network((int(found) >> 64 << 64, 64)).network_address
