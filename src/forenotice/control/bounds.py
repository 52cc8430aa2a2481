"""What strangers may take of the control plane: so many connections, and a head of so many bytes in so many seconds.

When there are too many, whoever has been waited for longest makes room; only what is being answered is left alone.
"""

import asyncio
import ipaddress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTIONS = 256
"""Operators are few, and guests' connections need the descriptors."""
CONNECTIONS_OF_ONE = 128
"""From one address: half, so that nobody takes everything."""
KEPT_FOR_LOOPBACK = 16
"""Of all: whoever is on this machine gets in, however many others there are."""
HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0
"""From the connection, or the answer before, to the end of a request's head; the gate sees to the body."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited_since = 0.0
        self._address: Address | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self._address = address_of(self.client[0]) if self.client else None
        near = self._address is None or self._address.is_loopback
        _make_room([each for each in self._open() if each._address == self._address], CONNECTIONS_OF_ONE)
        _make_room(self._open(), CONNECTIONS if near else CONNECTIONS - KEPT_FOR_LOOPBACK)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        # A head that ended with this data, or a body in it, has set the count back.
        if self._head_bytes > HEAD_BYTES and not self._answering and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        self._forget_deadline()
        self._head_bytes = 0
        self._awaited_since = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_awaited(self) -> bool:
        """Whether it is for the client to go on, with a head or with a body."""
        return not self._answering or self.cycle.more_body

    def _open(self) -> list["BoundedProtocol"]:
        return [
            each for each in self.connections if isinstance(each, BoundedProtocol) and not each.transport.is_closing()
        ]

    def _await_head(self) -> None:
        self._forget_deadline()
        self._head_bytes = 0
        self._awaited_since = self.loop.time()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        # Of two requests sent at once, the second may be under way since before the first was answered.
        if not self._answering:
            self.transport.abort()


def address_of(text: str) -> Address:
    """Whose it is: whoever has one address of IPv6 has all that begin with the same 64 bits."""
    found = ipaddress.ip_address(text)
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return found
    return found.ipv4_mapped or ipaddress.IPv6Network((int(found) >> 64 << 64, 64)).network_address


def _make_room(connections: list[BoundedProtocol], most: int) -> None:
    if len(connections) > most:
        # The new one is among them: it goes when all others are being answered.
        min((each for each in connections if each.is_awaited), key=lambda each: each._awaited_since).transport.abort()
