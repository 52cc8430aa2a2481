"""Requests that the service sends at operators' wish: only where it may, and to the very address that was checked."""

import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import SplitResult, urlsplit

from forenotice import __version__
from forenotice.client.connection import Connection, ProtocolError
from forenotice.core import errors

LONGEST_URL = 2000
LARGEST_ANSWER = 1024 * 1024
SECONDS = 10.0
PORTS = {"http": 80, "https": 443}
LONGEST_WORDS = 200

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

# What IPv6 has assigned to the world, and where IPv4 is reached through a translator (RFC 6052).
_WORLD = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


class OutgoingError(errors.ForenoticeError):
    """A request could not be sent, or was not answered."""

    code = "outgoing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str]
    """By name in lower case."""


class Outgoing:
    """For any number of threads. Redirects are not followed, lest they lead where nothing may be sent."""

    def __init__(self, *, allow_private: bool, seconds: float = SECONDS, tls: ssl.SSLContext | None = None) -> None:
        """`seconds` is for all of a request, but for looking up the name, which takes what the resolver takes."""
        self._allow_private = allow_private
        self._seconds = seconds
        self._trust = tls
        self._lock = threading.Lock()
        self._under_way: set[Connection] = set()
        self._closed = False

    def require(self, url: str) -> None:
        """Refuse what could never be sent; where a name leads is seen whenever something is sent there."""
        parts = _split(url)
        address = _literal(parts.hostname or "")
        if address is None:
            why = "" if parts.scheme == "https" or self._allow_private else _NOT_HTTP
        else:
            why = self._objection(address, parts.scheme)
        if why:
            raise errors.RefusedError(f"nothing is sent to {place(url)}: {why}")

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._send("GET", url, None, headers or {})

    def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        return self._send("POST", url, body, headers or {})

    def tell(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Post what is answered by the status: the body that follows, however large or slow, is left unread."""
        return self._send("POST", url, body, headers or {}, largest=None)

    def close(self) -> None:
        """For good: requests that are under way in other threads end with an error."""
        with self._lock:
            self._closed = True
            for connection in self._under_way:
                connection.close()

    def _send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        largest: int | None = LARGEST_ANSWER,
    ) -> Reply:
        parts = _split(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = {"User-Agent": f"forenotice/{__version__}", **headers}
        try:
            with self._connected(parts) as connection:
                answer = connection.ask(method, target, named, body, timeout=self._seconds, largest=largest)
        except (OSError, ProtocolError) as error:
            raise OutgoingError(f"no answer from {place(url)}: {_words(error)}") from None
        return Reply(status=answer.status, body=answer.body, headers=answer.headers)

    @contextmanager
    def _connected(self, parts: SplitResult) -> Iterator[Connection]:
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        tls = self._tls if parts.scheme == "https" else None
        connection = _Checked(host, port, tls, lambda address: self._objection(address, parts.scheme))
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the service is stopping")
            self._under_way.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._under_way.discard(connection)
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._trust or ssl.create_default_context()

    def _objection(self, address: Ip, scheme: str) -> str:
        """Why nothing may be sent to an address; empty: it may."""
        if is_public(address):
            return "" if scheme == "https" else _NOT_HTTP
        return "" if self._allow_private else _NOT_PRIVATE


_NOT_HTTP = "plain http is only for private addresses, with allow_private_targets: give an https URL"
_NOT_PRIVATE = "it is not a public address: give another, or let `serve` run with allow_private_targets"


class _Checked(Connection):
    """Connects to none but the addresses that nothing was said against."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, objection: Callable[[Ip], str]) -> None:
        super().__init__(host, port, tls=tls)
        self._objection = objection

    def _addresses(self) -> Sequence[tuple[Any, ...]]:
        found = super()._addresses()
        said = [self._objection(ipaddress.ip_address(place[4][0])) for place in found]
        if found and all(said):
            raise OutgoingError(f"nothing is sent to {self._host}: {said[0]}")
        return [place for place, why in zip(found, said, strict=True) if not why]


def place(url: str) -> str:
    """All that is told of a URL: the rest of it may be a secret."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc}"


def status_told(status: int) -> str:
    hint = "; redirects are not followed, so give the URL it leads to" if 300 <= status < 400 else ""
    return f"{status}{hint}"


def is_public(address: Ip) -> bool:
    """Whether it belongs to the world at large, and what it stands for too."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast
    if address in _TRANSLATED:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    inner = address.sixtofour
    return address in _WORLD and address.is_global and (inner is None or is_public(inner))


def _split(url: str) -> SplitResult:
    if len(url) > LONGEST_URL:
        raise errors.RefusedError(f"the URL is too long: give at most {LONGEST_URL} characters")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in PORTS and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise errors.RefusedError("that is not a URL of http or https: give one such as https://example.com/forenotice")
    if "@" in parts.netloc:
        raise errors.RefusedError("names and passwords do not belong into a URL: leave out what is before the '@'")
    if parts.fragment:
        raise errors.RefusedError("a URL's fragment is never sent: leave out what follows the '#'")
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
    said = str(getattr(error, "strerror", None) or error or type(error).__name__)
    return "".join(char if char.isprintable() else "?" for char in said)[:LONGEST_WORDS].lower()
