"""Serves the control plane on a loop that already runs, whose signals belong to somebody else."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from forenotice.control.connection_limits import BoundedProtocol
from forenotice.core import errors
from forenotice.descriptors import Acceptor

BACKLOG = 512
GRACE_SECONDS = 15
"""Longer than the store waits for its turn, so that a command is answered even if with 503."""
HSTS = ("Strict-Transport-Security", "max-age=31536000")
"""For the host only, not its subdomains."""


class ControlServer:
    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        grace: int = GRACE_SECONDS,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`grace` is for how many seconds requests may go on when it stops; `on_stop` ends those that never end."""
        self._host = host
        self._port = port
        self._on_stop = on_stop
        config = uvicorn.Config(
            app,
            lifespan="off",
            http=BoundedProtocol,
            ws="none",
            loop="none",
            log_config=None,
            # A malformed request gets its response and is not logged; `requests.guarded` logs our own errors.
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=grace,
            headers=[HSTS] if tls else [],
            ssl_context_factory=(lambda *_: tls) if tls else None,
        )
        self._server = _Server(config)
        self._running: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The one that was bound, which matters when 0 was asked for."""
        return self._port

    async def start(self, listening: socket.socket | None = None, local: socket.socket | None = None) -> None:
        """Return once it answers: at a socket that listens already, if one is given; at a `local` one, without TLS."""
        listening = listening or await self._bind()
        self._port = listening.getsockname()[1]
        sockets = [listening] if local is None else [listening, local]
        self._running = asyncio.create_task(self._server.serve(sockets), name="control")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._running, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._running.done():
            await self._running

    async def stop(self) -> None:
        """Let running requests out, then return."""
        if self._running is not None:
            self._server.should_exit = True
            self._on_stop()
            await self._running

    async def _bind(self) -> socket.socket:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            family, _, _, _, address = found[0]
            return socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            # The loop adds the address to some of these texts; only a failed look-up has a negative number.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise errors.RefusedError(
                f"cannot listen on {self._host}:{self._port} ({str(reason).lower()}): give another --control"
            ) from None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, but does not wait for clients that are slow to finish a handshake."""
        await super().startup([])
        loop = asyncio.get_running_loop()
        for listening in sockets or ():
            server: asyncio.Server | _TlsServer
            if listening.family is getattr(socket, "AF_UNIX", None):
                server = await loop.create_unix_server(self._protocol, sock=listening, backlog=BACKLOG)
            elif self.config.ssl:
                server = _TlsServer(listening, self.config.ssl, self._protocol, self.server_state.tasks)
            else:
                server = await loop.create_server(self._protocol, sock=listening, backlog=BACKLOG)
            self.servers.append(cast(asyncio.Server, server))
        self.ready.set()

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _TlsServer:
    """As the loop's own, but connections count before their TLS handshake."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext,
        protocol: Callable[[], BoundedProtocol],
        tasks: "set[asyncio.Task[None]]",
    ) -> None:
        self._tls = tls
        self._protocol = protocol
        self._tasks = tasks
        """Whoever stops waits for these."""
        self._acceptor = Acceptor(listening, f"control port {listening.getsockname()[1]}", self._take)

    def close(self) -> None:
        self._acceptor.close()

    async def wait_closed(self) -> None:
        """It is closed at once."""

    def _take(self, client: socket.socket, address: Any) -> None:
        protocol = self._protocol()
        protocol.arrive(client, address[0])
        task = asyncio.create_task(protocol.shake_hands(client, self._tls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
