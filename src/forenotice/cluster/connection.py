"""One way to connect to NATS, for the service and for edges."""

import asyncio
import logging
import random
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.errors import Error as Error
from nats.js.errors import APIError

from forenotice import secret_files
from forenotice.cluster import subjects
from forenotice.core import errors
from forenotice.failures import Failures
from forenotice.logs import log
from forenotice.settings import EndpointSettings, NatsSettings

PING_SECONDS = 3
PINGS_UNANSWERED = 2
"""A connection that is cut silently counts as lost after less than ten seconds."""
CONNECT_SECONDS, ONCE_SECONDS = 2, 5.0
ATTEMPT_SECONDS = 10.0
"""For all servers together."""
CLOSE_SECONDS = LOOK_SECONDS = 1.0
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
        """Of a client. A handshake comes first: otherwise the server, or an attacker in between, could suppress TLS."""
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
        # asyncio warns whenever the other side ends a connection of this client with TLS.
        logging.getLogger("asyncio").addFilter(_is_not_about_eof)
        using = f"the CA for NATS {self.ca}"
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                using = f"the certificate for NATS {self.certificate} (key {self.key or 'in the same file'})"
                if self.key is not None:
                    secret_files.read(self.key, "the key for NATS", links=True)
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise errors.RefusedError(f"{using} cannot be used: {error}") from None
        return context


def _is_not_about_eof(record: logging.LogRecord) -> bool:
    return "eof_received" not in record.getMessage()


def _require_credentials(path: Path) -> None:
    """The client would read on for ever in a file without a JWT."""
    found = secret_files.read(path, "the credentials for NATS", links=True)
    if b"BEGIN NATS USER JWT" not in found or b"BEGIN USER NKEY SEED" not in found:
        raise errors.RefusedError(
            f"{path} lacks the JWT or the seed of NATS credentials: give the service centre.creds of `forenotice "
            "cluster init`, and an edge what `forenotice edge enrol` wrote"
        )


class _Client(Client):
    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Read headers in responses of a server only, not in what other users of NATS send.

        The client takes a status for the server's own, and stops reading at headers that it cannot read.
        """
        sent = subject.startswith(subjects.OURS.encode())
        await super()._process_msg(sid, subject, reply, data, b"" if sent else headers)


async def connect(servers: Servers, name: str, inbox: str) -> tuple[Client, Callable[[], Coroutine[Any, Any, None]]]:
    """Tries for ever; gives what waits until the connection is lost, too.

    A client that is lost does not connect again: what it still had to send is not sent. Credentials and certificates
    are read at each attempt: they may have been renewed.
    """
    failures = _FailuresByType(Failures)
    pause = random.SystemRandom().uniform(*RECONNECT_SECONDS)
    while True:
        client, lost = _Client(), asyncio.Event()
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await client.connect(
                    **servers.options(),
                    name=name,
                    inbox_prefix=inbox,
                    error_cb=partial(_note, failures),
                    closed_cb=partial(_set, lost),
                    allow_reconnect=False,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=pause,  # type: ignore[arg-type]
                    connect_timeout=CONNECT_SECONDS,
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=PINGS_UNANSWERED,
                    pending_size=0,
                )
        except BaseException as error:
            await close(client)
            if not isinstance(error, Exception):
                raise
            # Of the client, of TLS, of files: whatever it is, it may be mended meanwhile.
            await _note(failures, error)
            await asyncio.sleep(pause)
        else:
            log.info("Connected to NATS", action="nats.connected", server=place(client))
            return client, partial(_until_lost, client, lost, pause)


_FailuresByType = defaultdict[type[Exception], Failures]
"""One attempt can fail in several ways, and all of them again in the next."""


async def _note(failures: _FailuresByType, error: Exception) -> None:
    alike = failures[type(error)]
    if alike.again(repr(error)):
        log.warning("NATS cannot be used", action="nats.failed", reason=words(error), times=alike.times)


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _until_lost(client: Client, lost: asyncio.Event, pause: float) -> None:
    """A client does not always say that it is lost; and one that has given up may call itself connected for ever."""
    while client.is_connected and not lost.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await lost.wait()
    log.warning("The connection to NATS is lost", action="nats.lost", reason=str(client.last_error or ""))
    # A client does not connect again at once.
    await asyncio.sleep(pause)


async def close(client: Client) -> None:
    """Nothing depends on how it ends; after a TLS handshake that failed, it would wait for ever."""
    closing = asyncio.create_task(client.close())
    closing.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    # Not waited for: the client may lose that, too.
    closing.cancel()


@asynccontextmanager
async def once(servers: Servers, inbox: str = "_INBOX") -> AsyncIterator[Client]:
    """A client for one visit. UnavailableError: it could not connect, or what was done with it failed, and why."""
    reasons: list[str] = []

    async def failed(error: Exception) -> None:
        reasons.append(words(error))

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
        reason = "no answer in time" if isinstance(error, TimeoutError) else words(error)
        raise errors.UnavailableError(reasons[-1] if reasons else reason) from None
    finally:
        await close(client)


def words(error: BaseException) -> str:
    """What it says, for people: those of JetStream list all their fields."""
    said = error.description if isinstance(error, APIError) else str(error)
    return said or type(error).__name__


def place(client: Client) -> str:
    return client.connected_url.netloc.rpartition("@")[2] if client.connected_url else ""
