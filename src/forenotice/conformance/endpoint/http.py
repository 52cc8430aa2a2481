"""Requests as they go over the wire, also those that no ordinary client would send."""

import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from forenotice.client import errors as client_errors
from forenotice.client import http
from forenotice.wire import versions

PATH = "/metadata/scheduledevents"
HTTP_1_1 = "HTTP/1.1"
JSON = "application/json;charset=utf-8"
"""A media type, in lower case and without blanks."""
LONGEST_BODY = 160
"""Characters of a request's body in a report."""
LARGEST = 256 * 1024
CONTINUED = 1.0
"""Seconds after which a body is sent without a 100 Continue."""
TRIES = 20
"""So often a request is sent that is refused with 429."""
LONGEST_PAUSE = 60.0
SILENT = 3
"""Requests in a row without a response, until a plain request decides whether the endpoint is still there."""
POLITE = 4.0
"""Requests a second; the real service refuses more than 5."""
_PAUSE = threading.Event()


def pause(seconds: float) -> None:
    _PAUSE.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    version: str
    """Its api-version as far as reports go; what is sent is in the query."""
    method: str = "GET"
    path: str = PATH
    query: str
    headers: Mapping[str, str] = field(default_factory=lambda: {"Metadata": "true"})
    """An empty one is not sent."""
    body: bytes | None = None
    protocol: str = HTTP_1_1
    absolute: bool = False

    def having(self, **headers: str) -> "Request":
        """With more headers; an underscore stands for a hyphen."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **more})

    def __str__(self) -> str:
        """For a report: what makes this request what it is, and not more of its body than can be read."""
        parts = [self.method, self._target("HOST"), *([self.protocol] if self.protocol != HTTP_1_1 else [])]
        fields = {"Metadata": "", **{name.title(): value for name, value in self.headers.items()}}
        parts.append(f"[{', '.join(f'{name}: {fields[name]}' if fields[name] else f'no {name}' for name in fields)}]")
        if self.body is not None:
            body = self.body.decode(errors="backslashreplace")
            cut = f"{body[:LONGEST_BODY].rstrip()}... ({len(body)} bytes)"
            parts.append(cut if len(body) > LONGEST_BODY else body or "(empty body)")
        return " ".join(parts)

    def encoded(self, authority: str) -> tuple[bytes, bytes]:
        """Head and body, the body in two chunks where it comes in chunks."""
        fields = {"Host": authority, "Connection": "close", **self.headers}
        body = self.body or b""
        if "Transfer-Encoding" in fields:
            half = len(body) // 2
            chunks = [part for part in (body[:half], body[half:]) if part]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
        elif self.body is not None:
            fields["Content-Length"] = str(len(body))
        lines = [f"{self.method} {self._target(authority)} {self.protocol}"]
        lines += [f"{name}: {value}" for name, value in fields.items() if value]
        return "\r\n".join([*lines, "", ""]).encode("latin-1"), body

    def _target(self, authority: str) -> str:
        origin = f"http://{authority}" if self.absolute else ""
        return f"{origin}{self.path}{'?' if self.query else ''}{self.query}"


def get(version: str) -> Request:
    return Request(version=version, query=f"api-version={version}")


def post(version: str, body: bytes) -> Request:
    return replace(get(version), method="POST", body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """In seconds, where it is time."""

    per_second: float | None = None
    """Requests; None: as fast as they are answered."""
    burst: int = 40
    """Requests at once, to meet a limit if there is one."""
    first: float = 150
    """The first response of all may take two minutes."""
    answer: float = 10
    patience: float = 300
    """What may be lost in all, to refusals for the rate and to requests without a response."""
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
class Response(http.Response):
    request: Request
    status: int = 0
    """0: there was no response."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    problem: str = ""
    """Why there was no response."""
    is_lost: bool = False
    """No connection was made, or nothing came in time."""
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


class PendingRequest:
    """A request that has been sent, and its response, read when it is needed."""

    def __init__(self, host: str, port: int, request: Request, timeout: float) -> None:
        self._request = request
        self.asked = monotonic()
        self._deadline = self.asked + timeout
        self._socket: socket.socket | None = None
        self._failure: Exception | None = None
        self._exchange = http.Exchange(host, port)
        # Only so that it knows to what the response belongs; what is sent is our own.
        self._exchange.begin(request.method, "/", {}, None, largest=LARGEST)
        name = f"[{host}]" if ":" in host else host
        try:
            self._socket = socket.create_connection((host, port), timeout)
            self._send(self._socket, *request.encoded(name if port == 80 else f"{name}:{port}"))
        except OSError as error:
            self._failure = error

    def _send(self, connected: socket.socket, head: bytes, body: bytes) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if "Expect" not in self._request.headers:
            connected.sendall(head + body)
            return
        connected.sendall(head)
        # A response that is final already needs no body; `finish` reads it.
        ready, _, _ = select.select([connected], [], [], CONTINUED)
        if not ready or connected.recv(12, socket.MSG_PEEK)[9:10] == b"1":
            connected.sendall(body)

    def is_answered(self) -> bool:
        return self._socket is None or self._failure is not None or bool(select.select([self._socket], [], [], 0)[0])

    def finish(self, within: float | None = None) -> Response:
        """What has come by then; the connection is closed."""
        if within is not None:
            self._deadline = monotonic() + within
        came = None
        try:
            while self._failure is None and came is None:
                came = self._receive()
        except (OSError, http.ProtocolError) as error:
            self._failure = error
        lost = self._socket is None or isinstance(self._failure, TimeoutError)
        self.close()
        if came is not None:
            return Response(
                request=self._request,
                status=came.status,
                headers=came.headers,
                body=came.body,
                asked=self.asked,
                at=monotonic(),
            )
        problem = client_errors.reason(self._failure) if self._failure else ""
        return Response(request=self._request, problem=problem, is_lost=lost, asked=self.asked, at=monotonic())

    def _receive(self) -> http.Response | None:
        assert self._socket is not None
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._exchange.feed(self._socket.recv(http.PIECE))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class Lost(Exception):  # noqa: N818 - it says what became of the endpoint
    """There is no use in sending more."""

    def __init__(self, why: str, response: Response) -> None:
        super().__init__(why)
        self.response = response


class Requester:
    def __init__(
        self,
        host: str,
        port: int,
        pace: Pace,
        record: Callable[[Response], None],
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._host, self._port = host, port
        self._record = record
        self.progress = progress
        self.pace = pace
        self._per_second = pace.per_second
        self._next = 0.0
        self._patience = pace.patience
        self._silent = 0
        """Requests in a row that found no connection, or no response in time."""

    @property
    def is_paced(self) -> bool:
        return self._per_second is not None

    def send(self, request: Request) -> Response:
        for _ in range(TRIES):
            response = self.send_once(request)
            self._record(response)
            self._count_silence(response)
            if response.status != 429:
                break
            # An endpoint that refuses for the rate has one that must be kept from here on.
            self._per_second = POLITE
            seconds = min(LONGEST_PAUSE, max(1.0, client_errors.retry_after(response)))
            self._lose(seconds, "it refused requests for their rate", response)
            self.progress(f"refused for the rate: waiting {seconds:g} s")
            pause(seconds)
        return response

    def send_once(self, request: Request, timeout: float | None = None) -> Response:
        """Also a 429 is a response."""
        return self.begin(request, timeout or self.pace.answer).finish()

    def begin(self, request: Request, timeout: float) -> PendingRequest:
        if self._per_second is not None:
            now = monotonic()
            if self._next > now:
                pause(self._next - now)
            self._next = max(now, self._next) + 1 / self._per_second
        return PendingRequest(self._host, self._port, request, timeout)

    def burst(self, request: Request) -> Response | None:
        """All at once; the first 429 that comes."""
        pending = [PendingRequest(self._host, self._port, request, self.pace.answer) for _ in range(self.pace.burst)]
        responses = [sent.finish() for sent in pending]
        for response in responses:
            self._record(response)
        return next((response for response in responses if response.status == 429), None)

    def _count_silence(self, response: Response) -> None:
        """An endpoint that leaves some requests without a response may respond to others: a plain one decides."""
        if not response.is_lost:
            self._silent = 0
            return
        self._silent += 1
        self._lose(response.seconds, "it left requests without an answer", response)
        if self._silent == SILENT:
            if self.send_once(get(versions.NEWEST.name)).is_lost:
                raise Lost("it stopped answering", response)
            self._silent = 0

    def _lose(self, seconds: float, why: str, response: Response) -> None:
        self._patience -= seconds
        if self._patience < 0:
            raise Lost(f"{why} for more than {self.pace.patience:g} s in all", response)
