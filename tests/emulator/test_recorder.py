"""What an endpoint says is kept when it differs from before, whatever it is, and nothing is approved."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest
import requests
from tests.acceptance.running import NOBODY, until
from tests.cli.stranger import answer, asked_header, stranger
from tests.emulator.recorders import NEWEST, Working, lines, recording

from forenotice.client.pace import USUAL
from forenotice.core.operations import Kind
from forenotice.emulator import faults, recordings
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.recordings import Failure, Observation, Response
from forenotice.emulator.replay import SILENT
from forenotice.emulator.simulation import Announcement

RESTART = Announcement(kind=Kind.RESTART, resources=("web-0",), takes=timedelta(minutes=5))
_PAUSE = threading.Event()
TARGET = f"/metadata/scheduledevents?api-version={NEWEST}"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    made = Emulator(as_vm="web-0", virtual=True)
    made.start()
    yield made
    made.stop()


def url(emulator: Emulator) -> str:
    return f"http://{emulator.address}"


def test_a_life_is_recorded_change_by_change(emulator: Emulator, tmp_path: Path) -> None:
    file = tmp_path / "life"
    with recording(url(emulator), file) as working:
        working.heard(1)
        event = emulator.announce(RESTART)
        working.heard(2)
        seen = requests.get(url(emulator) + TARGET, headers={"Metadata": "true"}, timeout=60)
        emulator.advance(timedelta(minutes=15))
        working.heard(3)
        emulator.advance(timedelta(minutes=5))
        working.heard(4)
        emulator.requests.wait_for(lambda requests: len(requests) > 10, 5)
        # Whoever kills it now loses nothing.
        assert len(lines(file)) == 5
    start, *answers, end = lines(file)
    assert start.keys() == {"line", "format", "url", "api-version", "at"}
    assert (start["line"], start["url"], start["api-version"]) == ("start", url(emulator), NEWEST)
    assert [line["line"] for line in (*answers, end)] == ["answer"] * 4 + ["end"]
    statuses = [[event["EventStatus"] for event in json.loads(line["body"])["Events"]] for line in answers]
    assert statuses == [[], ["Scheduled"], ["Started"], []]
    assert answers[1]["body"].encode() == seen.content
    assert (answers[1]["etag"], answers[1]["date"]) == (seen.headers["ETag"], seen.headers["Date"])
    assert all(line["at"] >= line["took"] >= 0 for line in answers)
    assert [line["at"] for line in (*answers, end)] == sorted(line["at"] for line in (*answers, end))
    assert working.recorder.tally.event_ids == {event.id}
    assert working.recorder.tally.seconds == end["at"]
    assert emulator.requests.approvals == ()
    assert not any("prefer" in asked.headers for asked in emulator.requests)
    assert [asked.status for asked in emulator.requests].count(304) >= 5


def look(heard: Observation) -> object:
    return heard.status if isinstance(heard, Response) else heard.error


def test_errors_are_kept_once_for_each_change(emulator: Emulator, tmp_path: Path) -> None:
    file = tmp_path / "errors"
    chosen = (*map(faults.find, ("error-503", "empty-body", "reset", "error-500")), SILENT)
    with recording(url(emulator), file) as working:
        working.heard(1)
        for changes, fault in enumerate(chosen, 2):
            emulator.faults.put(fault)
            working.heard(changes)
            emulator.requests.clear()
            emulator.requests.wait_for(lambda requests: len(requests) >= 3, 0.3)
        emulator.switch_off()
        working.heard(7)
        emulator.switch_on("reset")
        working.heard(8)
        # The same document as before, whose tag is known: that all is well again is heard nevertheless.
        emulator.switch_off()
        working.heard(9)
    kept = recordings.read(file).observations
    reset = "connection reset by peer"
    assert list(map(look, kept)) == [200, 503, 200, reset, 500, "timed out", 200, reset, 200]
    assert kept[1].took < 1
    documents = [heard.document is not None for heard in kept if isinstance(heard, Response)]
    assert documents == [True, False, False, False, True, True]
    assert (working.recorder.tally.changes, working.recorder.tally.failures) == (9, 6)


def test_a_machine_where_nobody_answers(tmp_path: Path) -> None:
    file = tmp_path / "nobody"
    with recording(NOBODY, file) as working:
        assert look(working.heard(1)) == "connection refused"
    assert [line["line"] for line in lines(file)] == ["start", "failure", "end"]


def test_whatever_a_stranger_says_is_kept_byte_by_byte(tmp_path: Path) -> None:
    said = (
        answer("200 OK", b"\xff\xfe"),
        answer("200 OK", b'{"DocumentIncarnation":"7","Events":[]}', "ETag: x"),
        answer("404 Not Found", b"<p>none</p>", "ETag: y"),
        answer("999 Odd", b""),
        answer("304 Not Modified"),
        b"no HTTP\r\n\r\n",
    )
    with stranger(*said) as server, recording(server.url, tmp_path / "odd") as working:
        working.heard(6)
    tags = [tag for asked in server.asked for tag in asked_header(asked, "If-None-Match")]
    # Only a document can be unchanged.
    assert tags == ["x"]
    kept = recordings.read(tmp_path / "odd").observations
    assert [(heard.status, heard.content) for heard in kept if isinstance(heard, Response)] == [
        (200, b"\xff\xfe"),
        (200, b'{"DocumentIncarnation":"7","Events":[]}'),
        (404, b"<p>none</p>"),
        (304, b""),
    ]
    failures = [heard.error for heard in kept if isinstance(heard, Failure)]
    assert failures[0] == "answered 999, which is no status of HTTP"
    assert failures[1].startswith("the response is not valid http")


def test_a_slow_first_answer_is_waited_for_and_can_be_given_up(emulator: Emulator, tmp_path: Path) -> None:
    emulator.switch_on("slow-first-answer")
    with recording(url(emulator), tmp_path / "slow") as working:
        until(lambda: emulator.faults.interceptors)
        began = monotonic()
    assert monotonic() - began < 20
    assert working.told == []
    assert [line["line"] for line in lines(tmp_path / "slow")] == ["start", "end"]


def test_an_endpoint_that_wants_to_be_left_alone_is(tmp_path: Path) -> None:
    with stranger(answer("429 Too Many RequestLog", b"", "Retry-After: 9")) as server:
        working = Working(server.url, tmp_path / "busy", pace=USUAL)
        working.heard(1)
        _PAUSE.wait(0.1)
        working.stop()
        assert len(server.asked) == 1
