"""A recording is said again as it was: documents, order, distances, errors; NotBefore is right on today's clock."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import msgspec
import pytest
import requests
from tests.acceptance.running import until
from tests.client.both import QUICK
from tests.emulator.recorders import NEWEST, NOON, START, recording

from forenotice.client import Client, News
from forenotice.client.events import decode
from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Kind, Source
from forenotice.core.timing import Timing
from forenotice.emulator import recordings
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.recordings import Failure, Observation, Recording, Response
from forenotice.emulator.replay import Replay, Script, Step
from forenotice.emulator.simulation import Announcement
from forenotice.settings import Address
from forenotice.wire import dates, versions
from forenotice.wire import document as wire_document

ANY_PORT = Address(host="127.0.0.1", port=0)
ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
OTHER_ID = "8A506C35-679A-4F78-9D76-C16DBE65EE6F"
CAPTURES = [json.loads(line) for line in Path("tests/wire/captures.jsonl").read_text().splitlines()]
LATER = NOON + timedelta(minutes=15)


def body(incarnation: int, *events: object) -> str:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": events})


def event(status: str = "Scheduled", not_before: str = dates.http(LATER), **more: object) -> dict[str, object]:
    return {
        "EventId": ID,
        "EventStatus": status,
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["web-7"],
        "NotBefore": not_before if status == "Scheduled" else "",
        **more,
    }


def said(at: float, text: str = "", status: int = 200, date: str = "") -> Response:
    return Response(at=at, took=0.01, status=status, body=text, date=date)


def made(*heard: Observation, length: float = 0, api_version: str = NEWEST, start: datetime = NOON) -> Recording:
    return Recording(
        start=msgspec.structs.replace(START, api_version=api_version, at=start),
        observations=heard,
        length=max(length, heard[-1].at),
        torn=False,
    )


def planned(recording: Recording, speed: float = 1, began: datetime = NOON) -> Sequence[Step]:
    return Script(recording, Timing(speed=speed)).round(began).steps


@contextmanager
def replaying(recording: Recording, *, speed: float = 1, loop: bool = False, as_vm: str | None = None) -> Iterator[str]:
    replay = Replay(recording, speed=speed, loop=loop, as_vm=as_vm)
    address = replay.start(ANY_PORT)
    try:
        yield f"http://{address}"
    finally:
        replay.stop()


def get(url: str, **headers: str) -> requests.Response:
    target = f"{url}/metadata/scheduledevents?api-version={NEWEST}"
    return requests.get(target, headers={"Metadata": "true", **headers}, timeout=60, allow_redirects=False)


def changes(client: Client, number: int) -> list[News]:
    """The first so many, within seconds."""
    deadline = monotonic() + 60
    found: list[News] = []
    for news in client.follow():
        assert monotonic() < deadline, found
        if news.changed:
            found.append(news)
        if len(found) == number:
            break
    return found


def approve(url: str, *event_ids: str) -> int:
    target = f"{url}/metadata/scheduledevents?api-version={NEWEST}"
    asked = {"StartRequests": [{"EventId": event_id} for event_id in event_ids]}
    return requests.post(target, json=asked, headers={"Metadata": "true"}, timeout=60).status_code


# What is planned


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: f"{capture['api-version']} {capture['seen']}")
def test_what_was_captured_comes_back_byte_by_byte(capture: dict[str, str]) -> None:
    """From when it was seen on, at the speed of then."""
    seen = datetime.fromisoformat(capture["seen"]).replace(tzinfo=UTC)
    version = versions.lookup(capture["api-version"])
    assert version is not None
    heard = made(said(0, capture["body"]), api_version=version.name, start=seen)
    [step] = planned(heard, began=seen)
    if capture["body"]:
        assert step.document is not None
        assert wire_document.render(step.document, version).decode() == capture["body"]
    else:
        assert step.document is None
        assert step.fault is not None
        assert step.fault.name == "empty-body"


STARTED = body(1, event("Started"))
DISTANCES = [
    # The first comes at once, the rest at its recorded distance divided by the speed.
    ((said(100, body(1)), said(160, body(2)), said(161.5, body(3))), 30, (0, 2, 2.05)),
    # Started is shown long enough whatever the speed, but no longer than it was.
    ((said(0, STARTED), said(600, body(2)), said(601, body(3))), 6000, (0, 2, 2 + 1 / 6000)),
    ((said(0, STARTED), said(1, body(2))), 6000, (0, 1)),
    # What started early does so again.
    ((said(0, body(1, event())), said(60, STARTED), said(900, STARTED)), 2, (0, 30, 450)),
]


@pytest.mark.parametrize(("heard", "speed", "seconds"), DISTANCES)
def test_each_response_comes_at_its_distance(heard: Sequence[Response], speed: float, seconds: Sequence[float]) -> None:
    steps = planned(made(*heard), speed=speed)
    assert [step.at - NOON for step in steps] == [timedelta(seconds=each) for each in seconds]


def deadlines(steps: Sequence[Step]) -> list[datetime]:
    return [each.not_before for step in steps if step.document for each in step.document.events]


def test_not_before_is_as_far_away_as_it_was() -> None:
    began = datetime(2031, 5, 5, 5, 5, 5, 500_000, tzinfo=UTC)
    steps = planned(made(said(0, body(1)), said(60, body(2, event())), said(90, body(3, event()))), 60, began)
    # 14 minutes after it appeared, which is a second after the beginning; rounded up.
    assert deadlines(steps) == [datetime(2031, 5, 5, 5, 5, 21, tzinfo=UTC)] * 2
    # By the endpoint's clock, where that was recorded.
    ahead = dates.http(NOON + timedelta(minutes=10, seconds=5))
    steps = planned(made(said(5, body(1, event()), date=ahead)))
    assert deadlines(steps) == [NOON + timedelta(minutes=4, seconds=55)]
    sooner = dates.http(NOON + timedelta(minutes=5))
    steps = planned(made(said(0, body(1, event())), said(60, body(2, event(not_before=sooner)))))
    assert deadlines(steps) == [LATER, NOON + timedelta(minutes=5)]


@pytest.mark.parametrize("speed", [1, 2, 60, 600])
@pytest.mark.parametrize("fraction", [0, 0.1, 0.6, 0.9])
def test_what_started_in_time_does_not_start_early(speed: float, fraction: float) -> None:
    began = NOON + timedelta(seconds=fraction)
    heard = (said(0.7, body(1, event())), said(900.5, body(2, event("Started"))), said(930, body(3)))
    announced, started, gone = planned(made(*heard), speed, began)
    assert announced.document is not None
    not_before = announced.document.events[0].not_before
    assert timedelta(0) <= started.at - not_before < timedelta(seconds=1)
    assert started.document is not None
    assert gone.at - started.at == max(timedelta(seconds=2), timedelta(seconds=29.5) / speed)


def test_what_other_servers_write_is_understood() -> None:
    odd = {
        "Resources": ["web-7", "web-8"],
        "NotBefore": LATER.isoformat().replace("+00:00", "Z"),
        "EventType": "reboot",
        "EventStatus": "SCHEDULED",
        "EventId": ID.lower(),
        "EventSource": "user",
        "DurationInSeconds": "9",
        "Frob": 1,
    }
    [step] = planned(made(said(0, json.dumps({"Events": [odd], "DocumentIncarnation": "7"}))))
    assert step.document is not None
    more = {"Resources": odd["Resources"], "Description": "", "EventSource": "User", "DurationInSeconds": 9}
    assert json.loads(wire_document.render(step.document, versions.NEWEST)) == json.loads(body(7, {**event(), **more}))


def test_numbers_and_times_beyond_all_bounds_are_borne() -> None:
    far = event(not_before="Fri, 31 Dec 2199 00:00:00 GMT", DurationInSeconds=1e300)
    near = event(not_before="Sat, 01 Jan 2000 00:00:00 GMT", EventId=OTHER_ID)
    [step] = planned(made(said(0, body(10**30, far, near, event(not_before="soon")))), speed=0.01)
    assert step.document is not None
    shown = json.loads(wire_document.render(step.document, versions.NEWEST))
    assert shown["DocumentIncarnation"] == 2**53
    assert len(shown["Events"]) == 3


def test_an_old_recording_says_what_it_knows() -> None:
    old = made(said(0, body(1, event(Resources=["_web-7"]))), api_version="2017-03-01")
    [step] = planned(old)
    assert step.document is not None
    [shown] = step.document.events
    known = (shown.resources, shown.source, shown.description, shown.duration)
    assert known == (("web-7",), Source.PLATFORM, "", -1)
    assert b'"_web-7"' in wire_document.render(step.document, versions.ALL[0])
    script = Script(made(said(0, body(1, event(Resources=["Front_IN_0"]))), api_version="2017-03-01"), Timing())
    assert (script.kind, script.first_vm) == (ScopeKind.CLOUD_SERVICE, "Front_IN_0")

    # What no version knows is left out.
    script = Script(made(said(0, body(1, event(EventType="Nap"), event(EventStatus="Canceled"), event()))), Timing())
    [step] = script.round(NOON).steps
    assert step.document is not None
    assert len(step.document.events) == 1
    assert script.unknown_types == ("Nap",)


# What is played


def test_a_client_sees_what_another_saw(tmp_path: Path) -> None:
    emulator = Emulator(as_vm="web-3", virtual=True)
    emulator.start()
    try:
        with recording(f"http://{emulator.address}", tmp_path / "file") as working:
            working.heard(1)
            emulator.announce(Announcement(kind=Kind.LIVE_MIGRATION, resources=("web-3", "web-4")))
            working.heard(2)
            emulator.announce(Announcement(kind=Kind.EVICTION, resources=("web-5",)))
            working.heard(3)
            emulator.advance(timedelta(seconds=30))
            working.heard(4)
    finally:
        emulator.stop()
    found = recordings.read(tmp_path / "file")
    assert Script(found, Timing()).first_vm == "web-3"
    spread = [msgspec.structs.replace(heard, at=number * 18.0) for number, heard in enumerate(found.observations)]
    again = made(*spread, start=found.start.at)
    with replaying(again, speed=60) as url, Client(url, pace=QUICK) as client:
        assert client.me == "web-3"
        seen = changes(client, len(spread))
    originals = [heard.document for heard in spread if isinstance(heard, Response)]
    for original, news in zip(originals, seen, strict=True):
        assert original is not None
        assert news.document is not None
        assert news.document.incarnation == original.incarnation
        shown = [msgspec.structs.replace(each, not_before_text="", ahead=0) for each in news.document.events]
        assert shown == [msgspec.structs.replace(each, not_before_text="") for each in original.events]
    assert seen[2].document is not None
    now = datetime.now(UTC)
    left = [(each.deadline - now).total_seconds() for each in seen[2].document.events if each.deadline]
    # One of 30 seconds has just started, one of 15 minutes was announced a little before it, sixty times as fast.
    assert sorted(left) == [pytest.approx(-0.5, abs=0.5), pytest.approx(14, abs=1)]


def test_the_same_document_has_the_same_tag_and_another_one_another() -> None:
    heard = made(said(0, body(5, event())), said(3, body(2)), said(6, body(2, event())))
    tags: set[str] = set()
    # Each document is shown for three quarters of a second, so that a busy machine sees it.
    with replaying(heard, speed=4) as url:
        deadline = monotonic() + 60
        while len(tags) < 3:
            assert monotonic() < deadline
            found = get(url)
            tags.add(found.headers["ETag"])
            again = get(url, **{"If-None-Match": found.headers["ETag"]})
            assert again.status_code == 304 or again.headers["ETag"] not in tags


WRONG = [
    (said(0, '{"error":"later", "more":1}', 503), 503, '{"error":"later", "more":1}', 503),
    (said(0, "<p>odd</p>", 499), 499, "<p>odd</p>", 499),
    (said(0), 200, "", 400),
    (said(0, "rubbish"), 200, "rubbish", 400),
    (said(0, "", 302), 302, "", 400),
]


@pytest.mark.parametrize(("heard", "status", "text", "approved"), WRONG)
def test_errors_come_back_as_they_were(heard: Response, status: int, text: str, approved: int) -> None:
    """To an approval only what is an error for certain."""
    with replaying(made(heard)) as url:
        found = get(url)
        assert (found.status_code, found.text) == (status, text)
        assert approve(url, ID) == approved


def test_no_connection_is_a_reset_and_over_when_it_was() -> None:
    with replaying(made(Failure(at=0, took=0, error="connection refused"), said(3, body(1))), speed=10) as url:
        with pytest.raises(requests.ConnectionError):
            get(url)
        with Client(url, pace=QUICK) as client:
            assert [news.document for news in changes(client, 1)] == [decode(body(1).encode())]


def test_silence_lasts_as_long_as_it_did() -> None:
    heard = made(Failure(at=0, took=10, error="timed out"), said(10, body(4)))
    with replaying(heard, speed=10) as url:
        assert get(url).elapsed > timedelta(seconds=0.7)
        assert get(url).elapsed < timedelta(seconds=0.7)


def test_approvals_are_accepted_and_change_nothing() -> None:
    with replaying(made(said(0, body(1, event())))) as url:
        before = get(url)
        assert approve(url, ID.lower()) == 200
        assert approve(url, ID, OTHER_ID) == approve(url, OTHER_ID) == 400
        assert get(url).content == before.content
    with replaying(made(said(0, body(1, event())), said(1, body(2))), speed=100) as url:
        until(lambda: get(url).json()["Events"] == [])
        # It has just ended.
        assert approve(url, ID) == 200


def test_it_is_played_again_and_again() -> None:
    heard = made(said(0, body(2, event())), said(5, body(3)), length=10)
    with replaying(heard, speed=10, loop=True) as url, Client(url, pace=QUICK) as client:
        seen = [news.document for news in changes(client, 3) if news.document]
    assert [document.incarnation for document in seen] == [2, 3, 2]
    assert seen[0].events[0].not_before_text != seen[2].events[0].not_before_text
    # One moment takes a second, again and again.
    assert Script(made(said(0, body(1))), Timing(speed=100)).round(NOON).ends - NOON == timedelta(seconds=1)


WHO = [
    (made(said(0, body(1))), None, "web-0"),
    (made(said(0, body(1, event()))), None, "web-7"),
    (made(said(0, body(1, event()))), "db", "db"),
]


@pytest.mark.parametrize(("heard", "as_vm", "name"), WHO)
def test_callers_are_whom_one_says(heard: Recording, as_vm: str | None, name: str) -> None:
    with replaying(heard, as_vm=as_vm) as url, Client(url) as client:
        assert client.me == name
