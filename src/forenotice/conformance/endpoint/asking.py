"""Asking an endpoint: one connection for each question, at its pace, and every answer heard by who judges it."""

import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from forenotice.client import refusals
from forenotice.client.exchange import Answer, Exchange, ProtocolError
from forenotice.conformance.endpoint.questions import Framing, Question, get
from forenotice.wire import versions

JSON = "application/json;charset=utf-8"
"""A media type, in lower case and without blanks."""
LARGEST = 256 * 1024
PIECE = 64 * 1024
CONTINUED = 1.0
"""Seconds after which a body is sent that nobody has asked for."""
TRIES = 20
"""So often a question that is refused with 429 is asked again."""
LONGEST_PAUSE = 60.0
SILENT = 3
"""Questions in a row without an answer, until it is asked whether anybody is there."""
POLITE = 4.0
"""Requests a second; the real service refuses more than 5."""
PLAIN = get(versions.NEWEST.name)
_PAUSE = threading.Event()


def pause(seconds: float) -> None:
    _PAUSE.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """In seconds, where it is time."""

    per_second: float | None = None
    """Requests; None: as fast as they are answered."""
    burst: int = 40
    """Requests at once, to meet a limit if there is one."""
    first: float = 150
    """The first answer of all may take two minutes (PROTOCOL, listening)."""
    answer: float = 10
    patience: float = 300
    """What may be lost in all, to refusals for the rate and to questions without an answer."""
    wait: float = 1
    """What is asked for in `Prefer: wait`."""
    appears: float = 300
    """From running the command to the event."""
    starts: float = 120
    """From the approval to Started, where it is not known how long this takes."""
    starts_again: float = 10
    """The same at least, where it is known."""
    ends: float = 1800
    """From Started to the end."""
    lingers: float = 60
    """From a status that does not exist, such as Completed, to the end."""
    settles: float = 0.5
    """Within this, what has been sent would have shown an effect."""
    prompt: float = 2
    """Within this, a wait is answered once the document has changed."""
    shown: float = 2
    """How long Started stays listed (PROTOCOL, life of an event)."""
    between: float = 0.02
    """Between two looks at the document while nothing else is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    question: Question
    status: int = 0
    """0: there was no answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    problem: str = ""
    """Why there was no answer."""
    is_lost: bool = False
    """Nobody was there, or nothing came in time."""
    asked: float
    at: float
    """When it was there, both on the monotonic clock."""

    def __str__(self) -> str:
        return str(self.status) if self.status else f"no answer ({self.problem})"

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "none").replace(" ", "").lower()

    @property
    def seconds(self) -> float:
        return self.at - self.asked

    @property
    def answer(self) -> Answer:
        return Answer(status=self.status, reason="", headers=self.headers, body=self.body)


class Flight:
    """A question that has been sent, and its answer when somebody wants it."""

    def __init__(self, host: str, port: int, question: Question, timeout: float) -> None:
        self._question = question
        self._deadline = monotonic() + timeout
        self._asked = monotonic()
        self._socket: socket.socket | None = None
        self._problem = ""
        self._is_lost = False
        self._exchange = Exchange(host, port)
        # Only so that it knows to what the answer belongs; what is sent is our own.
        self._exchange.begin(question.method, "/", {}, None, largest=LARGEST)
        name = f"[{host}]" if ":" in host else host
        try:
            self._socket = socket.create_connection((host, port), timeout)
            self._send(name if port == 80 else f"{name}:{port}")
        except OSError as error:
            self._fail(error)

    @property
    def age(self) -> float:
        return monotonic() - self._asked

    def is_answered(self) -> bool:
        return self._socket is None or bool(select.select([self._socket], [], [], 0)[0])

    def finish(self, within: float | None = None) -> Heard:
        """What has come by then; the connection is closed."""
        if within is not None:
            self._deadline = monotonic() + within
        answer = None
        try:
            while self._socket is not None and answer is None:
                answer = self._receive()
        except (OSError, ProtocolError) as error:
            self._fail(error)
        self.close()
        heard = Heard(
            question=self._question, problem=self._problem, is_lost=self._is_lost, asked=self._asked, at=monotonic()
        )
        if answer is None:
            return heard
        return replace(heard, status=answer.status, headers=answer.headers, body=answer.body)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, authority: str) -> None:
        assert self._socket is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, tail = self._question.head(authority), self._question.tail()
        if self._question.framing is not Framing.EXPECT:
            head, tail = head + tail, b""
        self._socket.sendall(head)
        if tail:
            # An answer that is final already needs no body; `finish` reads it.
            ready, _, _ = select.select([self._socket], [], [], CONTINUED)
            if not ready or self._socket.recv(12, socket.MSG_PEEK)[9:10] == b"1":
                self._socket.sendall(tail)

    def _receive(self) -> Answer | None:
        assert self._socket is not None
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._exchange.feed(self._socket.recv(PIECE))

    def _fail(self, error: Exception) -> None:
        self._problem = refusals.reason(error)
        self._is_lost = self._socket is None or isinstance(error, TimeoutError)
        self.close()


class Lost(Exception):  # noqa: N818 - it says what became of the endpoint
    """There is no use in asking on."""

    def __init__(self, why: str, heard: Heard) -> None:
        super().__init__(why)
        self.heard = heard


class Asker:
    def __init__(
        self,
        host: str,
        port: int,
        pace: Pace,
        hear: Callable[[Heard], None],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._host, self._port = host, port
        self._hear = hear
        self.say = say
        """For somebody who waits."""
        self.pace = pace
        self._per_second = pace.per_second
        self._next = 0.0
        self._patience = pace.patience
        self._silent = 0
        """Questions in a row that found nobody, or no answer in time."""

    def ask(self, question: Question, timeout: float | None = None) -> Heard:
        for _ in range(TRIES):
            heard = self.ask_once(question, timeout)
            self._hear(heard)
            self._notice(heard)
            if heard.status != 429:
                break
            # Whoever refuses for the rate has one that must be kept from here on.
            self._per_second = POLITE
            seconds = min(LONGEST_PAUSE, max(1.0, refusals.retry_after(heard.answer)))
            why = f"it refused requests for their rate for more than {self.pace.patience:g} s in all"
            self._lose(seconds, why, heard)
            self.say(f"refused for the rate: waiting {seconds:g} s")
            pause(seconds)
        return heard

    def ask_once(self, question: Question, timeout: float | None = None) -> Heard:
        """Also a 429 is an answer."""
        self._take_turn()
        return Flight(self._host, self._port, question, timeout or self.pace.answer).finish()

    def _notice(self, heard: Heard) -> None:
        """Who does not answer some questions may answer others: a plain one decides."""
        if not heard.is_lost:
            self._silent = 0
            return
        self._silent += 1
        why = f"it left questions without an answer for more than {self.pace.patience:g} s in all"
        self._lose(heard.seconds, why, heard)
        if self._silent == SILENT:
            if self.ask_once(PLAIN).is_lost:
                raise Lost("it stopped answering", heard)
            self._silent = 0

    def _lose(self, seconds: float, why: str, heard: Heard) -> None:
        self._patience -= seconds
        if self._patience < 0:
            raise Lost(why, heard)

    def begin(self, question: Question, timeout: float) -> Flight:
        self._take_turn()
        return Flight(self._host, self._port, question, timeout)

    @property
    def is_paced(self) -> bool:
        return self._per_second is not None

    def burst(self, question: Question, most: int) -> Heard | None:
        """All at once; the first 429 that comes."""
        flights = [Flight(self._host, self._port, question, self.pace.answer) for _ in range(most)]
        answers = [flight.finish() for flight in flights]
        for heard in answers:
            self._hear(heard)
        return next((heard for heard in answers if heard.status == 429), None)

    def _take_turn(self) -> None:
        if self._per_second is None:
            return
        now = monotonic()
        if self._next > now:
            pause(self._next - now)
        self._next = max(now, self._next) + 1 / self._per_second
