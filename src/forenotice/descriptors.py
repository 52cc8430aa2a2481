"""The process's limit of file descriptors, who gets how many, and accepting connections until they run out."""

import asyncio
import errno
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from forenotice.logs import log

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

SPARE = 512
"""Reserved for operators, the store and deliveries; half of all descriptors, if that is less."""
ON_WINDOWS = 512
"""Windows has no such limit; its select can watch so many sockets."""


def for_guests(allowed: int) -> int:
    return allowed - _spare(allowed)


def for_operators(allowed: int) -> int:
    return _spare(allowed) // 2


def _spare(allowed: int) -> int:
    return min(SPARE, allowed // 2)


def allowed() -> int:
    return ON_WINDOWS if resource is None else _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def allow(wanted: int) -> int:
    """Raise this process's own limit towards `wanted`, as far as the system allows; gives the limit."""
    if resource is None:
        return ON_WINDOWS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = min(wanted, _number(hard))
    if _number(soft) < enough:
        # Not higher than needed: child processes inherit it, and some close every possible descriptor.
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    if enough < wanted:
        log.warning(
            "Too few file descriptors: the connection limit is reduced",
            action="descriptors.few",
            possible=enough,
            wanted=wanted,
        )
    return enough


def _number(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit


ITERATION_SECONDS = 0.004
"""How long connections are accepted before the loop does something else."""
PAUSE_SECONDS = 1.0
"""How long no connection is accepted after the system has run out of descriptors or memory."""


class Acceptor:
    """For servers that look at a connection before the loop makes a transport of it."""

    def __init__(self, listening: socket.socket, at: object, take: Callable[[socket.socket, Any], None]) -> None:
        """`take` gets each connection, which it then owns, and its address."""
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._at = at
        self._take = take
        self._paused: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        deadline = monotonic() + ITERATION_SECONDS
        while monotonic() < deadline:
            try:
                client, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(error)
                return
            try:
                self._take(client, address)
            except OSError:
                # The client left meanwhile.
                client.close()

    def _pause(self, error: OSError) -> None:
        reason = errno.errorcode.get(error.errno or 0, str(error))
        log.error("No connection can be accepted", action="accept.failed", at=str(self._at), reason=reason)
        self._loop.remove_reader(self._listening)
        self._paused = self._loop.call_later(PAUSE_SECONDS, self._resume)
