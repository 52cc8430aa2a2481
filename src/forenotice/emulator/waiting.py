"""How a test waits: by looking again and again, as a coroutine or in a thread that it may block."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator

from forenotice.core import errors

LOOK = 0.01
"""Seconds between two looks."""


class Condition:
    """Whether something is so: `if event.approved`; and until it is: `await event.approved(timeout=10)`."""

    def __init__(self, of: str, name: str, holds: Callable[[], bool], until: Callable[[float], Iterator[None]]) -> None:
        self._of = of
        self._name = name
        self._holds = holds
        self._until = until

    def __bool__(self) -> bool:
        return self._holds()

    def __call__(self, timeout: float = 10) -> Coroutine[object, object, None]:
        """To be awaited; so many seconds of real time at most, while the event loop goes on."""
        __tracebackhide__ = True
        if not in_event_loop():
            raise errors.RefusedError(
                f"`{self._name}()` is to be awaited in an asyncio test: here, use `wait_{self._name}()`"
            )
        return go_on(self._until(timeout))

    def wait(self, timeout: float) -> None:
        __tracebackhide__ = True
        block(self._until(timeout), f"wait_{self._name}()", f"{self._of}.{self._name}()")

    def __repr__(self) -> str:
        return f"<{self._name}: {bool(self)}>"


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def refuse_in_event_loop(method: str, awaited: str) -> None:
    __tracebackhide__ = True
    if in_event_loop():
        raise errors.RefusedError(
            f"`{method}` would block the running event loop, and with it every handler there: use `await {awaited}`"
        )


def block(looks: Iterator[None], method: str, awaited: str) -> None:
    __tracebackhide__ = True
    refuse_in_event_loop(method, awaited)
    for _ in looks:
        threading.Event().wait(LOOK)


async def go_on(looks: Iterator[None]) -> None:
    __tracebackhide__ = True
    for _ in looks:
        await asyncio.sleep(LOOK)


def until(condition: Callable[[], bool], timeout: float, missed: Callable[[], str] | None = None) -> Iterator[None]:
    """The time between two looks is the caller's; without a word for it, it is no failure when the time is over."""
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            if missed is not None:
                raise AssertionError(missed())
            return
        yield
