"""Recording what an endpoint says: asked again and again, and kept when it differs from before. It never approves."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from forenotice.client import refusals
from forenotice.client.connection import Connection, ProtocolError
from forenotice.client.endpoint import HEADERS, LONGEST_TAG
from forenotice.client.exchange import LARGEST_BODY
from forenotice.client.exchange import Answer as HttpAnswer
from forenotice.client.finding import Candidate
from forenotice.client.pace import USUAL, Pace
from forenotice.clock import MachineClock
from forenotice.emulator.record import recorded
from forenotice.emulator.record.recorded import Answer, End, Failure, Heard, Start, Writer

LONGEST = 200
"""Characters of a date or an error that are kept."""


@dataclass(slots=True)
class Tally:
    changes: int = 0
    failures: int = 0
    """Among them, whatever was no document."""
    event_ids: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def count(self, heard: Heard) -> None:
        self.changes += 1
        document = heard.document if isinstance(heard, Answer) else None
        if document is None:
            self.failures += 1
        else:
            self.event_ids |= {event.id.upper() for event in document.events}


class Recorder:
    """`run` in one thread, `stop` from another."""

    def __init__(
        self,
        candidate: Candidate,
        api_version: str,
        *,
        every: float,
        lasts: float | None = None,
        tell: Callable[[Heard], None],
        pace: Pace = USUAL,
    ) -> None:
        """Durations in seconds."""
        self.tally = Tally()
        self.start = Start(format=recorded.FORMAT, url=candidate.url, api_version=api_version, at=MachineClock().now())
        self._began = monotonic()
        self._target = f"/metadata/scheduledevents?api-version={api_version}"
        self._every = every
        self._lasts = lasts
        self._tell = tell
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
        timer = threading.Timer(self._lasts or 0, self.stop)
        if self._lasts is not None:
            timer.start()
        try:
            while not self._stopping.is_set():
                asked = monotonic()
                pause = self._look(writer, asked)
                self._stopping.wait(max(pause, asked + self._every - monotonic()))
        finally:
            timer.cancel()
            self._connection.close()
        self.tally.seconds = self._since_start()
        writer.write(End(at=self.tally.seconds))

    def _look(self, writer: Writer, asked: float) -> float:
        """Gives for how many seconds the endpoint wants to be left alone."""
        try:
            answer = self._ask()
        except (OSError, ProtocolError) as error:
            # A question that was cut off by `stop` tells nothing.
            if not self._stopping.is_set():
                self._fail(writer, error, asked)
            return 0.0
        self._answered, self._timeouts = True, 0
        if answer.status != 304 or not self._tag:
            self._tag = _tag(answer)
            self._keep(writer, self._line(answer, asked))
        return min(refusals.retry_after(answer), self._pace.longest_retry_after)

    def _ask(self) -> HttpAnswer:
        condition = {"If-None-Match": self._tag} if self._tag else {}
        patience = self._pace.patience(self._timeouts) if self._answered else self._pace.first_timeout
        return self._connection.ask(
            "GET", self._target, {**HEADERS, **condition}, timeout=patience, largest=LARGEST_BODY
        )

    def _fail(self, writer: Writer, error: Exception, asked: float) -> None:
        self._tag = ""
        self._timeouts += isinstance(error, TimeoutError)
        at, took = self._moment(asked)
        self._keep(writer, Failure(at=at, took=took, error=refusals.reason(error)[:LONGEST]))

    def _line(self, answer: HttpAnswer, asked: float) -> Heard:
        at, took = self._moment(asked)
        if not 200 <= answer.status <= 599:
            return Failure(at=at, took=took, error=f"answered {answer.status}, which is no status of HTTP")
        body, is_base64 = recorded.written(answer.body)
        return Answer(
            at=at,
            took=took,
            status=answer.status,
            etag=answer.headers.get("etag", "")[:LONGEST_TAG],
            date=answer.headers.get("date", "")[:LONGEST],
            body=body,
            base64=is_base64,
        )

    def _keep(self, writer: Writer, heard: Heard) -> None:
        look = (heard.status, heard.body) if isinstance(heard, Answer) else heard.error
        if look != self._last:
            self._last = look
            writer.write(heard)
            self.tally.count(heard)
            self._tell(heard)

    def _moment(self, asked: float) -> tuple[float, float]:
        at = self._since_start()
        return at, round(max(0.0, self._began + at - asked), 3)

    def _since_start(self) -> float:
        return round(monotonic() - self._began, 3)


def _tag(answer: HttpAnswer) -> str:
    """By which the next answer may say that nothing has changed; none after trouble, so that its end is heard."""
    tag = answer.headers.get("etag", "")
    is_document = answer.status == 200 and answer.body.strip()
    return tag if is_document and len(tag) <= LONGEST_TAG else ""
