"""The edge's listener for monitoring: metrics and readiness."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

from forenotice import __version__
from forenotice.core import errors
from forenotice.edge.follower import Follower
from forenotice.edge.link import Link
from forenotice.metadata.server import MetadataServer
from forenotice.settings import Address

REQUEST_BYTES = 4096
REQUEST_SECONDS = 5.0


class StatusServer:
    """Answers one GET of /metrics or /readyz for each connection."""

    def __init__(self, follower: Follower, link: Link, server: MetadataServer) -> None:
        self._follower = follower
        self._link = link
        self._guests = server
        self._server: asyncio.Server | None = None
        self.at: Address | None = None
        """Where it answers."""

    async def start(self, at: Address) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, at.host, at.port, limit=REQUEST_BYTES)
        except OSError as error:
            raise errors.ConflictError(
                f"Metrics cannot be served at {at} ({os.strerror(error.errno or 0)}): choose another with --metrics."
            ) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.at = Address(host=host, port=port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = self._respond(head.split(b" ", 2)[:2])
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
                )
                await writer.drain()
        writer.close()

    def _respond(self, request: list[bytes]) -> tuple[bytes, bytes]:
        match request:
            case [b"GET", b"/metrics"]:
                return b"200 OK", "".join(self._lines()).encode()
            case [b"GET", b"/readyz"] if self._follower.state is None:
                return b"503 Service Unavailable", b"the edge has no state of its host yet\n"
            case [b"GET", b"/readyz"]:
                return b"200 OK", b"ready\n"
        return b"404 Not Found", b"/metrics and /readyz are served here\n"

    def _lines(self) -> Iterator[str]:
        follower, fence = self._follower, self._follower.fence
        state, age = follower.state, follower.age
        guests = sum(len(scope.members) for scope in state.scopes) if state else 0
        yield from _metric("build_info", "gauge", "The version that runs.", 1, f'{{version="{__version__}"}}')
        yield from _metric("connected", "gauge", "Whether the edge is connected to NATS.", int(self._link.connected))
        yield from _metric("epoch", "gauge", "Epoch of the state that guests are shown.", fence.epoch)
        yield from _metric("position", "gauge", "Journal position of that state; -1 for none.", fence.position)
        if age is not None:
            what = "Seconds since NATS last confirmed that this state is the newest."
            yield from _metric("state_age_seconds", "gauge", what, round(age.total_seconds(), 3))
        yield from _metric("guests", "gauge", "VMs in that state.", guests)
        yield from _metric("states_applied_total", "counter", "States that were applied.", follower.applied)
        yield from _metric("states_refused_total", "counter", "States that could not be read.", follower.refused)
        yield from _metric("states_unsaved_total", "counter", "States that could not be saved.", follower.unsaved)
        counts = self._guests.counters.by_kind()
        yield from _metric("polls_total", "counter", "Polls that were answered.", counts.pop("polls"))
        name = "forenotice_edge_guest_requests_total"
        yield f"# HELP {name} What else guests did, by kind.\n# TYPE {name} counter\n"
        for kind, count in counts.items():
            yield f'{name}{{kind="{kind}"}} {count}\n'


def _metric(name: str, kind: str, what: str, value: float, labels: str = "") -> Iterator[str]:
    full = f"forenotice_edge_{name}"
    yield f"# HELP {full} {what}\n# TYPE {full} {kind}\n{full}{labels} {value}\n"
