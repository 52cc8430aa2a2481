"""A server that keeps what webhooks send it, and answers as told."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class Heard:
    method: str
    target: str
    headers: Message
    body: bytes


@dataclass
class Sink:
    scheme: str = "http"
    port: int = 0
    heard: list[Heard] = field(default_factory=list)
    status: int = 204
    reason: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    answering: threading.Event = field(default_factory=threading.Event)
    """Not set: it is silent."""

    @property
    def at(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"


@dataclass(frozen=True)
class Certificate:
    """Of localhost, signed by itself."""

    file: Path
    key: Path


def certificate(directory: Path) -> Certificate:
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    options = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-nodes"]
    key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-keyout",
        str(made.key),
        "-out",
        str(made.file),
    ]
    subprocess.run(["openssl", "req", "-x509", *options, *key], check=True, capture_output=True)
    return made


@contextmanager
def sink(secured: Certificate | None = None) -> Iterator[Sink]:
    kept = Sink(scheme="https" if secured else "http")
    kept.answering.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept.heard.append(Heard(self.command, self.path, self.headers, body))
            if not kept.answering.wait(60):
                return
            self.send_response(kept.status, kept.reason)
            for name, value in {"Content-Length": "0", **kept.headers}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Somebody hung up."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if secured:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(secured.file, secured.key)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        kept.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield kept
        kept.answering.set()
        server.shutdown()
