"""A control plane that really runs: SQLite, the service, the server on a loop of its own thread."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.databases import new_sqlite

from forenotice import control_socket
from forenotice.control import app
from forenotice.control.metrics import Metrics
from forenotice.control.server import ControlServer
from forenotice.control.stream import HEARTBEAT_SECONDS, Tail
from forenotice.core.timing import Timing
from forenotice.drivers import registry
from forenotice.publication import NullPublisher
from forenotice.runtime import Runtime
from forenotice.service import calls, tokens
from forenotice.service.service import Service
from forenotice.store.database import Store
from forenotice.store.opener import open_store

DEADLINE = 60


@dataclass
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        error = self.json["error"]
        assert set(error) == {"code", "message", "facts"}
        assert "\n" not in error["message"]
        return str(error["message"])


@dataclass
class Control:
    service: Service
    metrics: Metrics
    port: int
    token: str
    guests: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = "",
    ) -> Said:
        """One request. A body that is bytes is sent as it is; token None sends none."""
        sent = dict(headers or {})
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token or self.token}")
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Said(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        said = self.ask("GET", path)
        assert said.status == 200, said.body
        return said.json

    def listed(self, path: str, limit: int) -> list[Any]:
        """All of a list, page by page."""
        found: list[Any] = []
        after = ""
        while True:
            page = self.get(f"{path}{'&' if '?' in path else '?'}limit={limit}{after}")
            found += page["items"]
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def post(self, path: str, body: object = None) -> Any:
        said = self.ask("POST", path, body if body is not None else {})
        assert said.status in (200, 201), said.body
        return said.json

    def post_fleet(self, toml: bytes, *, prune: bool = False) -> Any:
        path = f"/v1/fleet?prune={str(prune).lower()}"
        said = self.ask("POST", path, toml, headers={"Content-Type": "application/toml"})
        assert said.status == 200, said.body
        return said.json


def served(store: Store, metrics: Metrics, speed: float = 1) -> Service:
    """One that is faster has the simulated driver, too."""
    runtime = Runtime()
    return Service(
        store=store,
        runtime=runtime,
        timing=Timing(speed=speed),
        drivers=() if speed == 1 else registry.open_drivers(None, speed, runtime)[0],
        publisher=NullPublisher(),
        telemetry=metrics,
        allows_loopback=True,
    )


@contextmanager
def running(
    directory: Path, *, heartbeat: float = HEARTBEAT_SECONDS, token_rate: float | None = None, speed: float = 1
) -> Iterator[Control]:
    store = open_store(f"sqlite:///{new_sqlite(directory)}", migrate=False)
    counts: dict[str, int] = {}

    def live() -> Mapping[tuple[str, str], int]:
        with store.read() as reader:
            return reader.events.counts_by_type()

    metrics = Metrics(events=live, guests=lambda: counts)
    service = served(store, metrics, speed)
    token = str(tokens.create(service, calls.SYSTEM, name="admin").token)
    tail = Tail(service, heartbeat=heartbeat)
    made = app.Api(service, metrics, tail, token_rate=token_rate)
    server = ControlServer(made, "127.0.0.1", 0, on_stop=tail.close)
    with serving(server, control_socket.listen(directory)) as port:
        yield Control(service, metrics, port, token, counts)
    store.close()


@contextmanager
def serving(server: ControlServer, local: socket.socket | None = None) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="control-loop")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(local=local), loop).result(DEADLINE)
        try:
            yield server.port
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(DEADLINE)
    finally:
        # There, as another loop may run in this thread: a browser's.
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(DEADLINE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()
