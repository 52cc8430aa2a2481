"""One way to connect to NATS, for the service and for edges."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.errors import Error as Error

from forenotice import secret_files
from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.settings import EndpointSettings, NatsSettings

PING_SECONDS = 3
PINGS_UNANSWERED = 2
"""A connection that is cut silently counts as lost after less than ten seconds."""
CONNECT_SECONDS, ONCE_SECONDS = 2, 5.0
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
        if self.credentials is not None:
            _require_credentials(self.credentials)
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
                if self.key is not None:
                    secret_files.read(self.key, "the key for NATS", links=True)
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise errors.RefusedError(f"NATS's certificates cannot be used: {error}") from None
        return context


def _require_credentials(path: Path) -> None:
    """The client would read on for ever in a file without a JWT."""
    found = secret_files.read(path, "the credentials for NATS", links=True)
    if b"BEGIN NATS USER JWT" not in found or b"BEGIN USER NKEY SEED" not in found:
        raise errors.RefusedError(f"the credentials for NATS {path} lack a JWT or a seed: enrol the host anew")


async def connect(
    servers: Servers,
    name: str,
    inbox: str,
    *,
    reconnect: bool = True,
    closed: Callable[[], Awaitable[None]] | None = None,
) -> Client:
    """Tries for ever; with `reconnect`, the client does so again when the connection is lost, and buffers nothing.

    `closed` is called when the client that was given has given up, as it does when its credentials are refused.
    Credentials and certificates are read at each attempt: they may have been renewed.
    """
    failures = Failures()
    told: Exception | None = None
    connected = False

    async def failed(error: Exception) -> None:
        nonlocal told
        if error is not told and failures.again(repr(error)):
            log.warning("NATS", action="nats.failed", reason=str(error) or type(error).__name__, times=failures.times)
        told = error

    async def again() -> None:
        nonlocal connected
        connected = True
        failures.over()
        log.info("Connected to NATS", action="nats.connected", server=place(client))

    # The client calls both after an attempt that failed, too.
    async def gone() -> None:
        if connected:
            reason = str(client.last_error or "")
            log.warning("The connection to NATS is lost", action="nats.lost", reason=reason)

    async def ended() -> None:
        if connected and closed is not None:
            await closed()

    pause = random.SystemRandom().uniform(*RECONNECT_SECONDS)
    while True:
        client = Client()
        try:
            await client.connect(
                **servers.options(),
                name=name,
                inbox_prefix=inbox,
                error_cb=failed,
                disconnected_cb=gone,
                reconnected_cb=again,
                closed_cb=ended,
                allow_reconnect=reconnect,
                max_reconnect_attempts=-1,
                reconnect_time_wait=pause,  # type: ignore[arg-type]
                connect_timeout=CONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=PINGS_UNANSWERED,
                pending_size=0,
            )
        except BaseException as error:
            with suppress(Exception):
                await client.close()
            if not isinstance(error, Exception):
                raise
            # Of the client, of TLS, of files: whatever it is, it may be mended meanwhile.
            await failed(error)
            await asyncio.sleep(pause)
        else:
            await again()
            return client


@asynccontextmanager
async def once(servers: Servers, inbox: str = "_INBOX") -> AsyncIterator[Client]:
    """A client for one visit. UnavailableError: it could not connect, or what was done with it failed, and why."""
    reasons: list[str] = []

    async def failed(error: Exception) -> None:
        reasons.append(str(error) or type(error).__name__)

    client, options = Client(), servers.options()
    try:
        async with asyncio.timeout(ONCE_SECONDS):
            await client.connect(
                **options,
                inbox_prefix=inbox,
                error_cb=failed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
            )
        reasons.clear()
        yield client
    except (Error, OSError, TimeoutError) as error:
        raise errors.UnavailableError(reasons[-1] if reasons else str(error) or type(error).__name__) from None
    finally:
        with suppress(Exception):
            await client.close()


def place(client: Client) -> str:
    return client.connected_url.netloc.rpartition("@")[2] if client.connected_url else ""
