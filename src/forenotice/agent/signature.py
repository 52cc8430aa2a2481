"""Messages between peers, and how each knows who has sent one: secrets, signatures and addresses."""

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec

from forenotice import secret_files
from forenotice.agent import listener
from forenotice.agent.config import READY_PATH, ConfigError, peer_address
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.listener import Request
from forenotice.client.events import same_name
from forenotice.client.http import Response
from forenotice.core import errors

HEADER = "X-Forenotice-Signature"
WINDOW = timedelta(seconds=60)
"""How far the clocks of two VMs may differ, together with the time that a message travels."""
SHORTEST_SECRET = 16

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Value = TypeVar("Value")


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    event_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    resources: tuple[str, ...]
    ready_at: Moment | None
    """None: the sender is not ready, or no longer."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    sender: Annotated[str, msgspec.Meta(min_length=1)]
    """The VM that this is about, as Resources spell it."""
    receiver: str
    sent_at: Moment
    """By the sender's clock: the latest message counts, in whichever order they arrive."""
    readiness: Readiness | None
    """None: it only checks the connection."""


class Signer:
    """Signs for one sender and one receiver; such a signature is not valid for others.

    Whoever has a secret can sign for everybody who shares it; `Addresses` tell more about the sender.
    """

    def __init__(self, secret: bytes, own: Mapping[str, bytes] | None = None) -> None:
        """`own` are secrets that are shared with one VM only, by its name."""
        self._secret = secret
        self._own = own or {}

    @classmethod
    def read(cls, config: PeersConfig) -> "Signer":
        """ConfigError: a secret is not usable."""
        own = {name: _secret(path) for name, path in config.secret_files.items()}
        return cls(_secret(config.secret_file), own)

    def sign(self, message: Message, body: bytes) -> str:
        return self._signature(message.receiver, message.sender, message.receiver, b"POST", READY_PATH.encode(), body)

    def is_valid(self, request: Request, message: Message) -> bool:
        parts = (request.method.encode(), request.path.encode(), request.body)
        return _same(request.headers, self._signature(message.sender, message.sender, message.receiver, *parts))

    def sign_response(self, response: listener.Response, message: Message, request: Request) -> listener.Response:
        """Signed as the response to this request only."""
        parts = _response(request.headers.get(HEADER.lower(), ""), response.status, response.body)
        signature = self._signature(message.sender, message.receiver, message.sender, *parts)
        return listener.Response(
            status=response.status, kind=response.kind, headers={HEADER: signature}, body=response.body
        )

    def is_valid_response(self, response: Response, message: Message, signature: str) -> bool:
        """Whether the receiver itself has responded to the request with this signature."""
        parts = _response(signature, response.status, response.body)
        return _same(response.headers, self._signature(message.receiver, message.receiver, message.sender, *parts))

    def _signature(self, other: str, sender: str, receiver: str, *parts: bytes) -> str:
        names = msgspec.json.encode([sender.removeprefix("_").lower(), receiver.removeprefix("_").lower()])
        secret = _of(self._own, other) or self._secret
        key = hmac.digest(secret, b"forenotice peers " + names, "sha256")
        return "v2=" + hmac.digest(key, b"\n".join(parts), "sha256").hex()


class Addresses:
    """Where messages to peers are sent, and where theirs may come from."""

    def __init__(self, config: PeersConfig) -> None:
        self._places = {name: peer_address(address) for name, address in config.addresses.items()}
        self._port = config.port

    def of(self, name: str) -> tuple[str, int]:
        return _of(self._places, name) or (name.removeprefix("_"), self._port)

    def source(self, me: str, listen: str) -> str:
        """The address by which others know this VM: as given for it, else where it listens; empty if unknown."""
        host = (_of(self._places, me) or (urlsplit(f"//{listen}").hostname or "", 0))[0]
        try:
            found = ipaddress.ip_address(host)
        except ValueError:
            return ""
        return "" if found.is_unspecified else str(found)

    def flaw(self, name: str, source: str) -> str:
        """Why this VM does not send from there; empty when it may, or when its address was not given."""
        place = _of(self._places, name)
        if place is None:
            return ""
        try:
            known = {_plain(str(found[4][0])) for found in socket.getaddrinfo(place[0], None, type=socket.SOCK_STREAM)}
        except (OSError, ValueError):
            return f"{place[0]}, the address of {name} in [peers], cannot be resolved"
        if _plain(source) in known:
            return ""
        return f"this came from {_plain(source)}, and [peers] has {place[0]} for {name}"


def _secret(path: str) -> bytes:
    try:
        secret = secret_files.read(Path(path), "the peers' secret").strip()
    except errors.RefusedError as error:
        raise ConfigError(error.message) from None
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError(f"the peers' secret {path} is too short: give {SHORTEST_SECRET} bytes")
    return secret


def _of(known: Mapping[str, Value], name: str) -> Value | None:
    return next((value for other, value in known.items() if same_name(other, name)), None)


def _response(signature: str, status: int, body: bytes) -> tuple[bytes, ...]:
    return b"answer", signature.encode(), str(status).encode(), body


def _same(headers: Mapping[str, str], signature: str) -> bool:
    given = headers.get(HEADER.lower(), "")
    return given.isascii() and hmac.compare_digest(given, signature)


def _plain(address: str) -> str:
    """Without a zone, and IPv4 in IPv6 as IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)
