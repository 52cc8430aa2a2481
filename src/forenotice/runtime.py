"""What the process gives to its parts: time, ids and threads. The program's entry makes one; a test makes its own."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from forenotice.clock import CheckedClock, SystemClock


class Started(Protocol):
    def join(self, timeout: float | None = None) -> None: ...


def new_id() -> str:
    """What `str(uuid.uuid4())` gives, in a third of the time: an operation over many scopes needs many."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def start_thread(run: Callable[[], None], name: str) -> Started:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    clock: CheckedClock = field(default_factory=SystemClock)
    monotonic: Callable[[], float] = time.monotonic
    new_id: Callable[[], str] = new_id
    start_thread: Callable[[Callable[[], None], str], Started] = start_thread
