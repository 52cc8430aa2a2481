"""Somebody between an agent and its endpoint who does not let everything pass."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.acceptance.running import DEADLINE, Said, ask

DATE = re.compile(rb"\w{3}, \d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2} GMT")


class DroppedError(Exception):
    """Instead of an answer: the connection is closed."""


class HeldError(Exception):
    """Instead of an answer: nothing, for as long as it takes."""


@dataclass
class Meddler:
    """Lets requests pass to an endpoint, unless told otherwise."""

    target: str
    meddle: Callable[[str], Said | None] = lambda method: None
    """Asked with the method of each request; gives the answer, or None to let it pass."""
    approved: list[list[str]] = field(default_factory=list)
    """The ids of each approval that was asked for."""
    ahead: timedelta = timedelta(0)
    """Of the real time is the one that guests see: to them, their own clock is wrong."""
    patient: bool = True
    """Lets the endpoint hold polls; otherwise it is asked once a second, as Azure is."""
    pinned: Said | None = None
    """The document that everybody gets, whatever the endpoint has by now."""
    address: str = ""
    asked: int = 0
    """Requests so far."""
    _last: Said | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def fail_first(self, *answers: Said | type[Exception], method: str = "POST") -> None:
        """These, one after another, and then no more."""
        left = iter(answers)

        def meddle(asked: str) -> Said | None:
            said = next(left, None) if asked == method else None
            if isinstance(said, type):
                raise said
            return said

        self.meddle = meddle

    def pin(self) -> None:
        """The endpoint's last document stays as it is."""
        self.pinned = self._last

    def unpin(self) -> None:
        self.pinned = None

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Said:
        self.asked += 1
        if method == "POST":
            self.approved.append([request["EventId"] for request in json.loads(body)["StartRequests"]])
        said = self.meddle(method)
        if said is not None:
            return said
        if not self.patient:
            headers = {name: value for name, value in headers.items() if name != "Prefer"}
        if self.pinned is not None and method == "GET" and "scheduledevents" in target:
            return self.pinned
        said = self._shifted(ask(self.target, method, target, body or None, headers, seconds=DEADLINE))
        if method == "GET" and said.status == 200 and "scheduledevents" in target:
            self._last = said
        return said

    def _shifted(self, said: Said) -> Said:
        def shift(found: re.Match[bytes]) -> bytes:
            return format_datetime(parsedate_to_datetime(found[0].decode()) + self.ahead, usegmt=True).encode()

        headers = {**said.headers, "date": DATE.sub(shift, said.headers["date"].encode()).decode()}
        return Said(said.status, headers, DATE.sub(shift, said.body))

    def wait_for_the_end(self) -> None:
        self._ended.wait()

    def end(self) -> None:
        self._ended.set()


def said(status: int, body: bytes = b"", **headers: str) -> Said:
    return Said(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@contextmanager
def meddler(target: str) -> Iterator[Meddler]:
    """In front of HOST:PORT."""
    found = Meddler(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            self.close_connection = True
            try:
                answer = found.answer(self.command, self.path, kept, body)
            except HeldError:
                found.wait_for_the_end()
                return
            except (DroppedError, OSError, HTTPException):
                return
            self.close_connection = False
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                if name not in ("connection", "content-length"):
                    self.send_header(name, value)
            if answer.status != 304:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def do_GET(self) -> None:
            self.pass_on()

        def do_POST(self) -> None:
            self.pass_on()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Whoever asked is gone."""

    with Server(("127.0.0.1", 0), Handler) as server:
        found.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.end()
            server.shutdown()
            thread.join()
