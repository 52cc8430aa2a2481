"""The file of a recording: what is damaged is refused with its line, what was cut off is left out."""

import resource
from datetime import timedelta
from pathlib import Path

import pytest
from tests.emulator.recorders import NOON, START, lines

from forenotice.core import errors
from forenotice.emulator import recordings
from forenotice.emulator.recordings import End, Failure, Observation, Response, Start, Writer

BODY = '{"DocumentIncarnation":1,"Events":[]}'
ANSWER = Response(at=1.0, took=0.1, status=200, body=BODY)
START_LINE = b'{"line":"start","format":1,"url":"http://169.254.169.254","api-version":"2020-07-01","at":"2026-03-09T12:00:00Z"}\n'
ANSWER_LINE = (
    b'{"line":"answer","at":1.0,"took":0.1,"status":200,"body":"{\\"DocumentIncarnation\\":1,\\"Events\\":[]}"}\n'
)


def write(file: Path, *heard: Observation | End, start: Start = START, append: bool = False) -> None:
    with Writer(file, start, append=append) as writer:
        for line in heard:
            writer.write(line)


def test_the_bytes_of_a_recording(tmp_path: Path) -> None:
    write(tmp_path / "file", ANSWER)
    assert (tmp_path / "file").read_bytes() == START_LINE + ANSWER_LINE


def test_what_is_written_is_read(tmp_path: Path) -> None:
    odd = Response(at=2, took=0, status=200, body="/w==", base64=True)
    gone = Failure(at=3, took=2, error="timed out")
    write(tmp_path / "file", ANSWER, odd, gone, End(at=9))
    found = recordings.read(tmp_path / "file")
    assert (found.start, found.observations, found.length, found.torn) == (START, (ANSWER, odd, gone), 9.0, False)
    assert odd.content == b"\xff"


DAMAGED = [
    (b"", "is empty: make a recording with `forenotice record`"),
    (START_LINE, "is empty"),
    (START_LINE[:-9], "line 1: expected a JSON object, one a line: "),
    (ANSWER_LINE, 'line 1: expected the start of a recording, {"line":"start","format":1,'),
    (START_LINE + b"garbage\n" + ANSWER_LINE, "line 2: expected a JSON object, one a line: JSON is malformed"),
    (START_LINE + b"[]\n", "line 2: it is no line of a recording: expected `object`, got `array`"),
    (START_LINE + b"\xff\n", "line 2: expected a JSON object, one a line: "),
    (START_LINE + b"[" * 5000 + b"\n", "line 2: "),
    (START_LINE + b'{"line":"frob"}\n', "line 2: it is no line of a recording: invalid value 'frob'"),
    (START_LINE + b'{"line":"answer","at":1}\n', "line 2: it is no line of a recording: object missing required field"),
    (
        START_LINE + ANSWER_LINE + ANSWER_LINE.replace(b"1.0", b"0.5"),
        "line 3: its time 0.5 is before that of the line",
    ),
    (START_LINE + ANSWER_LINE.replace(b"1.0", b"-1"), "line 2: it is no line of a recording: expected `float` >= 0.0"),
    (START_LINE + ANSWER_LINE.replace(b"200", b"99"), "line 2: it is no line of a recording: expected `int` >= 200"),
    (
        START_LINE + ANSWER_LINE.replace(b'"body"', b'"base64":true,"body"'),
        "line 2: its body is not base64, as it says",
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


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(errors.RefusedError, match=r"cannot read .*: no such file or directory"):
        recordings.read(tmp_path / "none")


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    monkeypatch.setattr(recordings, "MOST", 3)
    file.write_bytes(START_LINE + ANSWER_LINE * 2)
    assert len(recordings.read(file).observations) == 2
    file.write_bytes(START_LINE + ANSWER_LINE * 3)
    with pytest.raises(errors.RefusedError, match="is too long: expected at most 3 lines"):
        recordings.read(file)
    monkeypatch.setattr(recordings, "LARGEST_LINE", len(START_LINE))
    with pytest.raises(errors.RefusedError, match="line 1: it is too long, expected less than"):
        recordings.read(file)


@pytest.mark.parametrize("cut", range(1, len(ANSWER_LINE)))
def test_wherever_the_last_line_is_cut_off_it_is_left_out(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(START_LINE + ANSWER_LINE + ANSWER_LINE[:-cut])
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
                writer.write(ANSWER)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_recording_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "file"
    later = Start(format=1, url=START.url, api_version=START.api_version, at=NOON + timedelta(seconds=60))
    write(file, ANSWER, append=True)
    with file.open("ab") as opened:
        opened.write(ANSWER_LINE[:20])
    write(file, ANSWER, End(at=5), start=later, append=True)
    assert [line["line"] for line in lines(file)] == ["start", "answer", "start", "answer", "end"]
    found = recordings.read(file)
    assert ([heard.at for heard in found.observations], found.length) == ([1, 61], 65)


def test_a_clock_that_was_set_back_meanwhile_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "file"
    earlier = Start(format=1, url=START.url, api_version=START.api_version, at=NOON - timedelta(hours=1))
    write(file, ANSWER)
    write(file, ANSWER, start=earlier, append=True)
    assert [heard.at for heard in recordings.read(file).observations] == [1, 2]


def test_another_endpoint_is_another_recording(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write(file, ANSWER)
    other = Start(format=1, url="http://127.0.0.1", api_version=START.api_version, at=NOON)
    with pytest.raises(
        errors.ConflictError, match=r"is a recording of http://169.254.169.254 with api-version 2020-07-01"
    ):
        write(file, start=other, append=True)


DESCRIBED = [
    (Failure(at=0, took=0, error="timed out"), "no response: timed out"),
    (ANSWER, "incarnation 1: no events"),
    (Response(at=0, took=0, status=200), "200 without a body"),
    (Response(at=0, took=0, status=200, body="x"), "200 with a body that is no document"),
    (Response(at=0, took=0, status=503, body='{"error":"Later"}'), "503: Later"),
    (Response(at=0, took=0, status=404, body="<p>"), "404"),
    (
        Response(
            at=0,
            took=0,
            status=200,
            body='{"DocumentIncarnation":2,"Events":[{"EventId":"x","EventStatus":"Started","EventType":"Freeze",'
            '"Resources":["a","b"]}]}',
        ),
        "incarnation 2: Freeze of a, b Started",
    ),
]


@pytest.mark.parametrize(("heard", "said"), DESCRIBED)
def test_what_people_read_of_it(heard: Observation, said: str) -> None:
    assert recordings.describe(heard) == said
