"""Readiness exchanged between the agents of VMs that one event names: signed, and sent until it is acknowledged.

Imported only by agents that have peers: signing costs more memory than a lone agent needs.
"""

import contextlib
import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec

from forenotice import __version__, secret_files
from forenotice.agent import listener
from forenotice.agent.config import READY_PATH, ConfigError, peer_address
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.context import Context
from forenotice.agent.listener import Request
from forenotice.agent.rules.policy import NOT_SENT
from forenotice.client.events import same_name
from forenotice.client.http import Connection, ProtocolError, Response
from forenotice.core import backoff, errors

HEADER = "X-Forenotice-Signature"
WINDOW = timedelta(seconds=60)
"""How far the clocks of two VMs may differ, together with the time that a message travels."""
SHORTEST_SECRET = 16
LARGEST_RESPONSE = 4 * 1024
MOST_RECEIVED = 10_000
"""Events and names within the window."""
ACKNOWLEDGED = listener.Response.json({"acknowledged": True})

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

    Everybody who has a secret can sign for all that share it; `Link.flaw` checks the address of the sender, too.
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
        parts = _response_parts(request.headers.get(HEADER.lower(), ""), response)
        signature = self._signature(message.sender, message.receiver, message.sender, *parts)
        return listener.Response(
            status=response.status, kind=response.kind, headers={HEADER: signature}, body=response.body
        )

    def is_valid_response(self, response: Response, message: Message, signature: str) -> bool:
        """Whether the receiver itself has responded to the request with this signature."""
        parts = _response_parts(signature, response)
        return _same(response.headers, self._signature(message.receiver, message.receiver, message.sender, *parts))

    def _signature(self, other: str, sender: str, receiver: str, *parts: bytes) -> str:
        names = msgspec.json.encode([sender.removeprefix("_").lower(), receiver.removeprefix("_").lower()])
        secret = _of(self._own, other) or self._secret
        key = hmac.digest(secret, b"forenotice peers " + names, "sha256")
        return "v2=" + hmac.digest(key, b"\n".join(parts), "sha256").hex()


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


def _response_parts(signature: str, response: Response | listener.Response) -> tuple[bytes, ...]:
    return b"answer", signature.encode(), str(response.status).encode(), response.body


def _same(headers: Mapping[str, str], signature: str) -> bool:
    given = headers.get(HEADER.lower(), "")
    return given.isascii() and hmac.compare_digest(given, signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """All in seconds."""

    first: float = 1.0
    """Between a failure and the next attempt; each time twice as long."""
    longest: float = 10.0
    again: float = 30.0
    """Peers that have acknowledged get the message again: they may have lost their state since."""
    timeout: float = 5.0
    concurrent: int = 8


USUAL = Pace()


class Order:
    """Of the messages that are sent and received. It outlives a change of the configuration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_at = datetime.min.replace(tzinfo=UTC)
        self._received: dict[tuple[str, str], datetime] = {}

    def stamp(self, now: datetime) -> datetime:
        """Later than the one before, even if the clock was set back a little."""
        with self._lock:
            if now <= self._sent_at < now + WINDOW / 2:
                now = self._sent_at + timedelta(microseconds=1)
            self._sent_at = now
            return now

    def is_latest(self, event_id: str, name: str, sent_at: datetime, now: datetime) -> bool:
        """Whether nothing later was received. Messages older than the window are refused anyway."""
        with self._lock:
            self._received = {key: at for key, at in self._received.items() if at >= now - WINDOW}
            key = (event_id, name.lower())
            latest = self._received.get(key, sent_at)
            if key in self._received or len(self._received) < MOST_RECEIVED:
                self._received[key] = max(latest, sent_at)
            return sent_at >= latest


class Link:
    """Where messages to peers are sent and where theirs may come from, and the sending of one."""

    def __init__(self, config: PeersConfig, me: str, listen: str = "", timeout: float = USUAL.timeout) -> None:
        """ConfigError: a secret is not usable."""
        self.signer = Signer.read(config)
        self._places = {name: peer_address(address) for name, address in config.addresses.items()}
        self._port = config.port
        self._timeout = timeout
        host = (_of(self._places, me) or (urlsplit(f"//{listen}").hostname or "", 0))[0]
        self.source = ""
        """The address by which others know this VM: as given for it, else where it listens; empty if unknown."""
        with contextlib.suppress(ValueError):
            found = ipaddress.ip_address(host)
            self.source = "" if found.is_unspecified else str(found)

    def address(self, name: str) -> tuple[str, int]:
        return _of(self._places, name) or (name.removeprefix("_"), self._port)

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

    def connection(self, name: str) -> Connection:
        """From the address by which others know this VM, if it has several."""
        host, port = self.address(name)
        # From a loopback address nothing leaves the machine.
        usable = not _is_loopback(self.source) or _is_loopback(host)
        return Connection(host, port, source=self.source if usable else "")

    def send(self, message: Message, connection: Connection) -> str:
        """Why the receiver has not acknowledged; empty when it has."""
        body = msgspec.json.encode(message)
        signature = self.signer.sign(message, body)
        headers = {
            HEADER: signature,
            "Content-Type": "application/json",
            "User-Agent": f"forenotice/{__version__}",
            "Connection": "close",
        }
        try:
            response = connection.request(
                "POST", READY_PATH, headers, body, timeout=self._timeout, largest=LARGEST_RESPONSE
            )
        except (OSError, ProtocolError, ValueError) as error:
            slow = isinstance(error, TimeoutError)
            why = f"no answer within {self._timeout:g} s" if slow else str(error) or type(error).__name__
            why = getattr(error, "strerror", None) or why
            return f"{'slow' if slow else 'no answer'}: {why}" if connection.reached else f"unreachable: {why}"
        place = "{}:{}".format(*self.address(message.receiver))
        if self.signer.is_valid_response(response, message, signature):
            return "" if response.status == ACKNOWLEDGED.status else f"refused: {_error(response)}"
        if response.status == 401:
            return f"wrong secret: {place} has another one than this VM, or another version of the agent"
        if response.status == ACKNOWLEDGED.status:
            return f"wrong signature: the response from {place} does not prove to be from {message.receiver}"
        return f"no peer: {place} answered {response.status}; is that an agent with [peers]?"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _plain(address: str) -> str:
    """Without a zone, and IPv4 in IPv6 as IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)


def _error(response: Response) -> str:
    try:
        return msgspec.json.decode(response.body, type=dict[str, str])["error"]
    except (msgspec.MsgspecError, KeyError):
        return str(response.status)


def attempt(config: PeersConfig, me: str, name: str, now: datetime, listen: str = "") -> tuple[str, str]:
    """A peer's address, and why it does not accept a message of this VM, or empty. Changes nothing there.

    ConfigError, as for `Link`.
    """
    link = Link(config, me, listen)
    with contextlib.closing(link.connection(name)) as connection:
        why = link.send(Message(sender=me, receiver=name, sent_at=now, readiness=None), connection)
        return "{}:{}".format(*link.address(name)), why


@dataclass(slots=True, eq=False)
class _Delivery:
    sender: str
    name: str
    readiness: Readiness
    due: float
    failures: int = 0
    under_way: bool = False
    why: str = NOT_SENT
    """Empty once the peer has acknowledged."""


Received = Callable[[str, str, datetime | None], None]
"""Gets event id, the name as in Resources, and since when that VM is ready, None when it is not; from any thread, and
more than once."""
Announced = Mapping[str, tuple[Sequence[str], datetime | None]]
"""By event: its Resources, and since when ours among them are ready, None when they are not."""


class Peers:
    def __init__(
        self,
        config: PeersConfig,
        names: Sequence[str],
        received: Received,
        now: Callable[[], datetime],
        context: Context,
        *,
        listen: str = "",
        order: Order | None = None,
        pace: Pace = USUAL,
    ) -> None:
        """`names` are the VMs that this agent acts for. ConfigError: a secret is not usable."""
        self._link = Link(config, names[0], listen, pace.timeout)
        self._names = names
        self._received = received
        self._now = now
        self._log, self._runtime = context.log, context.runtime
        self._count = partial(context.metrics.count, "peer_messages_total")
        self._order = order or Order()
        self._pace = pace
        self._receiving = threading.Lock()
        self._changed = threading.Condition()
        self._deliveries: dict[str, dict[tuple[str, str], _Delivery]] = {}
        """By event, then by sender and peer."""
        self._refusals: dict[str, str] = {}
        """Why a peer's last message was refused, by its lower-case name."""
        self._dispatching = False
        self._under_way = 0
        self._connections: set[Connection] = set()
        self._closed = False

    def announce(self, announced: Announced) -> None:
        """Send this to all others that the events name, until the next call; the same again changes nothing."""
        with self._changed:
            if self._closed:
                return
            known, self._deliveries = self._deliveries, {}
            for event, (resources, ready_at) in announced.items():
                readiness = Readiness(event_id=event.upper(), resources=tuple(resources), ready_at=ready_at)
                self._add(readiness, known.get(readiness.event_id, {}))
            if self._deliveries and not self._dispatching:
                with contextlib.suppress(RuntimeError):  # No more threads: the next announcement tries again.
                    self._runtime.start_thread(self._dispatch, "peers")
                    self._dispatching = True
            if self._deliveries != known:
                self._changed.notify_all()

    def _add(self, readiness: Readiness, known: Mapping[tuple[str, str], _Delivery]) -> None:
        mine = [name for name in readiness.resources if self._is_mine(name)]
        for key in ((sender, name) for sender in mine for name in readiness.resources if name not in mine):
            delivery = known.get(key)
            if delivery is None or delivery.readiness != readiness:
                why = (delivery.why if delivery else "") or NOT_SENT
                delivery = _Delivery(*key, readiness, self._runtime.monotonic(), why=why)
            self._deliveries.setdefault(readiness.event_id, {})[key] = delivery

    def unacknowledged(self, event_id: str) -> Mapping[str, str]:
        """Peers that have not acknowledged, or whose messages are refused, and why."""
        with self._changed:
            deliveries = self._deliveries.get(event_id.upper(), {}).values()
            found = {delivery.name: delivery.why for delivery in deliveries if delivery.why}
            for name in {delivery.name for delivery in deliveries}:
                refused = self._refusals.get(name.lower())
                if refused and found.get(name, NOT_SENT) == NOT_SENT:
                    found[name] = f"refused here: {refused}"
            return found

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._deliveries.clear()
            connections = list(self._connections)
            self._changed.notify_all()
        for connection in connections:
            connection.close()

    def receive(self, request: Request) -> listener.Response:
        signer = self._link.signer
        try:
            message = msgspec.json.decode(request.body, type=Message)
            valid = signer.is_valid(request, message)
        except (msgspec.DecodeError, ValueError):
            valid = False
        if not valid:
            self._refused("its signature is not valid: another secret, or another version", request, of="")
            return listener.Response.json({"error": "invalid signature"}, 401)
        if flaw := self._flaw(message, request.source):
            self._refused(flaw, request, of=message.sender)
            if len(self._refusals) < MOST_RECEIVED:
                self._refusals[message.sender.lower()] = flaw
            return signer.sign_response(listener.Response.json({"error": flaw}, 403), message, request)
        if message.readiness is not None:
            with self._receiving:
                self._pass_on(message.sender, message.readiness, message.sent_at)
        self._refusals.pop(message.sender.lower(), None)
        self._count("received")
        self._log.over(
            "Messages of a peer are accepted again", action="peer.refused", of=message.sender, peer=message.sender
        )
        return signer.sign_response(ACKNOWLEDGED, message, request)

    def _refused(self, reason: str, request: Request, *, of: str) -> None:
        self._count("refused")
        fields = {"source": request.source, **({"peer": of} if of else {})}
        self._log.trouble("A peer's message was refused", action="peer.refused", reason=reason, of=of, **fields)

    def _flaw(self, message: Message, source: str) -> str:
        ahead = abs((message.sent_at - self._now()).total_seconds())
        if ahead > WINDOW.total_seconds():
            return f"our clocks differ by {ahead:.0f} s, and may by {WINDOW.total_seconds():.0f}"
        if not self._is_mine(message.receiver):
            return f"this agent acts for {', '.join(self._names)}, and not for {message.receiver}"
        if self._is_mine(message.sender):
            return f"this agent itself acts for {message.sender}"
        readiness = message.readiness
        if readiness is not None and not {message.sender, message.receiver} <= set(readiness.resources):
            return "the event's Resources do not name both VMs"
        return self._link.flaw(message.sender, source)

    def _is_mine(self, name: str) -> bool:
        return any(same_name(name, own) for own in self._names)

    def _pass_on(self, name: str, readiness: Readiness, sent_at: datetime) -> None:
        event_id, now = readiness.event_id.upper(), self._now()
        if not self._order.is_latest(event_id, name, sent_at, now):
            return
        # A moment in the future only shows that its clock differs from ours.
        ready_at = min(readiness.ready_at.astimezone(UTC), now) if readiness.ready_at else None
        self._received(event_id, name, ready_at)
        if ready_at is None:
            # A peer that begins anew may have forgotten that we are ready. That we are not, it need not know: it would
            # only send us the same again.
            with self._changed:
                for (_, receiver), delivery in self._deliveries.get(event_id, {}).items():
                    if receiver == name and delivery.readiness.ready_at:
                        delivery.due = self._runtime.monotonic()
                        self._changed.notify_all()

    def _dispatch(self) -> None:
        while True:
            with self._changed:
                delivery = self._next()
                while delivery is None or delivery.due > self._runtime.monotonic():
                    if not self._deliveries:
                        self._dispatching = False
                        return
                    self._changed.wait(None if delivery is None else delivery.due - self._runtime.monotonic())
                    delivery = self._next()
                delivery.under_way = True
                self._under_way += 1
            try:
                self._runtime.start_thread(partial(self._deliver, delivery), "peers-delivery")
            except RuntimeError as error:
                self._settle(delivery, str(error))

    def _next(self) -> _Delivery | None:
        if self._under_way >= self._pace.concurrent:
            return None
        waiting = [each for event in self._deliveries.values() for each in event.values() if not each.under_way]
        return min(waiting, key=lambda delivery: delivery.due, default=None)

    def _is_wanted(self, delivery: _Delivery) -> bool:
        known = self._deliveries.get(delivery.readiness.event_id, {})
        return known.get((delivery.sender, delivery.name)) is delivery

    def _deliver(self, delivery: _Delivery) -> None:
        self._settle(delivery, self._send(delivery))

    def _send(self, delivery: _Delivery) -> str:
        connection = self._link.connection(delivery.name)
        with self._changed:
            if self._closed:
                return "this agent is stopping"
            if not self._is_wanted(delivery):
                return "replaced by a newer message"
            self._connections.add(connection)
            # Under the lock, so that the next announcement is stamped later.
            sent_at = self._order.stamp(self._now())
        message = Message(sender=delivery.sender, receiver=delivery.name, sent_at=sent_at, readiness=delivery.readiness)
        try:
            return self._link.send(message, connection)
        finally:
            with self._changed:
                self._connections.discard(connection)
            connection.close()

    def _settle(self, delivery: _Delivery, why: str) -> None:
        self._count("failed" if why else "sent")
        with self._changed:
            delivery.under_way = False
            self._under_way -= 1
            delivery.why = why
            delivery.failures = delivery.failures + 1 if why else 0
            pause = backoff.pause(delivery.failures, self._pace.first, self._pace.longest)
            delivery.due = self._runtime.monotonic() + (pause if why else self._pace.again)
            wanted = self._is_wanted(delivery)
            self._changed.notify_all()
        name = delivery.name
        if not why:
            self._log.over("A peer answers again", action="peer.failed", of=name, peer=name)
        elif wanted:
            self._log.trouble("A peer does not answer", action="peer.failed", reason=why, of=name, peer=name)
