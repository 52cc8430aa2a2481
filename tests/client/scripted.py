"""A server that answers as a function says, on connections that stay open, and remembers what it was asked."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Asked:
    number: int
    """Of all requests, from 0."""
    connection: int
    """The port it came from."""
    method: str
    target: str
    protocol: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


@dataclass
class Scripted:
    port: int
    asked: list[Asked] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> set[int]:
        return {asked.connection for asked in self.asked}


Script = Callable[[Asked, threading.Event], bytes | None]
"""What to send, and None to hang up. The event is set at the end: to wait for it is never to answer."""


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    lock = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with suppress(ConnectionError, BrokenPipeError):
                while self.answered():
                    pass

        def answered(self) -> bool:
            line = self.rfile.readline().decode("latin-1").split()
            if not line:
                return False
            headers: dict[str, str] = {}
            while field := self.rfile.readline().decode("latin-1").strip():
                name, _, value = field.partition(":")
                headers[name.lower()] = value.strip()
            if "expect" in headers:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            chunked = "transfer-encoding" in headers
            body = self.chunks() if chunked else self.rfile.read(int(headers.get("content-length", 0)))
            method, target, protocol = line
            with lock:
                number = len(found.asked)
                asked = Asked(number, self.client_address[1], method, target, protocol, headers, body)
                found.asked.append(asked)
            said = script(asked, found.ended)
            if said is not None:
                self.wfile.write(said)
            return said is not None and b"Connection: close" not in said

        def chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        found = Scripted(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            found.ended.set()
            server.shutdown()
            thread.join()


def answer(status: str = "200 OK", body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def full_port() -> Iterator[int]:
    """A port where an attempt to connect waits for a place."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]
