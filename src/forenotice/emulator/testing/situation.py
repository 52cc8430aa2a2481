"""What a handler should get through: every scenario of the catalogue, and a restart under every fault."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from forenotice.core import errors
from forenotice.emulator.faults import showing, table
from forenotice.emulator.faults.table import Changes, Fault, Holds, Since
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.scenarios.text import nearest
from forenotice.emulator.testing.performance import Performance
from forenotice.emulator.testing.scheduled_events import ScheduledEvents

SCENARIO = "scenario"
FAULT = "fault"
UNDER_FAULTS = "reboot"
"""The scenario that is played there."""
TIMES = 2
"""So many requests in a row meet a fault that keeps the handler from its work."""


def ids() -> list[str]:
    """`scenario-reboot`, `fault-reset`."""
    scenarios = [f"{SCENARIO}-{name}" for name in catalogue.names()]
    return [*scenarios, *(f"{FAULT}-{fault.name}" for fault in table.ALL)]


def matching(patterns: Sequence[str]) -> list[str]:
    """All, or those that one of the patterns is about: `fault-*`, `scenario-reboot`."""
    known = ids()
    for pattern in patterns:
        if not any(fnmatchcase(each, pattern) for each in known):
            raise errors.NotFoundError(nearest(pattern, known, "situation"))
    return [each for each in known if not patterns or any(fnmatchcase(each, pattern) for pattern in patterns)]


class Situation:
    def __init__(self, scheduled_events: ScheduledEvents, situation_id: str) -> None:
        self.kind, _, self.name = situation_id.partition("-")
        """`scenario` or `fault`, and which one."""
        self._events = scheduled_events

    def play(self, *, resources: str | Iterable[str] = ()) -> Performance:
        """Begin, perhaps with other VMs in place of the scenario's."""
        if self.kind == SCENARIO:
            return self._events.play(self.name, resources=resources)
        performance = self._events.play(UNDER_FAULTS, resources=resources)
        self._events.fault(self.name, times=None if _lasts(table.find(self.name)) else TIMES)
        return performance

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


def _lasts(fault: Fault) -> bool:
    """Until it is over by itself, because a handler can do its work meanwhile."""
    match fault.effect:
        case Changes(document=change):
            return change not in (showing.emptied, showing.halved)
        case Holds(since=since):
            return since is not Since.ARRIVAL
    return False
