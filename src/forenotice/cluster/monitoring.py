"""What NATS says of itself: the streams as the service sees them, and the servers as their system account does."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client

from forenotice.clock import Clock
from forenotice.cluster.subjects import CONSUMER, DOCS, UP
from forenotice.core import errors

ASK_SECONDS = 2.0
QUIET_SECONDS = 1.0
"""After which no other server answers."""
SILENT_SECONDS = 4.0
"""Leaders hear of their followers each second."""
SETTLE_SECONDS = 1.0
"""A follower may be behind for a moment: then it is looked at once more."""
NOT_FOUND = 404
API, PING = "$JS.API", "$SYS.REQ.SERVER.PING.VARZ"

T = TypeVar("T")


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    current: bool = False
    offline: bool = False
    active: int = 0
    """Nanoseconds since the leader heard of it."""
    lag: int = 0

    @property
    def trouble(self) -> str:
        """Empty: it follows."""
        silent = self.active / 10**9
        if self.offline or silent > SILENT_SECONDS:
            return "is down" if self.offline else f"has not reported for {silent:.0f} s"
        return "" if self.current else f"is behind by {self.lag} messages"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    leader: str = ""
    replicas: tuple[Replica, ...] = ()
    """All but the leader."""

    @property
    def is_settled(self) -> bool:
        return bool(self.leader) and not any(each.trouble for each in self.replicas)


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    messages: int
    bytes: int
    first_ts: datetime


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    config: Mapping[str, Any]
    state: StreamState
    cluster: Group | None = None
    """None: there is but one server."""
    ts: datetime
    """By the clock of the leader."""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    config: Mapping[str, Any]
    cluster: Group | None = None


class StorageLimit(msgspec.Struct, frozen=True, kw_only=True):
    max_storage: int


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    storage: int
    limits: StorageLimit


class Account(Tier, frozen=True, kw_only=True):
    tiers: Mapping[str, Tier] = {}
    """If there are some, they have the limits: by the number of replicas, such as R3."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """With the credentials of the service."""

    version: str
    """Of the server that answered."""
    max_payload: int
    account: Account
    streams: Mapping[str, Stream | None]
    """None: there is none."""
    consumer: Consumer | None
    asked: datetime
    answered: datetime

    @property
    def is_settled(self) -> bool:
        held = (*self.streams.values(), self.consumer)
        return all(each is None or each.cluster is None or each.cluster.is_settled for each in held)


class _StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_storage: int = 0
    sync_always: bool = False


class _StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    storage: int = 0
    reserved_storage: int = 0


class _MetaGroup(msgspec.Struct, frozen=True, kw_only=True):
    cluster_size: int = 0


class JetStream(msgspec.Struct, frozen=True, kw_only=True):
    config: _StoreConfig | None = None
    """None: it is off."""
    stats: _StoreStats = _StoreStats()
    meta: _MetaGroup = _MetaGroup()


class Server(msgspec.Struct, frozen=True, kw_only=True):
    server_name: str
    version: str
    max_payload: int
    now: datetime
    jetstream: JetStream = JetStream()


class SeenServers(msgspec.Struct, frozen=True, kw_only=True):
    """With the credentials of the system account."""

    servers: Sequence[Server]
    asked: datetime
    answered: datetime

    @property
    def expected(self) -> int:
        """Those that have JetStream, also while they are down."""
        return max((each.jetstream.meta.cluster_size for each in self.servers), default=0)


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    description: str = ""


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    error: _Failure | None = None


class _Pong(msgspec.Struct, frozen=True, kw_only=True):
    data: Server


async def look(client: Client, clock: Clock) -> Seen:
    """Errors of NATS, and UnavailableError: JetStream does not answer."""
    seen = await _look(client, clock)
    if seen.is_settled:
        return seen
    await asyncio.sleep(SETTLE_SECONDS)
    return await _look(client, clock)


async def _look(client: Client, clock: Clock) -> Seen:
    asked, version = clock.now(), client.connected_server_version
    account = await _ask(client, f"{API}.INFO", Account)
    if account is None:
        raise errors.UnavailableError("it does not know the account")
    return Seen(
        version=f"{version.major}.{version.minor}.{version.patch}",
        max_payload=client.max_payload,
        account=account,
        streams={name: await _ask(client, f"{API}.STREAM.INFO.{name}", Stream) for name in (DOCS, UP)},
        consumer=await _ask(client, f"{API}.CONSUMER.INFO.{UP}.{CONSUMER}", Consumer),
        asked=asked,
        answered=clock.now(),
    )


async def look_at_servers(client: Client, clock: Clock) -> SeenServers:
    """Those that answer in time."""
    asked, inbox = clock.now(), client.new_inbox()
    found = SeenServers(servers=(), asked=asked, answered=asked)
    replies = await client.subscribe(inbox)
    await client.publish(PING, reply=inbox)
    with suppress(TimeoutError):
        while not found.servers or len(found.servers) < found.expected:
            reply = await replies.next_msg(QUIET_SECONDS if found.servers else ASK_SECONDS)
            server = msgspec.json.decode(reply.data, type=_Pong).data
            servers = sorted((*found.servers, server), key=lambda each: each.server_name)
            found = SeenServers(servers=servers, asked=asked, answered=clock.now())
    return found


async def _ask(client: Client, subject: str, kind: type[T]) -> T | None:
    """None: there is none."""
    data = (await client.request(subject, timeout=ASK_SECONDS)).data
    failure = msgspec.json.decode(data, type=_Response).error
    if failure is None:
        return msgspec.json.decode(data, type=kind)
    if failure.code == NOT_FOUND:
        return None
    raise errors.UnavailableError(failure.description)
