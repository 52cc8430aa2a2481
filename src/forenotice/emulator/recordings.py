"""A recording as a file of JSON lines, and the recorder that writes it."""

import binascii
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Self, TypeAlias

import msgspec

from forenotice.client import errors as client_errors
from forenotice.client import http
from forenotice.client.discovery import Candidate
from forenotice.client.endpoint import HEADERS, LONGEST_TAG, USUAL, Pace
from forenotice.client.events import Document, Event, decode, parse_date
from forenotice.client.http import LARGEST_BODY, Connection, ProtocolError
from forenotice.clock import MachineClock
from forenotice.core import errors
from forenotice.runtime import Runtime

FORMAT = 1
MOST = 100_000
LARGEST_LINE = 32 * 1024 * 1024
"""The largest body there can be, with everything in it escaped."""
LONGEST = 200

Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Line(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab", tag_field="line", tag=str.lower
):
    pass


class Start(_Line, frozen=True, kw_only=True):
    """The first line, and one more where a recording was continued."""

    format: int
    url: str
    api_version: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    """By the recording machine's clock. The times of the lines that follow are seconds since then."""


class Response(_Line, frozen=True, kw_only=True, tag="answer"):
    at: Seconds
    """When it was complete."""
    took: Seconds
    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    etag: str = ""
    date: str = ""
    body: str = ""
    base64: bool = False
    """The body is encoded so because it is not UTF-8."""

    @property
    def content(self) -> bytes:
        return b64decode(self.body, validate=True) if self.base64 else self.body.encode()

    @property
    def document(self) -> Document | None:
        try:
            return decode(self.content) if self.status == 200 else None
        except ValueError:
            return None


class Failure(_Line, frozen=True, kw_only=True):
    """There was no response."""

    at: Seconds
    took: Seconds
    error: str

    @property
    def document(self) -> None:
        return None


class End(_Line, frozen=True, kw_only=True):
    """Until here nothing has changed. Missing where the recorder was killed."""

    at: Seconds


Observation: TypeAlias = Response | Failure
Line: TypeAlias = Start | Response | Failure | End
_LINE = msgspec.json.Decoder(Line)


def events_of(observation: Observation) -> Sequence[Event]:
    document = observation.document
    return document.events if document else ()


def describe(observation: Observation) -> str:
    if isinstance(observation, Failure):
        return f"no response: {observation.error}"
    document = observation.document
    if document is not None:
        events = (f"{event.type} of {', '.join(event.resources)} {event.status}" for event in document.events)
        return f"incarnation {document.incarnation}: {'; '.join(events) or 'no events'}"
    if observation.status == 200:
        return "200 with a body that is no document" if observation.content.strip() else "200 without a body"
    response = http.Response(status=observation.status, reason="", headers={}, body=observation.content)
    message = client_errors.message_of(response)
    return f"{observation.status}{message and f': {message}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    start: Start
    observations: tuple[Observation, ...]
    """At least one. All times count from the first start."""
    length: float
    """Seconds."""
    torn: bool
    """Its last line was cut off, and is left out."""

    @property
    def resources(self) -> Iterator[str]:
        """The names in its documents, as they come."""
        for observation in self.observations:
            for event in events_of(observation):
                yield from event.resources


def read(file: Path) -> Recording:
    start: Start | None = None
    found: list[Observation] = []
    offset = at = 0.0
    torn = False
    try:
        for number, text in enumerate(_lines(file), 1):
            try:
                line = _decode(text)
                if isinstance(line, Start):
                    start = start or line
                    offset = max(at, (line.at - start.at).total_seconds())
                    continue
                if start is None:
                    raise ValueError(f"expected the start of a recording, {_EXAMPLE}")
                if offset + line.at < at:
                    raise ValueError(f"its time {line.at:g} is before that of the line above")
            except ValueError as error:
                if torn := start is not None and not text.endswith(b"\n"):
                    break
                raise errors.RefusedError(f"{file}, line {number}: {error}") from None
            at = offset + line.at
            if not isinstance(line, End):
                found.append(msgspec.structs.replace(line, at=at))
    except OSError as error:
        raise errors.RefusedError(f"cannot read {file}: {client_errors.reason(error)}") from None
    if start is None or not found:
        raise errors.RefusedError(f"{file} is empty: make a recording with `forenotice record`")
    return Recording(start=start, observations=tuple(found), length=at, torn=torn)


_EXAMPLE = (
    '{"line":"start","format":1,"url":"http://169.254.169.254","api-version":"2020-07-01","at":"2026-01-31T12:00:00Z"}'
)


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        for number in range(1, MOST + 1):
            line = opened.readline(LARGEST_LINE)
            if len(line) == LARGEST_LINE:
                expected = f"expected less than {LARGEST_LINE} bytes"
                raise errors.RefusedError(f"{file}, line {number}: it is too long, {expected}")
            if not line:
                return
            yield line
        if opened.readline(1):
            raise errors.RefusedError(f"{file} is too long: expected at most {MOST} lines, cut it into several")


def _decode(text: bytes) -> Line:
    try:
        line: Line = _LINE.decode(text)
        if isinstance(line, Response) and line.base64:
            b64decode(line.body, validate=True)
    except binascii.Error:
        raise ValueError("its body is not base64, as it says") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        expected = "expected a JSON object, one a line"
        what = "it is no line of a recording" if isinstance(error, msgspec.ValidationError) else expected
        why = str(error)
        raise ValueError(f"{what}: {why if why.startswith('JSON') else why[:1].lower() + why[1:]}") from None
    if isinstance(line, Start):
        if line.format != FORMAT:
            raise ValueError(f"its format is {line.format}, expected {FORMAT}: a newer forenotice may have written it")
        if parse_date(line.at.isoformat()) is None:
            raise ValueError("its time is out of range, expected one such as 2026-01-31T12:00:00Z")
    return line


class Writer:
    """A line is in the file when `write` returns: killing the recorder loses nothing."""

    def __init__(self, file: Path, start: Start, *, append: bool = False) -> None:
        self._file = file
        try:
            self._opened = _reopen(file, start) if append and file.exists() else file.open("xb")
        except FileExistsError:
            raise errors.ConflictError(f"{file} exists: name another file, or give --append to continue it") from None
        except OSError as error:
            raise self._unwritable(error) from None
        self.write(start)

    def write(self, line: Line) -> None:
        try:
            self._opened.write(msgspec.json.encode(line) + b"\n")
            self._opened.flush()
        except OSError as error:
            with suppress(OSError):
                self._opened.close()
            raise self._unwritable(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._opened.close()
        except OSError as unwritten:
            raise self._unwritable(unwritten) from None

    def _unwritable(self, error: OSError) -> errors.UnavailableError:
        return errors.UnavailableError(f"cannot write {self._file}: {client_errors.reason(error)}")


def _reopen(file: Path, start: Start) -> BinaryIO:
    before = read(file)
    if (before.start.url, before.start.api_version) != (start.url, start.api_version):
        raise errors.ConflictError(
            f"{file} is a recording of {before.start.url} with api-version {before.start.api_version}:"
            " name another file for this one"
        )
    opened = file.open("r+b")
    if before.torn:
        opened.truncate(file.read_bytes().rfind(b"\n") + 1)
    opened.seek(0, os.SEEK_END)
    return opened


@dataclass(slots=True)
class Tally:
    changes: int = 0
    failures: int = 0
    """Of these, observations without a document."""
    event_ids: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def count(self, observation: Observation) -> None:
        self.changes += 1
        self.failures += observation.document is None
        self.event_ids |= {event.id.upper() for event in events_of(observation)}


class Recorder:
    """Polls an endpoint and keeps each response that differs from the one before; it never approves.

    `run` in one thread, `stop` from another.
    """

    def __init__(
        self,
        candidate: Candidate,
        api_version: str,
        *,
        every: float,
        lasts: float | None = None,
        report: Callable[[Observation], None],
        pace: Pace = USUAL,
        runtime: Runtime | None = None,
    ) -> None:
        """Durations in seconds."""
        self.tally = Tally()
        self.start = Start(format=FORMAT, url=candidate.url, api_version=api_version, at=MachineClock().now())
        self._runtime = runtime or Runtime()
        self._monotonic = self._runtime.monotonic
        self._began = self._monotonic()
        self._target = f"/metadata/scheduledevents?api-version={api_version}"
        self._every = every
        self._lasts = lasts
        self._report = report
        self._pace = pace
        self._connection = Connection(candidate.host, candidate.port, connect_timeout=pace.connect_timeout)
        self._stopping = threading.Event()
        self._tag = ""
        self._answered = False
        self._timeouts = 0
        self._last: object = None

    def stop(self) -> None:
        self._stopping.set()
        self._connection.close()

    def run(self, writer: Writer) -> None:
        if self._lasts is not None:
            self._runtime.start_thread(self._stop_in_time, "recording-end")
        try:
            while not self._stopping.is_set():
                sent = self._monotonic()
                pause = self._poll(writer, sent)
                self._stopping.wait(max(pause, sent + self._every - self._monotonic()))
        finally:
            self.stop()
        self.tally.seconds = self._since_start()
        writer.write(End(at=self.tally.seconds))

    def _stop_in_time(self) -> None:
        if not self._stopping.wait(self._lasts):
            self.stop()

    def _poll(self, writer: Writer, sent: float) -> float:
        """Gives for how many seconds the endpoint wants no further request."""
        condition = {"If-None-Match": self._tag} if self._tag else {}
        timeout = self._pace.patience(self._timeouts) if self._answered else self._pace.first_timeout
        try:
            response = self._connection.request(
                "GET", self._target, {**HEADERS, **condition}, timeout=timeout, largest=LARGEST_BODY
            )
        except (OSError, ProtocolError) as error:
            # A request that `stop` cut off tells nothing.
            if not self._stopping.is_set():
                self._tag = ""
                self._timeouts += isinstance(error, TimeoutError)
                at, took = self._times(sent)
                self._keep(writer, Failure(at=at, took=took, error=client_errors.reason(error)[:LONGEST]))
            return 0.0
        self._answered, self._timeouts = True, 0
        if response.status != 304 or not self._tag:
            tag = response.headers.get("etag", "")
            is_document = response.status == 200 and response.body.strip()
            # None after a failure, so that its end is noticed.
            self._tag = tag if is_document and len(tag) <= LONGEST_TAG else ""
            self._keep(writer, self._observed(response, sent))
        return min(client_errors.retry_after(response), self._pace.longest_retry_after)

    def _observed(self, response: http.Response, sent: float) -> Observation:
        at, took = self._times(sent)
        if not 200 <= response.status <= 599:
            return Failure(at=at, took=took, error=f"answered {response.status}, which is no status of HTTP")
        try:
            body, is_base64 = response.body.decode(), False
        except UnicodeDecodeError:
            body, is_base64 = b64encode(response.body).decode(), True
        tag, date = response.headers.get("etag", "")[:LONGEST_TAG], response.headers.get("date", "")[:LONGEST]
        return Response(at=at, took=took, status=response.status, etag=tag, date=date, body=body, base64=is_base64)

    def _keep(self, writer: Writer, found: Observation) -> None:
        look = (found.status, found.body) if isinstance(found, Response) else found.error
        if look != self._last:
            self._last = look
            writer.write(found)
            self.tally.count(found)
            self._report(found)

    def _times(self, sent: float) -> tuple[float, float]:
        at = self._since_start()
        return at, round(max(0.0, self._began + at - sent), 3)

    def _since_start(self) -> float:
        return round(self._monotonic() - self._began, 3)
