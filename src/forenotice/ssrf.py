"""Requests to URLs that operators give, protected against SSRF: only to allowed addresses, the very ones checked."""

import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import SplitResult, urlsplit

from forenotice import __version__
from forenotice.client.http import Connection, ProtocolError, Response
from forenotice.core import errors

LONGEST_URL = 2000
LARGEST_RESPONSE = 1024 * 1024
SECONDS = 10.0
PORTS = {"http": 80, "https": 443}
LONGEST_WORDS = 200

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SocketAddress = tuple[Ip, int]

EVERYWHERE: Sequence[Network] = (ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv6Network("::/0"))

# What IPv6 has assigned globally, and where IPv4 is reached through a translator (RFC 6052).
_WORLD = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
# IANA's registries of special-purpose addresses, our own copy: what the interpreter knows of them differs by version.
_SPECIAL: Sequence[Network] = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "3fff::/20"),
        # Azure's platform, as its VMs reach it.
        "168.63.129.16/32",
    )
)
# Metadata endpoints, ours included, and addresses that no host has.
_NEVER: Sequence[Network] = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128", "192.0.0.192/32"),
        *("100.100.100.200/32", "168.63.129.16/32", "0.0.0.0/8", "::/128", "224.0.0.0/4", "ff00::/8"),
        "255.255.255.255/32",
        # For local translators (RFC 8215): where they embed the IPv4 address is unknown.
        "64:ff9b:1::/48",
    )
)


class OutgoingError(errors.ForenoticeError):
    """A request could not be sent, or was not answered."""

    code = "outgoing"


class OutgoingClient:
    """For any number of threads. Redirects are not followed: they may lead to addresses that are not allowed."""

    def __init__(
        self,
        *,
        private: Sequence[Network] = (),
        own: Collection[SocketAddress] = (),
        seconds: float = SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`private` networks are allowed, `own` listeners never, also those that are added to the collection later.

        `seconds` limits a whole request, except the look-up of its name."""
        self._private = private
        self._own = own
        self._seconds = seconds
        self._trust = tls
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._closed = False

    def require(self, url: str) -> None:
        """Refuse a URL that is never allowed; the addresses of a name are checked with every request."""
        parts = _split(url)
        address = _literal(parts.hostname or "")
        if address is None:
            why = "" if parts.scheme == "https" or self._private else _NOT_HTTP
        else:
            why = self._refusal(address, _port(parts), parts.scheme)
        if why:
            raise errors.RefusedError(f"the service may not send requests to {origin(url)}: {why}")

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        return self._send("GET", url, None, headers or {})

    def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
        return self._send("POST", url, body, headers or {})

    def notify(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
        """Post a body; only the status of the response is read, however large or slow its body."""
        return self._send("POST", url, body, headers or {}, largest=None)

    def close(self) -> None:
        """For good: requests that are under way in other threads end with an error."""
        with self._lock:
            self._closed = True
            for connection in self._open:
                connection.close()

    def _send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        largest: int | None = LARGEST_RESPONSE,
    ) -> Response:
        parts = _split(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = {"User-Agent": f"forenotice/{__version__}", **headers}
        try:
            with self._connected(parts) as connection:
                return connection.request(method, target, named, body, timeout=self._seconds, largest=largest)
        except (OSError, ProtocolError) as error:
            raise OutgoingError(f"no response from {origin(url)}: {_words(error)}") from None

    @contextmanager
    def _connected(self, parts: SplitResult) -> Iterator[Connection]:
        host, port = parts.hostname or "", _port(parts)
        tls = self._tls if parts.scheme == "https" else None
        connection = _CheckedConnection(host, port, tls, lambda address: self._refusal(address, port, parts.scheme))
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the service is stopping")
            self._open.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._trust or ssl.create_default_context()

    def _refusal(self, address: Ip, port: int, scheme: str) -> str:
        """Why an address is not allowed; empty: it is."""
        if any(_is_in(each, _NEVER) for each in _meanings(address)):
            return _NEVER_SENT
        if any(_is_at(each, port, own) for each in _meanings(address) for own in self._own):
            return _OURSELVES
        if is_public(address):
            return "" if scheme == "https" else _NOT_HTTP
        return "" if _is_in(address, self._private) else _NOT_PRIVATE


_NOT_HTTP = "plain http is only for private addresses, with allow_private_targets: give an https URL"
_NOT_PRIVATE = "it is not a public address: give another, or add its network to the service's allow_private_targets"
_NEVER_SENT = "link-local, multicast, metadata and locally translated addresses are not allowed: give another"
_OURSELVES = "it is this service's own listener: give another"


class _CheckedConnection(Connection):
    """Connects to allowed addresses only."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, refusal: Callable[[Ip], str]) -> None:
        super().__init__(host, port, tls=tls)
        self._refusal = refusal

    def _addresses(self) -> Sequence[tuple[Any, ...]]:
        found = super()._addresses()
        refusals = [self._refusal(ipaddress.ip_address(each[4][0].partition("%")[0])) for each in found]
        if found and all(refusals):
            raise OutgoingError(f"the service may not send requests to {self._host}: {refusals[0]}")
        return [each for each, refusal in zip(found, refusals, strict=True) if not refusal]


def origin(url: str) -> str:
    """The part of a URL that may be shown: the rest may be a secret."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc}"


def describe_status(status: int) -> str:
    hint = "; redirects are not followed, so give the URL it leads to" if 300 <= status < 400 else ""
    return f"{status}{hint}"


def is_public(address: Ip) -> bool:
    """Whether it is globally reachable, and so is the IPv4 address that it stands for."""
    if any(_is_in(each, _SPECIAL) for each in _meanings(address)):
        return False
    return address.version == 4 or address in _WORLD or address in _TRANSLATED


def _meanings(address: Ip) -> list[Ip]:
    """The address, and the one of IPv4 that it stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner = address.ipv4_mapped or address.sixtofour
    if address in _TRANSLATED:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return [address] if inner is None else [address, inner]


def _is_in(address: Ip, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _is_at(address: Ip, port: int, listener: SocketAddress) -> bool:
    """Whether a listener is reached there."""
    return port == listener[1] and (
        address == listener[0] or (listener[0].is_unspecified and _is_this_machines(address))
    )


def _is_this_machines(address: Ip) -> bool:
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
        return True


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]


def _split(url: str) -> SplitResult:
    if len(url) > LONGEST_URL:
        raise errors.RefusedError(f"the URL is too long: give at most {LONGEST_URL} characters")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in PORTS and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise errors.RefusedError("that is not an http or https URL: give one such as https://example.com/forenotice")
    if "@" in parts.netloc:
        raise errors.RefusedError("a URL must not contain a name or password: remove what is before the '@'")
    if parts.fragment:
        raise errors.RefusedError("a URL must not have a fragment: remove what follows the '#'")
    return parts


def _literal(host: str) -> Ip | None:
    """The address that a host is, in any way of writing it; None: it is a name to be looked up."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        pass
    try:
        # As the resolver reads them: 127.1, 0x7f000001.
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except OSError:
        return None


def _words(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    return "".join(char if char.isprintable() else "?" for char in text)[:LONGEST_WORDS].lower()
