"""A server that answers what it is told to, and remembers what it was asked."""

import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Stranger:
    port: int
    asked: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def stranger(*answers: bytes) -> Iterator[Stranger]:
    """One answer for each connection, the last one again and again; an empty one hangs up."""
    left: list[bytes] = list(answers)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while (line := self.rfile.readline()).strip():
                head += line
            [length] = asked_header(head, "Content-Length") or ["0"]
            found.asked.append(head + b"\r\n" + self.rfile.read(int(length)))
            self.wfile.write(left.pop(0) if len(left) > 1 else left[0])

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        found = Stranger(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def asked_header(request: bytes, name: str) -> Sequence[str]:
    lines = request.decode("latin-1").split("\r\n")
    return [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name.lower()}:")]
