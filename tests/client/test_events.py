"""What endpoints send, read as far as it can be."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.samples import EVENT, STARTED, document

from forenotice.client.events import Document, Event, decode
from forenotice.clock import SystemClock
from forenotice.wire import dates

CAPTURES = Path(__file__).parents[1] / "wire" / "captures.jsonl"
NOT_BEFORE = datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)


def only(**changes: Any) -> Event:
    (event,) = decode(document({key: value for key, value in (EVENT | changes).items() if value is not ...})).events
    return event


def captures() -> list[dict[str, Any]]:
    return [found for found in map(json.loads, CAPTURES.read_text().splitlines()) if found["body"]]


@pytest.mark.parametrize("capture", captures(), ids=lambda found: f"{found['api-version']} {found['seen']}")
def test_what_the_real_service_sent_is_read(capture: dict[str, Any]) -> None:
    raw = json.loads(capture["body"])
    found = decode(capture["body"].encode())
    assert found.incarnation == raw["DocumentIncarnation"]
    assert len(found.events) == len(raw["Events"])
    for event, sent in zip(found.events, raw["Events"], strict=True):
        assert (event.id, event.status, event.type) == (sent["EventId"], sent["EventStatus"], sent["EventType"])
        assert event.resources == tuple(sent["Resources"])
        assert event.started is (event.deadline is None)


def test_every_key_has_its_place() -> None:
    assert only() == Event(
        id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        status="Scheduled",
        type="Freeze",
        resource_type="VirtualMachine",
        resources=("WestNO_0", "WestNO_1"),
        not_before_text="Mon, 11 Apr 2022 22:26:58 GMT",
        description="Virtual machine is being paused.",
        source="Platform",
        duration_seconds=5,
    )


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 11 Apr 2022 22:26:58 GMT",
        "2022-04-11T22:26:58Z",
        "2022-04-12T00:26:58+02:00",
        " 2022-04-11T22:26:58Z",
        "2022-04-11T22:26:58",
        "2022-04-11 22:26:58",
        "Sun, 11 Apr 2022 22:26:58 GMT",
        "11 Apr 2022 22:26:58 GMT",
        "Mon, 11 Apr 2022 22:26:58 UTC",
        "Mon, 11 Apr 2022 22:26:58",
        "Mon, 11 Apr 2022 22:26:58 +0000",
        "Mon, 11 Apr 2022 18:26:58 -0400",
        "Tue, 12 Apr 2022 00:56:58 +02:30",
        "mon, 11-apr-2022 22:26:58 gmt",
        "Monday, 11 April 2022 22:26:58 GMT",
    ],
)
def test_iso_and_rfc_1123_dates(text: str) -> None:
    assert only(NotBefore=text).deadline == NOT_BEFORE
    assert only(NotBefore="Fri, 1 Apr 2022 22:26:58 GMT").deadline == NOT_BEFORE.replace(day=1)


@pytest.mark.parametrize("text", ["", None, ..., " ", "2999-01-01T00:00:00Z"])
def test_what_has_started_has_no_deadline_even_if_an_emulator_shows_one(text: object) -> None:
    event = only(EventStatus="Started", NotBefore=text)
    assert (event.started, event.deadline, event.seconds_left) == (True, None, 0.0)


UNREADABLE = [
    "soon",
    7,
    "Mon, 31 Apr 2022 22:26:58 GMT",
    "Mon, 11 Apr 2022 25:26:58 GMT",
    "Mon, 11 Apr 2022 22:26:58 EST",
    # Nobody can reckon with the edges of the calendar.
    "0001-01-01T00:00:00Z",
    "Mon, 01 Jan 0001 00:00:00 GMT",
    "Mon, 01 Jan 0001 00:00:00 +0100",
    "0001-01-01T00:00:00+01:00",
    "1999-12-31T23:59:59Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-01:00",
    "Fri, 31 Dec 9999 23:59:59 -0100",
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_one_unreadable_not_before_does_not_hide_the_others(text: object) -> None:
    odd, fine = decode(document(EVENT | {"NotBefore": text}, EVENT | {"EventId": "another"})).events
    assert (odd.started, odd.deadline, odd.seconds_left) == (False, None, 0.0)
    assert fine.deadline == NOT_BEFORE


def test_keys_may_be_missing_or_unknown() -> None:
    few = {"EventId": "x", "EventStatus": "Scheduled", "EventType": "Reboot", "Later": {"a": [1]}}
    body = json.dumps({"DocumentIncarnation": 1, "Events": [few], "Extra": None}).encode()
    (event,) = decode(body).events
    assert (event.resources, event.source, event.description, event.duration_seconds) == ((), None, None, None)
    assert event.resource_type == "VirtualMachine"


def test_durations() -> None:
    for sent, read in ((0, 0), (-1, -1), ("9", 9), (5.0, 5), (None, None), ("long", None), ([], None)):
        assert only(DurationInSeconds=sent).duration_seconds == read


def test_an_odd_incarnation_costs_nothing() -> None:
    numbers = {1: 1, "7": 7, " 7 ": 7, 2**70: 2**70, 0: 0, 2.0: 2, None: 0, "many": 0, "9" * 5000: 0}
    for sent, read in (*numbers.items(), ([], 0), ({"a": 1}, 0)):
        found = decode(document(EVENT, incarnation=sent))
        assert (found.incarnation, len(found.events)) == (read, 1)
    for number in ("9" * 5000, "1e400", "-1e400", "1.5e308"):
        assert len(decode(document(EVENT, incarnation=7).replace(b"7", number.encode(), 1)).events) == 1


def test_a_byte_order_mark_is_no_harm() -> None:
    assert decode(b"\xef\xbb\xbf" + document(STARTED)).events[0].started


HALF = [
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"<html>",
    b"\xff",
    b'{"error":"no"}',
    b'{"DocumentIncarnation":1}',
    b'{"DocumentIncarnation":1,"Events":null}',
    b'{"DocumentIncarnation":1,"Events":{}}',
    b'{"Events":[]}',
    b'{"DocumentIncarnation":1,"Events":[7]}',
    b'{"DocumentIncarnation":1,"Events":[{"EventStatus":"Scheduled","EventType":"Freeze"}]}',
    b'{"DocumentIncarnation":1,"Events":[{"EventId":"","EventStatus":"Scheduled","EventType":"Freeze"}]}',
    document(EVENT | {"Resources": "WestNO_0"}),
    document(EVENT | {"Resources": [1]}),
    document(EVENT)[:-3],
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", HALF, ids=lambda body: body[:60].decode("latin-1"))
def test_half_a_document_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(body)


keys = st.sampled_from(["DocumentIncarnation", "Events", *EVENT])
anything = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | keys, inner, max_size=5),
    max_leaves=6,
)
documents_of_sorts = st.fixed_dictionaries(
    {"DocumentIncarnation": st.integers() | anything, "Events": st.lists(st.dictionaries(keys, anything)) | anything}
)


@given(st.binary(max_size=200) | st.one_of(anything, documents_of_sorts).map(lambda found: json.dumps(found).encode()))
def test_garbage_is_refused_or_read_but_never_breaks(body: bytes) -> None:
    try:
        found = decode(body)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert isinstance(found, Document)
    for event in found.events:
        assert event.id
        assert event.seconds_left >= 0
        assert event.names("x") in (True, False)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(list(EVENT)), anything, max_size=3).map(lambda odd: EVENT | odd), max_size=3
    )
)
def test_events_with_odd_values_keep_their_number_or_are_refused(events: list[dict[str, Any]]) -> None:
    try:
        assert len(decode(document(*events)).events) == len(events)
    except ValueError:
        return


def test_seconds_left_reckon_with_the_endpoints_clock() -> None:
    now = SystemClock().now()
    body = document(EVENT | {"NotBefore": dates.iso(now + timedelta(seconds=160))})
    assert decode(body).events[0].seconds_left == pytest.approx(160, abs=2)
    assert decode(body, ahead=100).events[0].seconds_left == pytest.approx(60, abs=2)
    assert decode(body, ahead=1000).events[0].seconds_left == 0


@pytest.mark.parametrize(
    ("me", "named"), [("WestNO_0", True), ("westno_1", True), ("_WestNO_0", True), ("WestNO", False)]
)
def test_names(me: str, named: bool) -> None:
    assert only().names(me) is named
    assert only(Resources=["_WestNO_0", "_WestNO_1"]).names(me) is named
