"""What crosses NATS can be read as it was written, and nothing else is taken for a message."""

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.samples import ANY_DOCUMENT, NOON, SCHEDULED, STARTED, of

from forenotice.cluster import messages
from forenotice.cluster.messages import (
    NOTHING,
    Approval,
    Beat,
    EndedEvent,
    Fence,
    Heard,
    HostState,
    MalformedError,
    Question,
    Reply,
)
from forenotice.core.fleet import Facts, Listening
from forenotice.publication import Member, Publication

HOST = "rack1.host-a"
STATE = HostState(host=HOST, epoch=3, position=17, at=NOON, scopes=(Publication(key="group:web", document=of()),))

MOMENTS = st.datetimes(timezones=st.just(UTC))
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,16}", fullmatch=True)
MEMBERS = st.builds(
    Member,
    name=NAMES,
    vm_id=st.uuids().map(str),
    addresses=st.lists(st.ip_addresses().map(str), max_size=2).map(tuple),
    update_domain=st.integers(0, 999),
    spot=st.booleans(),
    facts=st.builds(Facts, zone=st.text(max_size=8), tags=st.dictionaries(st.text(max_size=8), st.text(max_size=8))),
)
PUBLICATIONS = st.builds(
    Publication,
    key=NAMES,
    document=ANY_DOCUMENT,
    members=st.lists(MEMBERS, max_size=2).map(tuple),
    listening=st.sampled_from(Listening),
    last_heard=st.none() | MOMENTS,
)
STATES = st.builds(
    HostState,
    host=NAMES,
    epoch=st.integers(0, 2**31),
    position=st.integers(0, 2**53),
    at=MOMENTS,
    speed=st.floats(0.01, 100_000),
    scopes=st.lists(PUBLICATIONS, max_size=2).map(tuple),
    ended=st.lists(st.builds(EndedEvent, id=NAMES, scope=NAMES, ended_at=MOMENTS), max_size=2).map(tuple),
)


@settings(deadline=None, max_examples=50)
@given(STATES)
def test_a_state_is_read_as_it_was_written(state: HostState) -> None:
    data = messages.encode_state(state)
    assert messages.decode_state(data, state.host) == state
    assert messages.host_of_state(data) == state.host


@pytest.mark.parametrize(
    "message",
    [
        Approval(vm="web-0", scope="group:web", event_ids=(SCHEDULED.id, STARTED.id)),
        Question(vm="web-0", scope="group:web", event_ids=(SCHEDULED.id,)),
        Reply(),
        Reply(refusal="no such event"),
        Heard(scopes={"group:web": NOON, "vm:db": NOON + timedelta(microseconds=1)}),
        Beat(version="1.2.3"),
        Beat(version="1", epoch=3, position=17, at=NOON, refused=2, refusal="it is cut off", polls={"web-0": NOON}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_so_is_everything_else(message: msgspec.Struct) -> None:
    assert messages.decode(messages.encode(message), type(message)) == message


def packed(**changes: Any) -> bytes:
    text = msgspec.json.encode({**msgspec.to_builtins(STATE), **changes})
    return zlib.compress(text)


NAIVE = NOON.replace(tzinfo=None).isoformat()
REFUSED = {
    b"": "is cut off",
    b"{}": "is not compressed",
    messages.encode_state(STATE)[:-1]: "is cut off",
    messages.encode_state(STATE) + b"x": "something behind it",
    zlib.compress(b""): "cannot be read",
    zlib.compress(b"null"): "cannot be read",
    zlib.compress(b"{}"): "missing required field `host`",
    zlib.compress(b"[" * 100_000): "cannot be read",
    zlib.compress(b'{"host":"\xff"}'): "cannot be read",
    packed(format=2): "has format 2, and this version reads 1",
    packed(host="rack1.host-b"): "is of host 'rack1.host-b'",
    packed(host="x" * 10_000): f"is of host '{'x' * 64}'",
    packed(epoch=-1): "`$.epoch`",
    packed(position=-1): "`$.position`",
    packed(position="17"): "`$.position`",
    packed(at=NAIVE): "`$.at`",
    packed(speed=0): "`$.speed`",
    packed(speed=1e300): "`$.speed`",
    packed(scopes=[{"document": None}]): "missing required field `key`",
    packed(scopes=None): "`$.scopes`",
    packed(ended=[{"id": "x", "scope": "y", "ended_at": NAIVE}]): "`$.ended[0].ended_at`",
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_no_state_of_this_host_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedError) as refusal:
        messages.decode_state(data, HOST)
    assert reason in refusal.value.message
    assert len(refusal.value.message) < 300


def test_so_is_one_that_unpacks_to_more_than_any_state_has() -> None:
    with pytest.raises(MalformedError, match="longer than"):
        messages.decode_state(zlib.compress(bytes(messages.LARGEST_STATE + 1), 1), HOST)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**16), st.integers(0, 200))
def test_nothing_that_was_meddled_with_raises_anything_else(extra: bytes, cut: int, at: int) -> None:
    data = messages.encode_state(STATE)
    for meddled in (extra, data[:at] + extra + data[at:], data[: cut % len(data)], zlib.compress(extra)):
        for read in (lambda data: messages.decode_state(data, HOST), messages.host_of_state):
            try:
                found = read(meddled)
            except MalformedError:
                continue
            assert found in (STATE, HOST)


@pytest.mark.parametrize("kind", [Approval, Question, Reply, Heard, Beat])
@settings(deadline=None)
@given(data=st.binary(max_size=50))
def test_no_message_of_any_kind_raises_anything_else(kind: type[msgspec.Struct], data: bytes) -> None:
    for meddled in (data, b'{"scopes":%b}' % data, b"[" * 2000):
        try:
            messages.decode(meddled, kind)
        except MalformedError:
            continue


@pytest.mark.parametrize("name", ["", "x" * 129, "\x1b[2J", "web-0\n", "web\u20280", "a b"])
def test_a_name_is_short_and_steers_no_terminal(name: str) -> None:
    """What an edge sends is in the service's log, if it is refused."""
    ids = ("x",)
    for meddled in (
        Approval(vm=name, scope="vm:db", event_ids=ids),
        Question(vm="db", scope=name, event_ids=ids),
        Approval(vm="db", scope="vm:db", event_ids=(name,)),
        Heard(scopes={name: NOON}),
    ):
        with pytest.raises(MalformedError) as refused:
            messages.decode(messages.encode(meddled), type(meddled))
        assert len(refused.value.message) < 300


@pytest.mark.parametrize("event_ids", [(), ("x",) * (messages.MOST_IDS + 1)])
def test_an_approval_has_some_ids_and_not_too_many(event_ids: tuple[str, ...]) -> None:
    for kind in (Approval, Question):
        with pytest.raises(MalformedError, match="`array` of length"):
            messages.decode(messages.encode(kind(vm="v", scope="s", event_ids=event_ids)), kind)


def test_the_epoch_counts_before_the_position_and_any_state_is_more_than_none() -> None:
    assert NOTHING < Fence(0, 0) < Fence(0, 1) < Fence(1, 0)
    assert STATE.fence == Fence(3, 17)
    assert Beat(version="1").fence == NOTHING


def test_the_vms_that_are_being_acted_on_are_those_of_the_host_that_a_started_event_names() -> None:
    document = of(SCHEDULED, STARTED)
    members = tuple(Member(name=name, vm_id=name) for name in ("web-0", "web-2"))
    here = Publication(key="group:web", document=document, members=members)
    elsewhere = Publication(key="group:db", document=document, members=members[:1])
    assert msgspec.structs.replace(STATE, scopes=(here, elsewhere)).started == {"web-2"}
    assert msgspec.structs.replace(STATE, scopes=(elsewhere, Publication(key="gone"))).started == set()


def test_times_are_written_with_their_zone() -> None:
    heard = Heard(scopes={"s": datetime(2026, 3, 9, 13, tzinfo=UTC)})
    assert messages.encode(heard) == b'{"scopes":{"s":"2026-03-09T13:00:00Z"}}'
    with pytest.raises(MalformedError):
        messages.decode(b'{"scopes":{"s":"2026-03-09T13:00:00"}}', Heard)
