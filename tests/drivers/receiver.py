"""A receiver of a webhook driver's calls, on loopback: it checks what comes, and answers as it is told."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from forenotice import signatures
from forenotice.clock import SystemClock

SECRET = "a secret of sixteen or more"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Said = tuple[int, Any]


class Receiver:
    def __init__(self, answer: Callable[[Asked], Said]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.forged: list[Asked] = []
        self.url = ""

    def take(self, asked: Asked) -> Said:
        self.asked.append(asked)
        signature = asked.headers.get(signatures.SIGNATURE.lower(), "")
        timestamp = asked.headers.get(signatures.TIMESTAMP.lower(), "")
        if not signatures.is_valid(SECRET, asked.body, timestamp, signature, SystemClock().now()):
            self.forged.append(asked)
        return self.answer(asked)


def everything_done(asked: Asked) -> Said:
    return 200, {"done": [vm["name"] for vm in asked.json["vms"]]}


@contextmanager
def receiving(answer: Callable[[Asked], Said] = everything_done) -> Iterator[Receiver]:
    receiver = Receiver(answer)

    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, said = receiver.take(Asked(self.command, self.path, headers, body))
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _take  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/act"
    try:
        yield receiver
        assert receiver.forged == []
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
