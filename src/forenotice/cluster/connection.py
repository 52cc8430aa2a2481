"""One way to connect to NATS, for the service and for edges."""

import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client

from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.settings import EndpointSettings, NatsSettings

PING_SECONDS = 3
PINGS_UNANSWERED = 2
"""A connection that is cut silently counts as lost after less than ten seconds."""
CONNECT_SECONDS = 2
RECONNECT_SECONDS = (0.3, 1.2)
"""Drawn once for each process, so that those which lost their server together do not come back together."""


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Where NATS is, and by what it knows us."""

    urls: tuple[str, ...]
    credentials: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of(cls, settings: EndpointSettings | NatsSettings) -> "Servers":
        return cls(
            urls=settings.nats,
            credentials=settings.nats_credentials,
            ca=settings.nats_ca,
            certificate=settings.nats_certificate,
            key=settings.nats_key,
        )

    def options(self) -> Mapping[str, Any]:
        """Of a client. TLS comes first if it is wanted: else the server, or somebody in between, could leave it out."""
        tls = self._tls()
        return {
            "servers": list(self.urls),
            "user_credentials": None if self.credentials is None else str(self.credentials),
            "tls": tls,
            "tls_handshake_first": tls is not None,
        }

    def _tls(self) -> ssl.SSLContext | None:
        if not self.ca and not self.certificate and not any(url.startswith("tls:") for url in self.urls):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise errors.RefusedError(f"NATS's certificates cannot be used: {error}") from None
        return context


async def connect(
    servers: Servers,
    name: str,
    inbox: str,
    *,
    connected: Callable[[], Awaitable[None]] | None = None,
    closed: Callable[[], Awaitable[None]] | None = None,
) -> Client:
    """Tries for ever, and again for ever when the connection is lost; nothing is buffered meanwhile.

    `connected` is called when it is connected again, `closed` when the client has given up, as it does when its
    credentials are refused.
    """
    failures = Failures()

    async def failed(error: Exception) -> None:
        if failures.again(repr(error)):
            log.warning("NATS", action="nats.failed", reason=str(error) or type(error).__name__, times=failures.times)

    async def again() -> None:
        failures.over()
        log.info("Connected to NATS", action="nats.connected", server=_place(client))
        if connected is not None:
            await connected()

    async def gone() -> None:
        log.warning("The connection to NATS is lost", action="nats.lost")

    client = Client()
    try:
        await client.connect(
            **servers.options(),
            name=name,
            inbox_prefix=inbox,
            error_cb=failed,
            disconnected_cb=gone,
            reconnected_cb=again,
            closed_cb=closed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=random.SystemRandom().uniform(*RECONNECT_SECONDS),  # type: ignore[arg-type]
            connect_timeout=CONNECT_SECONDS,
            ping_interval=PING_SECONDS,
            max_outstanding_pings=PINGS_UNANSWERED,
            pending_size=0,
        )
    except BaseException:
        await client.close()
        raise
    log.info("Connected to NATS", action="nats.connected", server=_place(client))
    return client


def _place(client: Client) -> str:
    return client.connected_url.netloc.rpartition("@")[2] if client.connected_url else ""
