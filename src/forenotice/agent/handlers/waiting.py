"""A call that may hang, waited for only as long as the work allows."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from forenotice.core import errors

T = TypeVar("T")
_LOOK = 0.05


class StoppedError(errors.UnavailableError):
    """stopped, as the agent asked"""

    code = "stopped"


def within(call: Callable[[], T], *, until: float, stop: threading.Event, interrupt: Callable[[], None]) -> T:
    """Its result or exception; TimeoutError after `until`, by the monotonic clock; StoppedError when `stop` is set.

    Nothing can end a look-up of a host's name, for one: a call that does not heed `interrupt` is left behind.
    """
    ends: list[Callable[[], T]] = []
    thread = threading.Thread(target=lambda: ends.append(_end(call)), name="handler call", daemon=True)
    thread.start()
    while thread.is_alive():
        left = until - time.monotonic()
        if left <= 0 or stop.is_set():
            interrupt()
            raise StoppedError if stop.is_set() else TimeoutError("timed out")
        thread.join(min(left, _LOOK))
    return ends[0]()


def _end(call: Callable[[], T]) -> Callable[[], T]:
    try:
        result = call()
    except Exception as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: result
