"""Requests as they go over the wire, also those that no ordinary client would send."""

import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from time import monotonic

from forenotice.client import errors as client_errors
from forenotice.client.http import Exchange, ProtocolError
from forenotice.client.http import Response as ClientResponse
from forenotice.wire import versions

PATH = "/metadata/scheduledevents"
HTTP_1_1 = "HTTP/1.1"
LONGEST_BODY = 160
"""Of what a report shows, in characters."""


class Framing(StrEnum):
    """How the end of the body is told, and whether it waits to be asked for."""

    LENGTH = "length"
    CHUNKED = "chunked"
    EXPECT = "expect"


FRAMED: Mapping[Framing, Mapping[str, str]] = {
    Framing.LENGTH: {},
    Framing.CHUNKED: {"Transfer-Encoding": "chunked"},
    Framing.EXPECT: {"Expect": "100-continue"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    version: str
    """Its api-version as far as reports go; what is sent is in the query."""
    method: str = "GET"
    path: str = PATH
    query: str
    headers: Mapping[str, str] = field(default_factory=lambda: {"Metadata": "true"})
    body: bytes | None = None
    framing: Framing = Framing.LENGTH
    protocol: str = HTTP_1_1
    absolute: bool = False

    def having(self, **headers: str) -> "Request":
        """With more headers; an underscore stands for a hyphen."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})

    def __str__(self) -> str:
        """For a report: what makes this request what it is, and not more of its body than can be read."""
        parts = [self.method, self._target("HOST"), *([self.protocol] if self.protocol != HTTP_1_1 else [])]
        fields = {"Metadata": "", **{name.title(): value for name, value in self._fields().items()}}
        told = ", ".join(f"{name}: {value}" if value else f"no {name}" for name, value in fields.items())
        parts.append(f"[{told}]")
        if self.body is not None:
            body = self.body.decode(errors="backslashreplace")
            cut = f"{body[:LONGEST_BODY].rstrip()}... ({len(body)} bytes)"
            parts.append(cut if len(body) > LONGEST_BODY else body or "(empty body)")
        return " ".join(parts)

    def head(self, authority: str) -> bytes:
        fields = {"Host": authority, "Connection": "close", **self._fields()}
        if not fields["Host"]:
            del fields["Host"]
        if self.body is not None and self.framing is not Framing.CHUNKED:
            fields["Content-Length"] = str(len(self.body))
        lines = [f"{self.method} {self._target(authority)} {self.protocol}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _target(self, authority: str) -> str:
        origin = f"http://{authority}" if self.absolute else ""
        return f"{origin}{self.path}{'?' if self.query else ''}{self.query}"

    def _fields(self) -> Mapping[str, str]:
        return {**self.headers, **FRAMED[self.framing]}

    def tail(self) -> bytes:
        """The body, in two chunks where it comes in chunks."""
        body = self.body or b""
        if self.framing is not Framing.CHUNKED:
            return body
        half = len(body) // 2
        chunks = [part for part in (body[:half], body[half:]) if part]
        return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"


def get(version: str) -> Request:
    return Request(version=version, query=f"api-version={version}")


def post(version: str, body: bytes) -> Request:
    return replace(get(version), method="POST", body=body)


JSON = "application/json;charset=utf-8"
"""A media type, in lower case and without blanks."""
LARGEST = 256 * 1024
PIECE = 64 * 1024
CONTINUED = 1.0
"""Seconds after which a body is sent that nobody has asked for."""
TRIES = 20
"""So often a request that is refused with 429 is asked again."""
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
    """The first answer of all may take two minutes."""
    answer: float = 10
    patience: float = 300
    """What may be lost in all, to refusals for the rate and to requests without an answer."""
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
    """How long Started stays listed."""
    between: float = 0.02
    """Between two looks at the document while nothing else is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    request: Request
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
    def answer(self) -> ClientResponse:
        return ClientResponse(status=self.status, reason="", headers=self.headers, body=self.body)


class PendingRequest:
    """A request that has been sent, and its answer when somebody wants it."""

    def __init__(self, host: str, port: int, request: Request, timeout: float) -> None:
        self._request = request
        self._deadline = monotonic() + timeout
        self._asked = monotonic()
        self._socket: socket.socket | None = None
        self._problem = ""
        self._is_lost = False
        self._exchange = Exchange(host, port)
        # Only so that it knows to what the answer belongs; what is sent is our own.
        self._exchange.begin(request.method, "/", {}, None, largest=LARGEST)
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

    def finish(self, within: float | None = None) -> Response:
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
        response = Response(
            request=self._request, problem=self._problem, is_lost=self._is_lost, asked=self._asked, at=monotonic()
        )
        if answer is None:
            return response
        return replace(response, status=answer.status, headers=answer.headers, body=answer.body)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, authority: str) -> None:
        assert self._socket is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, tail = self._request.head(authority), self._request.tail()
        if self._request.framing is not Framing.EXPECT:
            head, tail = head + tail, b""
        self._socket.sendall(head)
        if tail:
            # An answer that is final already needs no body; `finish` reads it.
            ready, _, _ = select.select([self._socket], [], [], CONTINUED)
            if not ready or self._socket.recv(12, socket.MSG_PEEK)[9:10] == b"1":
                self._socket.sendall(tail)

    def _receive(self) -> ClientResponse | None:
        assert self._socket is not None
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._exchange.feed(self._socket.recv(PIECE))

    def _fail(self, error: Exception) -> None:
        self._problem = client_errors.reason(error)
        self._is_lost = self._socket is None or isinstance(error, TimeoutError)
        self.close()


class Lost(Exception):  # noqa: N818 - it says what became of the endpoint
    """There is no use in asking on."""

    def __init__(self, why: str, response: Response) -> None:
        super().__init__(why)
        self.response = response


class Requester:
    def __init__(
        self,
        host: str,
        port: int,
        pace: Pace,
        hear: Callable[[Response], None],
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

    def send(self, request: Request, timeout: float | None = None) -> Response:
        for _ in range(TRIES):
            response = self.send_once(request, timeout)
            self._hear(response)
            self._notice(response)
            if response.status != 429:
                break
            # Whoever refuses for the rate has one that must be kept from here on.
            self._per_second = POLITE
            seconds = min(LONGEST_PAUSE, max(1.0, client_errors.retry_after(response.answer)))
            why = f"it refused requests for their rate for more than {self.pace.patience:g} s in all"
            self._lose(seconds, why, response)
            self.say(f"refused for the rate: waiting {seconds:g} s")
            pause(seconds)
        return response

    def send_once(self, request: Request, timeout: float | None = None) -> Response:
        """Also a 429 is an answer."""
        self._take_turn()
        return PendingRequest(self._host, self._port, request, timeout or self.pace.answer).finish()

    def _notice(self, response: Response) -> None:
        """Who does not answer some requests may answer others: a plain one decides."""
        if not response.is_lost:
            self._silent = 0
            return
        self._silent += 1
        why = f"it left requests without an answer for more than {self.pace.patience:g} s in all"
        self._lose(response.seconds, why, response)
        if self._silent == SILENT:
            if self.send_once(PLAIN).is_lost:
                raise Lost("it stopped answering", response)
            self._silent = 0

    def _lose(self, seconds: float, why: str, response: Response) -> None:
        self._patience -= seconds
        if self._patience < 0:
            raise Lost(why, response)

    def begin(self, request: Request, timeout: float) -> PendingRequest:
        self._take_turn()
        return PendingRequest(self._host, self._port, request, timeout)

    @property
    def is_paced(self) -> bool:
        return self._per_second is not None

    def burst(self, request: Request, most: int) -> Response | None:
        """All at once; the first 429 that comes."""
        pending = [PendingRequest(self._host, self._port, request, self.pace.answer) for _ in range(most)]
        answers = [pending_request.finish() for pending_request in pending]
        for response in answers:
            self._hear(response)
        return next((response for response in answers if response.status == 429), None)

    def _take_turn(self) -> None:
        if self._per_second is None:
            return
        now = monotonic()
        if self._next > now:
            pause(self._next - now)
        self._next = max(now, self._next) + 1 / self._per_second
