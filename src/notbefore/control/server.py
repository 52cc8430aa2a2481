"""Serves the control plane on a loop that already runs, whose signals belong to somebody else."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from notbefore.control.bounds import BoundedProtocol
from notbefore.core import errors

BACKLOG = 512
GRACE_SECONDS = 15
"""Longer than the store waits for its turn, so that a command is answered even if with 503."""


class ControlServer:
    def __init__(self, app: ASGIApp, host: str, port: int, *, grace: int = GRACE_SECONDS) -> None:
        """`grace` is for how many seconds requests may go on when it stops."""
        self._host = host
        self._port = port
        config = uvicorn.Config(
            app,
            lifespan="off",
            http=BoundedProtocol,
            ws="none",
            loop="none",
            log_config=None,
            # What a stranger sends wrongly is answered and no news; what goes wrong here is logged by the gate.
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=grace,
        )
        self._server = _Server(config)
        self._running: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The one that was bound, which matters when 0 was asked for."""
        return self._port

    async def start(self, listening: socket.socket | None = None) -> None:
        """Return once it answers, at a socket that listens already if one is given."""
        listening = listening or await self._bind()
        self._port = listening.getsockname()[1]
        self._running = asyncio.create_task(self._server.serve([listening]), name="control")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._running, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._running.done():
            await self._running

    async def stop(self) -> None:
        """Let running requests out, then return."""
        if self._running is not None:
            self._server.should_exit = True
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
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
