"""A driver that only takes the time that the real thing would take."""

from datetime import datetime, timedelta

from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import EventType, Kind
from forenotice.core.timing import Timing

TAKES = {
    EventType.REBOOT: timedelta(seconds=15),
    EventType.REDEPLOY: timedelta(seconds=30),
    EventType.PREEMPT: timedelta(seconds=5),
    EventType.TERMINATE: timedelta(seconds=5),
}


class SimulatedDriver:
    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        done_at = task.started_at + self._timing.shortened(_takes(task.kind))
        return NotYet(again_at=done_at) if now < done_at else Finished(done=task.vms, failures={})

    def stop(self) -> None: ...


def _takes(kind: Kind) -> timedelta:
    traits = kind.traits
    return TAKES.get(traits.type, timedelta(seconds=traits.duration))
