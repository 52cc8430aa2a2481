"""The simulated driver takes the time that the real thing would take."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.core.driver_calls import Finished, NotYet, Task
from forenotice.core.operations import Kind
from forenotice.core.timing import Timing
from forenotice.drivers.registry import SimulatedDriver

START = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize("speed", [1, 60])
@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (Kind.HOST_UPDATE, 9),
        (Kind.LIVE_MIGRATION, 5),
        (Kind.RESTART, 15),
        (Kind.HOST_REBOOT, 15),
        (Kind.REDEPLOY, 30),
        (Kind.DEGRADED_HARDWARE, 30),
        (Kind.HARDWARE_FAILURE, 30),
        (Kind.EVICTION, 5),
        (Kind.DELETION, 5),
    ],
)
def test_each_kind_takes_its_time(kind: Kind, seconds: float, speed: float) -> None:
    driver = SimulatedDriver(Timing(speed=speed))
    task = Task(operation="o", kind=kind, host="h", vms=("a", "b"), targets={}, attempt=1, started_at=START)
    done_at = START + timedelta(seconds=seconds) / speed
    assert driver.carry_out(task, START) == NotYet(again_at=done_at)
    assert driver.carry_out(task, done_at) == Finished(done=("a", "b"), failures={})
