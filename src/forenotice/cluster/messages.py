"""What the service and its edges send each other, and the fence that keeps a newer state from an older one."""

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from forenotice.core import errors
from forenotice.core.operations import Status
from forenotice.publication import Publication
from forenotice.settings.values import SPEED_MAX, SPEED_MIN
from forenotice.wire import approvals

FORMAT = 1
LARGEST_STATE = 64 * 1024 * 1024
"""Of a state's JSON; a host with 10,000 VMs and as many events has 10 MiB."""
MOST_IDS = approvals.MAX_BODY // 36
"""Of one POST: more GUIDs than its body has room for."""
MOST = 2**63 - 1

Name = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,128}\Z")]
"""Or an id, or a scope's key: longer than any there is. A database keeps it, and a log shows it."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**10)]
M = TypeVar("M", bound=msgspec.Struct)


class MalformedError(errors.RefusedError):
    """A message cannot be read."""


class Fence(NamedTuple):
    """A state replaces another only if its fence is greater, by whatever way both came."""

    epoch: int
    position: int


EARLIEST = datetime.fromtimestamp(0, UTC)
NOTHING = Fence(0, -1)
"""Of an edge that has no state yet; a database that has just been made is at position 0."""


class EndedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """May still be approved for a while (PROTOCOL: an hour)."""

    id: str
    scope: str
    ended_at: Moment


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the guests of one host may see: it replaces whatever the edge had."""

    format: int = FORMAT
    host: str
    epoch: Count
    position: Count
    """Of the journal: the state has everything up to it."""
    at: Moment
    """The time of the journal's entry there."""
    speed: Annotated[float, msgspec.Meta(ge=SPEED_MIN, le=SPEED_MAX)] = 1.0
    scopes: tuple[Publication, ...] = ()
    """Of the VMs on this host, with those members only."""
    ended: tuple[EndedEvent, ...] = ()

    @property
    def fence(self) -> Fence:
        return Fence(self.epoch, self.position)

    @property
    def started(self) -> frozenset[str]:
        """VMs of the host that a Started event names."""
        named = {
            name
            for scope in self.scopes
            for event in (scope.document.events if scope.document else ())
            if event.status is Status.STARTED
            for name in event.resources
        }
        return frozenset(member.name for scope in self.scopes for member in scope.members if member.name in named)


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """The StartRequests of one POST, judged by the edge."""

    vm: Name
    scope: Name
    event_ids: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MOST_IDS)]


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """When guests of scopes last polled."""

    scopes: dict[Name, Moment]

    def __post_init__(self) -> None:
        if any(at < EARLIEST for at in self.scopes.values()):
            raise ValueError("a guest has not polled before 1970")


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What an edge has applied, and how it is."""

    version: Annotated[str, msgspec.Meta(max_length=64)]
    epoch: Count = NOTHING.epoch
    position: Annotated[int, msgspec.Meta(ge=NOTHING.position, le=MOST)] = NOTHING.position
    at: Moment | None = None
    """As in the state that it has applied; None: it has none."""
    age: Seconds | None = None
    """Since it learnt that this state is the newest; None: it has not."""
    refused: Count = 0
    """States that it could not read, since it started."""
    refusal: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Why the last of them; empty if none was refused."""
    polls: Mapping[str, Moment] = {}
    """When VMs that a Started event names last polled."""

    @property
    def fence(self) -> Fence:
        return Fence(self.epoch, self.position)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """May this VM approve these events, which its edge does not know?"""

    vm: Name
    scope: Name
    event_ids: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MOST_IDS)]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    refusal: str = ""
    """Why not; empty if it may."""


def encode_state(state: HostState) -> bytes:
    return zlib.compress(msgspec.json.encode(state), 1)


class _Host(msgspec.Struct):
    host: str


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, LARGEST_STATE)
    except zlib.error as error:
        raise MalformedError(f"the state is not compressed as it should be: {error}") from None
    if not unpacker.eof or unpacker.unused_data:
        raise MalformedError(f"the state is cut off, has something behind it, or is longer than {LARGEST_STATE} bytes")
    return text


def decode_state(data: bytes, host: str) -> HostState:
    """MalformedError: it cannot be read, is of another format, or of another host."""
    state = decode(_unpacked(data), HostState)
    if state.format != FORMAT:
        raise MalformedError(f"the state has format {state.format}, and this version reads {FORMAT}")
    if state.host != host:
        raise MalformedError(f"the state is of host {state.host[:64]!r}")
    return state


def host_of_state(data: bytes) -> str:
    """MalformedError: it cannot be read."""
    return decode(_unpacked(data), _Host).host


encode = msgspec.json.encode


def decode(data: bytes, kind: type[M]) -> M:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MalformedError(f"a {kind.__name__} cannot be read: {str(error)[:200]}") from None
