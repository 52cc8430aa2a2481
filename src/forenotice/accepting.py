"""Accepts connections at a listening socket, some in each turn of the loop, and rests when the system has no room."""

import asyncio
import errno
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from forenotice.logs import log

TURN_SECONDS = 0.004
"""How long connections are accepted before other things have their turn."""
REST_SECONDS = 1.0
"""How long nobody is let in after the system has run out of descriptors or memory."""


class Acceptor:
    """For whoever must know of a connection before the loop makes a transport of it."""

    def __init__(self, listening: socket.socket, at: object, take: Callable[[socket.socket, Any], None]) -> None:
        """`take` is given each connection, which is then its own, and the address that it comes from."""
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._at = at
        self._take = take
        self._resting: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._let_in()

    def close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _let_in(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        deadline = monotonic() + TURN_SECONDS
        while monotonic() < deadline:
            try:
                client, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._rest(error)
                return
            try:
                self._take(client, address)
            except OSError:
                # It left while we looked.
                client.close()

    def _rest(self, error: OSError) -> None:
        reason = errno.errorcode.get(error.errno or 0, str(error))
        log.error("No connection can be accepted", action="accept.failed", at=str(self._at), reason=reason)
        self._loop.remove_reader(self._listening)
        self._resting = self._loop.call_later(REST_SECONDS, self._let_in)
