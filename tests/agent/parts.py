"""Parts of an agent for tests, with the machine's own clock and threads."""

import io
from collections.abc import Callable
from pathlib import Path

from forenotice.agent.context import Context
from forenotice.agent.endpoint import Poller
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import Health
from forenotice.client import Client
from forenotice.clock import MachineClock
from forenotice.runtime import Runtime
from forenotice.settings import LogFormat, LogLevel

RUNTIME = Runtime()
NOBODY = "http://127.33.0.1:1"
FINE = Health(polling_ok=True, polling_why="polled", ready=True, ready_why="no event is near")


def context(stream: io.StringIO | None = None, *, observe: bool = False, boot: str = "") -> Context:
    log = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, stream or io.StringIO())
    return Context(log=log, metrics=Metrics(RUNTIME.monotonic), runtime=RUNTIME, observe=observe, boot=boot)


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
