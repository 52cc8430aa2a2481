"""Recordings: damaged files are refused with the line, and the recorder keeps what differs from before."""

import json
import resource
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest
import requests
from tests.acceptance.running import NOBODY, until
from tests.cli.stranger import answer, asked_header, stranger
from tests.emulator.recorders import NEWEST, NOON, START, Working, lines, recording

from forenotice.client.endpoint import USUAL
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.emulator import faults, recordings
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.recordings import End, Failure, Observation, Response, Start, Writer
from forenotice.emulator.replay import SILENT
from forenotice.emulator.simulation import Announcement

RESTART = Announcement(kind=Kind.RESTART, resources=("web-0",), takes=timedelta(minutes=5))
_PAUSE = threading.Event()
TARGET = f"/metadata/scheduledevents?api-version={NEWEST}"

BODY = '{"DocumentIncarnation":1,"Events":[]}'
RESPONSE = Response(at=1.0, took=0.1, status=200, body=BODY)
START_LINE = b'{"line":"start","format":1,"url":"http://169.254.169.254","api-version":"2020-07-01","at":"2026-03-09T12:00:00Z"}\n'
RESPONSE_LINE = (
    b'{"line":"answer","at":1.0,"took":0.1,"status":200,"body":"{\\"DocumentIncarnation\\":1,\\"Events\\":[]}"}\n'
)


def write(file: Path, *heard: Observation | End, start: Start = START, append: bool = False) -> None:
    with Writer(file, start, append=append) as writer:
        for line in heard:
            writer.write(line)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    odd = Response(at=2, took=0, status=200, body="/w==", base64=True)
    gone = Failure(at=3, took=2, error="timed out")
    write(file, RESPONSE, odd, gone, End(at=9))
    assert file.read_bytes().startswith(START_LINE + RESPONSE_LINE)
    found = recordings.read(file)
    assert (found.start, found.observations, found.length, found.torn) == (START, (RESPONSE, odd, gone), 9.0, False)
    assert odd.content == b"\xff"


NO_LINE = "line 2: it is no line of a recording:"
DAMAGED = [
    (b"", "is empty: make a recording with `forenotice record`"),
    (START_LINE, "is empty"),
    (START_LINE[:-9], "line 1: expected a JSON object, one a line: "),
    (RESPONSE_LINE, 'line 1: expected the start of a recording, {"line":"start","format":1,'),
    (START_LINE + b"garbage\n" + RESPONSE_LINE, "line 2: expected a JSON object, one a line: JSON is malformed"),
    (START_LINE + b"[]\n", f"{NO_LINE} expected `object`, got `array`"),
    (START_LINE + b"\xff\n", "line 2: expected a JSON object, one a line: "),
    (START_LINE + b"[" * 5000 + b"\n", "line 2: "),
    (START_LINE + b'{"line":"frob"}\n', f"{NO_LINE} invalid value 'frob'"),
    (START_LINE + RESPONSE_LINE + RESPONSE_LINE.replace(b"1.0", b"0.5"), "line 3: its time 0.5 is before that of the"),
    (START_LINE + RESPONSE_LINE.replace(b"1.0", b"-1"), f"{NO_LINE} expected `float` >= 0.0"),
    (START_LINE + RESPONSE_LINE.replace(b"200", b"99"), f"{NO_LINE} expected `int` >= 200"),
    (
        START_LINE + RESPONSE_LINE.replace(b'"body"', b'"base64":true,"body"'),
        "line 2: its body is not base64",
    ),
    (START_LINE.replace(b":1", b":2"), "line 1: its format is 2, expected 1: a newer forenotice may have written it"),
    (START_LINE.replace(b"00Z", b"00"), "line 1: it is no line of a recording: expected `datetime` with a timezone"),
    (START_LINE.replace(b"2026-03", b"9999-12"), "line 1: its time is out of range, expected one such as 2026-01-31"),
]


@pytest.mark.parametrize(("content", "said"), DAMAGED)
def test_what_is_damaged_is_refused_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(errors.RefusedError) as refusal:
        recordings.read(file)
    assert refusal.value.message.startswith(str(file))
    assert said in refusal.value.message


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    with pytest.raises(errors.RefusedError, match=r"cannot read .*: no such file or directory"):
        recordings.read(file)
    monkeypatch.setattr(recordings, "MOST", 3)
    file.write_bytes(START_LINE + RESPONSE_LINE * 2)
    assert len(recordings.read(file).observations) == 2
    file.write_bytes(START_LINE + RESPONSE_LINE * 3)
    with pytest.raises(errors.RefusedError, match="is too long: expected at most 3 lines"):
        recordings.read(file)
    monkeypatch.setattr(recordings, "LARGEST_LINE", len(START_LINE))
    with pytest.raises(errors.RefusedError, match="line 1: it is too long, expected less than"):
        recordings.read(file)


@pytest.mark.parametrize("cut", range(1, len(RESPONSE_LINE)))
def test_wherever_the_last_line_is_cut_off_it_is_left_out(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(START_LINE + RESPONSE_LINE + RESPONSE_LINE[:-cut])
    found = recordings.read(file)
    # Without its line feed it is whole all the same.
    assert (len(found.observations), found.torn) == ((2, False) if cut == 1 else (1, True))


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    with pytest.raises(errors.ConflictError, match="exists: name another file, or give --append to continue it"):
        write(file)
    with pytest.raises(errors.RefusedError, match="line 1"):
        write(file, append=True)
    assert file.read_bytes() == b"precious"
    with pytest.raises(errors.UnavailableError, match=r"cannot write .*: no such file or directory"):
        write(tmp_path / "none" / "file")


def test_a_file_that_can_grow_no_more(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Writer(tmp_path / "file", START) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(START_LINE) + 9, before[1]))
        try:
            with pytest.raises(errors.UnavailableError, match=r"cannot write .*: file too large"):
                writer.write(RESPONSE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_recording_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def started(at: datetime, url: str = START.url) -> Start:
        return Start(format=1, url=url, api_version=START.api_version, at=at)

    write(file, RESPONSE, append=True)
    with file.open("ab") as opened:
        opened.write(RESPONSE_LINE[:20])
    write(file, RESPONSE, End(at=5), start=started(NOON + timedelta(seconds=60)), append=True)
    assert [line["line"] for line in lines(file)] == ["start", "answer", "start", "answer", "end"]
    found = recordings.read(file)
    assert ([each.at for each in found.observations], found.length) == ([1, 61], 65)
    # A clock that was set back meanwhile does not matter.
    write(file, RESPONSE, start=started(NOON - timedelta(hours=1)), append=True)
    assert [each.at for each in recordings.read(file).observations] == [1, 61, 66]
    other = r"is a recording of http://169.254.169.254 with api-version 2020-07-01"
    with pytest.raises(errors.ConflictError, match=other):
        write(file, start=started(NOON, "http://127.0.0.1"), append=True)


FREEZE = '{"EventId":"x","EventStatus":"Started","EventType":"Freeze","Resources":["a","b"]}'
DESCRIBED = [
    (Failure(at=0, took=0, error="timed out"), "no response: timed out"),
    (RESPONSE, "incarnation 1: no events"),
    (Response(at=0, took=0, status=200), "200 without a body"),
    (Response(at=0, took=0, status=200, body="x"), "200 with a body that is no document"),
    (Response(at=0, took=0, status=503, body='{"error":"Later"}'), "503: Later"),
    (Response(at=0, took=0, status=404, body="<p>"), "404"),
    (
        Response(at=0, took=0, status=200, body=f'{{"DocumentIncarnation":2,"Events":[{FREEZE}]}}'),
        "incarnation 2: Freeze of a, b Started",
    ),
]


@pytest.mark.parametrize(("observation", "sentence"), DESCRIBED)
def test_an_observation_in_words(observation: Observation, sentence: str) -> None:
    assert recordings.describe(observation) == sentence


# The recorder


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


def test_an_endpoint_that_is_missing_or_slow_at_first(emulator: Emulator, tmp_path: Path) -> None:
    with recording(NOBODY, tmp_path / "nobody") as working:
        assert look(working.heard(1)) == "connection refused"
    assert [line["line"] for line in lines(tmp_path / "nobody")] == ["start", "failure", "end"]
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
