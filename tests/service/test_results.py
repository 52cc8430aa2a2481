"""Results by callback: the first one counts, and tick takes it, also after a crash."""

from typing import Any

import pytest
from tests.service.rig import OPERATOR, Rig

from forenotice.core import errors
from forenotice.core.driver_calls import Finished, Task
from forenotice.core.operations import Kind
from forenotice.drivers.call_queue import CallTerms
from forenotice.service import housekeeping, queries, results, tick
from forenotice.service.calls import Call
from forenotice.store.database import Store

AWAITED = CallTerms(awaits_results=True)


@pytest.fixture
def rig(store: Store) -> Rig:
    return Rig(store, terms=AWAITED).settle_demo()


def started(rig: Rig) -> Task:
    """Host a fails; the driver has been asked to move its two VMs."""
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    (task,) = tick.tick(rig.service).tasks
    return task


def tell(rig: Rig, task: Task, call: Call = OPERATOR, **result: Any) -> Any:
    return results.record(rig.service, call, task.operation, **{"attempt": 1, "done": task.vms, **result})


def stored(rig: Rig, task: Task) -> bool:
    with rig.service.store.read() as reader:
        return bool(reader.driver_results.of([task.operation]))


def test_a_result_is_stored_and_the_next_tick_takes_it(rig: Rig) -> None:
    task = started(rig)
    assert tell(rig, task).id == task.operation
    assert stored(rig, task)
    ticked = tick.tick(rig.service, under_way=[task.operation])
    # The process that made the call learns that nobody waits for it.
    assert (ticked.tasks, ticked.lost) == ([], {task.operation})
    assert queries.operation(rig.service, task.operation).failures == {}
    # Nor does its own report change anything.
    late = (task, Finished(failures=dict.fromkeys(task.vms, "no")))
    assert not tick.tick(rig.service, [late]).tasks
    assert rig.actions(action="driver.") == ["driver.answered", "driver.finished"]


def test_the_same_again_is_the_same_and_another_one_is_refused(rig: Rig) -> None:
    task = started(rig)
    tell(rig, task)
    tell(rig, task, done=task.vms[::-1])
    with pytest.raises(errors.ConflictError, match="first one counts"):
        tell(rig, task, done=task.vms[1:], failures={task.vms[0]: "no"})
    assert len(rig.actions(action="driver.answered")) == 1


def test_it_is_taken_up_after_whoever_asked_has_died(rig: Rig, store: Store) -> None:
    task = started(rig)
    again = Rig(store, clock=rig.clock, terms=AWAITED)
    housekeeping.resume(again.service, alone=True)
    tell(again, task)
    assert not tick.tick(again.service).tasks
    again.run(3)
    assert queries.operation(again.service, task.operation).status == "Completed"
    # The outside may not have heard that we heard.
    tell(again, task)
    with pytest.raises(errors.ConflictError, match="Completed") as found:
        tell(again, task, done=(), failures=dict.fromkeys(task.vms, "no"))
    assert found.value.facts["status"] == "Completed"


def test_what_fits_nothing_is_refused_with_the_state(rig: Rig) -> None:
    task = started(rig)
    with pytest.raises(errors.NotFoundError):
        results.record(rig.service, OPERATOR, "unheard-of", attempt=1)
    for attempt in (0, 2):
        with pytest.raises(errors.ConflictError, match="is at attempt 1") as found:
            tell(rig, task, attempt=attempt)
        assert found.value.facts == {"operation": task.operation, "status": "Started", "attempt": 1}
    (scheduled,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    with pytest.raises(errors.ConflictError, match="is Scheduled"):
        results.record(rig.service, OPERATOR, scheduled.id, attempt=1)
    with pytest.raises(errors.ConflictError, match="no webhook driver"):
        tell(Rig(rig.service.store, clock=rig.clock), task)


def test_an_attempt_that_nobody_has_asked_for_has_no_result_yet(rig: Rig) -> None:
    task = started(rig)
    failed = (task, Finished(failures=dict.fromkeys(task.vms, "no")))
    tick.tick(rig.service, [failed])
    with pytest.raises(errors.ConflictError, match="attempt 2 has not been asked for"):
        tell(rig, task, attempt=2)
    rig.clock.advance(seconds=2)
    (again,) = tick.tick(rig.service).tasks
    tell(rig, again, attempt=2)


def test_all_that_were_asked_for_have_one_result_each(rig: Rig) -> None:
    task = started(rig)
    first, *others = task.vms
    for wrong in ({"done": others}, {"done": [*task.vms, "stranger"]}, {"failures": {first: "no"}}):
        with pytest.raises(errors.RefusedError) as found:
            tell(rig, task, **wrong)
        assert found.value.facts == {"vms": list(task.vms)}


def test_answers_are_forgotten_a_day_after_the_end(rig: Rig) -> None:
    task = started(rig)
    tell(rig, task)
    rig.clock.advance(hours=25)
    housekeeping.run(rig.service)
    assert stored(rig, task)
    rig.run(3)
    housekeeping.run(rig.service)
    assert not stored(rig, task)
