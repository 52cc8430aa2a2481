"""How a VM is, in one word: what an operator sees of it at a glance."""

from collections.abc import Iterable
from enum import StrEnum

from forenotice.core.operations import Status


class State(StrEnum):
    STARTED = "started"
    """Something is being done to it."""
    SCHEDULED = "scheduled"
    """Something will be."""
    NOT_LISTENING = "not listening"
    """Nothing is planned, but nobody there would be told of it either."""
    FINE = "fine"


def state(status: Status | None, *, listening: bool) -> State:
    """By the status of whatever names it, None when nothing live does, and whether its scope listens."""
    match status:
        case Status.STARTED:
            return State.STARTED
        case Status.SCHEDULED:
            return State.SCHEDULED
    return State.FINE if listening else State.NOT_LISTENING


def furthest(events: Iterable[tuple[Status, Iterable[str]]]) -> dict[str, Status]:
    """By VM, the status of the live event that is furthest on; events as their status and the VMs they name."""
    found: dict[str, Status] = {}
    for status, names in events:
        if status.live:
            for name in names:
                if found.get(name) is not Status.STARTED:
                    found[name] = status
    return found
