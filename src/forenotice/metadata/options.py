"""Settings of the guests' endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from forenotice import descriptors, secret_files
from forenotice.core import errors
from forenotice.settings import BURST, EndpointSettings, ProxyStyle, values
from forenotice.settings.values import Address, DateForm, Network
from forenotice.wire import approvals, versions
from forenotice.wire.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost."""

    head_bytes: int = 16 * 1024
    """Request line and headers together."""
    headers: int = 100
    body_bytes: int = approvals.MAX_BODY
    framing_bytes: int = 1024 * 1024
    """A body as it comes, chunk sizes and extensions included."""
    request_seconds: float = 10
    """From the first byte of a request to its last; also for a connection's first byte, and for reading a response."""
    idle_seconds: float = 75
    """Between requests."""
    linger_seconds: float = 2
    """How long a refused client may go on sending before it is cut off."""
    linger_bytes: int = 128 * 1024
    """How much of that is received."""
    sweep_seconds: float = 1
    """How often connections are checked; the times above are as coarse as this."""
    write_bytes: int = 64 * 1024
    """Responses that the client has not read; beyond it no further request is served."""
    patience_seconds: float = 5
    """How long a first response or an approval waits for a store that hangs."""
    connections: int = 16_384
    """Altogether; beyond it the caller with the most loses the longest idle."""
    connections_each: int = 256
    """Of one VM, or of all callers that are not a VM together. Not for trusted proxies and shared sockets."""
    approvals: int = 4096
    """Approvals that wait for the store; beyond it 503."""

    def within(self, allowed: int) -> "Limits":
        """The limits, reduced if the system allows fewer descriptors."""
        connections = descriptors.for_guests(allowed)
        if connections >= self.connections:
            return self
        return replace(self, connections=connections, connections_each=min(self.connections_each, connections // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Metadata proxies that prove for which VM they ask."""

    trusted: tuple[Network, ...]
    style: ProxyStyle
    secret: bytes
    window: timedelta = timedelta(seconds=60)
    """How old or how far ahead a signed time may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    limits: Limits = Limits()
    rate: float | None = values.GUEST_RATE
    """Requests per second of one VM; None: no limit."""
    burst: float | None = values.GUEST_RATE * BURST
    """Requests that one VM may send at once."""
    wait_cap: float = 60
    """Seconds that a long poll lasts at most."""
    first_response_delay: float = 0
    """Seconds that the first response to a scope is delayed."""
    proxy: Proxy | None = None
    names: frozenset[str] = frozenset()
    """Names allowed in Host besides addresses and localhost, in lower case."""
    versions: Mapping[str, Version] = field(default_factory=lambda: versions.AS_PUBLISHED)
    """By name."""
    default_vm: str | None = None
    """The VM that a caller is taken for if no other way identifies it."""

    @classmethod
    def of(cls, settings: EndpointSettings) -> "Options":
        proxy = None
        # The settings give both or neither.
        if settings.proxy_trusted and settings.proxy_secret_file:
            secret = _secret(settings.proxy_secret_file)
            proxy = Proxy(trusted=settings.proxy_trusted, style=settings.proxy_style, secret=secret)
        listeners = [listener.at.host.lower() for listener in settings.metadata if isinstance(listener.at, Address)]
        return cls(
            rate=settings.guest_rate,
            burst=settings.guest_burst,
            wait_cap=settings.wait_cap,
            first_response_delay=settings.first_response_delay,
            versions=versions.AS_SEEN if settings.first_version_dates is DateForm.RFC1123 else versions.AS_PUBLISHED,
            proxy=proxy,
            names=frozenset((*settings.metadata_name, *listeners)),
            default_vm=settings.as_vm,
        )


def _secret(path: Path) -> bytes:
    secret = secret_files.read(path, "the proxies' secret", links=True).strip()
    if len(secret) < 16:
        raise errors.RefusedError(f"the proxies' secret {path} is too short: give at least 16 bytes")
    return secret
