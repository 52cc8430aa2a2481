"""The daemon in a VM: one loop, its journal, its handlers."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    """Monotonic time and threads, passed in wherever they are needed."""

    monotonic: Callable[[], float]
    start: Callable[[Callable[[], None], str], threading.Thread]
    """Runs a function in a daemon thread of that name. RuntimeError: the system has no more threads."""


def system_runtime() -> Runtime:
    """The machine's own. Only the entry of a program asks for it."""
    return Runtime(time.monotonic, _start)


def _start(task: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=task, name=name, daemon=True)
    thread.start()
    return thread
