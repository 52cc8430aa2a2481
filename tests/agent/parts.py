"""Parts of an agent for tests, with the machine's own clock and threads."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forenotice.agent.context import Context, Log, Metrics
from forenotice.agent.endpoint import Poller
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import Health
from forenotice.client import Client
from forenotice.clock import MachineClock
from forenotice.runtime import Runtime
from forenotice.settings import LogFormat, LogLevel

RUNTIME = Runtime()
NOBODY = "http://127.33.0.1:1"
FINE = Health(polling_ok=True, polling_why="polled", ready=True, ready_why="no event is near")
SECRET = "sixteen or more bytes"


def context(
    stream: io.StringIO | None = None, *, observe: bool = False, boot: str = "", runtime: Runtime = RUNTIME
) -> Context:
    log = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, stream or io.StringIO())
    return Context(log=log, metrics=Metrics(RUNTIME.monotonic), runtime=runtime, observe=observe, boot=boot)


def logged(stream: io.StringIO, action: str = "") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if not action or line["action"] == action]


def secret_file(path: Path, content: bytes | str = SECRET) -> Path:
    """That only its owner can read."""
    path.touch(0o600)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def idle_poller(url: str = NOBODY) -> Poller:
    return Poller(Client(url), lambda _: None, context())


def sagas(
    directory: Path,
    stream: io.StringIO | None = None,
    lock: Callable[[], None] = lambda: None,
    *,
    observe: bool = False,
    boot: str = "",
) -> Sagas:
    found = Sagas(directory, context(stream, observe=observe, boot=boot), lock)
    found.try_to_open()
    return found
