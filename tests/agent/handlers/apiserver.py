"""A stub of a Kubernetes API server, for want of a real one: a cluster in memory, behind HTTP.

It knows the few requests that a drain makes, and holds the client to the rules of the real one.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.acceptance.running import HOST
from tests.agent.handlers.cluster import TOKEN, Cluster, Refusal


class ApiServer:
    """Comes and goes, always at the same address; the cluster stays."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._port = 0
        self._server: _Listener | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        self._server = _Listener(self._port, self.cluster)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.hang_up()
            self._server.server_close()
            self._server = None

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> str:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "stub", "cluster": {"server": self.url}}],
            "users": [{"name": "agent", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "stub", "user": "agent"}}],
        }
        path = folder / "kubeconfig"
        path.touch(0o600)
        path.write_text(json.dumps(content))
        return str(path)


@contextmanager
def serving(cluster: Cluster) -> Iterator[ApiServer]:
    server = ApiServer(cluster)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, cluster: Cluster) -> None:
        self.cluster = cluster
        self._open: set[Any] = set()
        super().__init__((HOST, port), _Answering)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for request in list(self._open):
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was hung up on."""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        where = urlsplit(self.path)
        query = {name: value for name, (value,) in parse_qs(where.query).items()}
        cluster = self.server.cluster
        with cluster.lock:
            cluster.requests.append((self.command, where.path))
            cluster.tick()
            if cluster.faults and cluster.faults[0].hits(self.command, where.path):
                fault = cluster.faults.popleft()
                self._send(fault.status, fault.body, fault.headers)
                return
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise Refusal(401, "Unauthorized")
                body = json.loads(content) if content else None
                sent_as, answer = cluster.answer(
                    self.command, where.path, query, body, self.headers.get("Content-Type", "")
                )
            except Refusal as refusal:
                sent_as, answer = refusal.sent_as, _status(refusal)
            if cluster.meanwhile:
                cluster.meanwhile.popleft()()
        self._send(sent_as, json.dumps(answer).encode(), {})

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _status(refusal: Refusal) -> dict[str, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": refusal.status}
    return {**status, "message": refusal.message, "details": refusal.details}
