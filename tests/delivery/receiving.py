"""A receiver that really listens, and a service whose journal it is told."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any

from forenotice import signatures
from forenotice.clock import SystemClock

DEADLINE = 60.0

Decide = Callable[[dict[str, Any]], tuple[int, dict[str, str]]]


def take(_: dict[str, Any]) -> tuple[int, dict[str, str]]:
    return 204, {}


@dataclass
class Receiver:
    decide: Decide = take
    port: int = 0
    secret: str = ""
    """If given, what is not signed with it is refused."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Every CloudEvent that came, in the order of coming."""
    taken: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def until(self, condition: Callable[["Receiver"], object], seconds: float = DEADLINE) -> None:
        deadline = monotonic() + seconds
        with self.changed:
            while not condition(self):
                left = deadline - monotonic()
                assert left > 0, f"not in {seconds} s; {len(self.asked)} came, {len(self.taken)} were taken"
                self.changed.wait(left)

    def lanes(self) -> dict[str, list[int]]:
        """What was taken, by event, in the order of taking, each once."""
        found: dict[str, list[int]] = {}
        for event in self.taken:
            entry = event["data"]["entry"]
            lane = found.setdefault(entry["event"] or entry["operation"] or "", [])
            if entry["seq"] not in lane:
                lane.append(entry["seq"])
        return found

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        if self.secret and not signatures.is_valid(
            self.secret, body, headers[signatures.TIMESTAMP], headers[signatures.SIGNATURE], SystemClock().now()
        ):
            return 401, {}
        event = json.loads(body)
        with self.changed:
            self.asked.append(event)
            self.headers.append(headers)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.changed.notify_all()
        status, more = self.decide(event)
        with self.changed:
            self.at_once -= 1
            if 200 <= status < 300:
                self.taken.append(event)
            self.changed.notify_all()
        return status, more


Respond = Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]


@contextmanager
def listening(respond: Respond, port: int = 0) -> Iterator[int]:
    """A server on loopback that responds so to method, path, headers and body; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = respond(self.command, self.path, dict(self.headers.items()), sent)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _respond  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """The client has closed the connection."""

    with Server(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def receiving(decide: Decide = take, *, port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(decide)
    with listening(lambda _, __, headers, body: (*receiver.answer(body, headers), b""), port) as receiver.port:
        yield receiver
