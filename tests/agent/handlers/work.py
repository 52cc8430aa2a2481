"""Work to hand to a handler, and how it went."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from forenotice.agent.handlers import Handler, Outcome, Work
from forenotice.agent.rules.policy import Phase
from forenotice.client.events import Event

EVENT = Event(
    id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    status="Scheduled",
    type="Reboot",
    resources=("web-1", "web-2"),
    not_before_text="Mon, 11 Apr 2022 22:26:58 GMT",
    description="Host server is undergoing maintenance.",
    source="Platform",
    duration_seconds=-1,
)


def work(**changes: Any) -> Work:
    """Preparing for a reboot, with ten seconds left, but for what is given."""
    usual = Work(
        handler="drain",
        phase=Phase.PREPARE,
        event=EVENT,
        me="web-1",
        attempt=1,
        deadline=datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC),
        seconds_left=10.0,
        stop=threading.Event(),
    )
    return replace(usual, **changes)


class Tried:
    """A handler, as a worker runs it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def run(self, **changes: Any) -> Outcome:
        return Outcome.of(lambda: self._handler.run(work(**changes)))

    def rehearse(self) -> Outcome:
        return Outcome.of(self._handler.rehearse)


def done(message: str) -> Outcome:
    return Outcome(ok=True, message=message)


def failed(message: str) -> Outcome:
    return Outcome(ok=False, message=message)


def full(_memo: str) -> None:
    """Fails to remember."""
    raise OSError("the disk is full")


UNREMEMBERED = failed("OSError: the disk is full")


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[None]:
    """In a thread that has ended afterwards."""
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
