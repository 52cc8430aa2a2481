"""Real `forenotice` processes, and what operators and guests ask of them."""

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.databases import new_sqlite

PROGRAMS = Path(sys.executable).parent
NEWEST = "2020-07-01"
DEADLINE = 120.0
"""Seconds after which something has failed, not the machine has been slow: a start takes one, and can take thirty."""

# No client's own end is ever here, and nobody of another test process, so a port that was chosen once is free again for
# the next start.
HOST = f"127.33.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
NOBODY = f"http://{HOST}:1"
"""Nothing listens there."""

T = TypeVar("T")
_PAUSE = threading.Event()


def until(question: Callable[[], T], seconds: float = DEADLINE, what: str | Callable[[], str] = "") -> T:
    """Ask until the answer is something, and give that. `what` is said when it never is."""
    deadline = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what or question}")
        _PAUSE.wait(0.02)


def environment(home: Path, **more: str) -> dict[str, str]:
    """A user's own, without anything that this machine has set for forenotice or for proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FORENOTICE_") and not name.lower().endswith("_proxy")
    }
    path = f"{PROGRAMS}:{kept.get('PATH', '')}:/usr/sbin:/sbin"
    return {**kept, "PATH": path, "HOME": str(home), "FORENOTICE_ENDPOINT": NOBODY, **more}


def run(*command: str, env: Mapping[str, str], seconds: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, timeout=seconds, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@dataclass(frozen=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    place: str,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    source: str = "",
    seconds: float = DEADLINE,
) -> Said:
    """One request on a connection of its own. An OSError or HTTPException: it was not answered."""
    host, _, port = place.rpartition(":")
    connection = http.client.HTTPConnection(
        host, int(port), timeout=seconds, source_address=(source, 0) if source else None
    )
    try:
        connection.request(method, target, body, dict(headers or {}))
        answer = connection.getresponse()
        return Said(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


class Server:
    """One `forenotice serve` after another, on the same directory and the same ports."""

    def __init__(self, home: Path, *flags: str, before: Sequence[str] = ()) -> None:
        self.home = home
        self.data = home / ".local" / "share" / "forenotice"
        self.env = environment(home)
        self.flags = list(flags)
        self.guests = self.operators = f"{HOST}:0"
        self.listeners: dict[str, str] = {}
        """By VM: where it alone is answered."""
        self.token = ""
        self._before = before
        if not {"--data", "--database"} & set(flags):
            self.token_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new_sqlite(self.token_file.parent)
        self._log = home / "serve.stderr"
        self._output = home / "serve.stdout"
        self._log.touch()
        self._seen = 0
        self.process: subprocess.Popen[bytes] | None = None

    # Its life

    def spawn(self) -> None:
        """Without waiting for it."""
        assert self.process is None
        self._seen = self._log.stat().st_size
        where = (
            "--metadata",
            self.guests,
            "--control",
            self.operators,
            "--log-format",
            "json",
            "--allow-loopback-addresses",
        )
        command = [*self._before, str(PROGRAMS / "forenotice"), "serve", *where, *self.flags]
        with self._log.open("ab") as log, self._output.open("wb") as output:
            self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=log)

    def ready(self) -> "Server":
        (started,) = until(lambda: self.logged("serve.started"), what="serve.started in the log")
        self.guests, *others = started["metadata"]
        self.listeners = {vm: place for place, _, vm in (each.partition("=") for each in others)}
        self.operators = started["control"]
        if not self.token and self.seen(self.token_file).exists():
            self.token = self.seen(self.token_file).read_text().strip()
        return self

    def start(self) -> "Server":
        self.spawn()
        return self.ready()

    def kill(self) -> None:
        """With SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        self.process = None
        return code

    # What it leaves behind

    @property
    def token_file(self) -> Path:
        return (self.data / "demo" if "--demo" in self.flags else self.data) / "admin.token"

    def seen(self, path: Path) -> Path:
        """A file as the server sees it, where it has mounts of its own."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root{path}")

    @property
    def errors(self) -> str:
        """All that it ever wrote to standard error."""
        return self._log.read_text()

    @property
    def output(self) -> str:
        """What it wrote to standard output since its last start."""
        return self._output.read_text()

    @property
    def defects(self) -> list[dict[str, Any]]:
        """What it logged with a traceback of its own; every line is JSON."""
        entries = [json.loads(line) for line in self.errors.splitlines()]
        return [entry for entry in entries if "exception" in entry and entry["action"] != "library"]

    def logged(self, action: str) -> list[dict[str, Any]]:
        """The lines of this kind since the last start."""
        with self._log.open("rb") as log:
            log.seek(self._seen)
            lines = log.read().decode().split("\n")[:-1]
        assert self.process is None or self.process.poll() is None, f"serve has ended: {lines}"
        return [entry for entry in map(json.loads, lines) if entry["action"] == action]

    # Operators

    def control(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str = "",
        source: str = "",
        seconds: float = DEADLINE,
    ) -> Said:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        return ask(self.operators, method, path, data, headers, source=source, seconds=seconds)

    def get(self, path: str) -> Any:
        said = self.control("GET", path)
        assert said.status == 200, said
        return said.json

    def post(self, path: str, body: object = None) -> Any:
        said = self.control("POST", path, {} if body is None else body)
        assert said.status in (200, 201), said
        return said.json

    def schedule(self, kind: str, name: str, **more: object) -> Any:
        """The one operation that this makes."""
        (made,) = self.post("/v1/operations", {"kind": kind, "names": [name], **more})["operations"]
        return made

    def history(self, **filters: str) -> Iterator[dict[str, Any]]:
        query = "".join(f"&{name}={value}" for name, value in filters.items())
        after = 0
        while after is not None:
            page = self.get(f"/v1/history?limit=500&after={after}{query}")
            yield from page["items"]
            after = page["next"]

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run("forenotice", *arguments, env=self.env)

    # Guests

    def poll(self, source: str = "", *, version: str = NEWEST, seconds: float = DEADLINE, **headers: str) -> Said:
        sent = {"Metadata": "true"} | {name.replace("_", "-"): value for name, value in headers.items()}
        target = f"/metadata/scheduledevents?api-version={version}"
        return ask(self.guests, "GET", target, None, sent, source=source, seconds=seconds)

    def document(self, source: str = "", version: str = NEWEST) -> Any:
        said = self.poll(source, version=version)
        assert said.status == 200, said
        return said.json

    def approve(self, *event_ids: str, source: str = "", seconds: float = DEADLINE) -> Said:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
        target = f"/metadata/scheduledevents?api-version={NEWEST}"
        return ask(self.guests, "POST", target, body, {"Metadata": "true"}, source=source, seconds=seconds)


_NUMBERS = itertools.count(1)


@contextmanager
def serving(home: Path, *flags: str, **how: Any) -> Iterator[Server]:
    """A server that is up, in a folder of its own below `home`; it must end in peace unless the test ended it."""
    own = home / f"server-{next(_NUMBERS)}"
    own.mkdir()
    server = Server(own, *flags, **how)
    try:
        server.start()
        yield server
        if server.process is not None:
            assert server.terminate() == 0, server.errors
    finally:
        if server.process is not None:
            server.kill()
