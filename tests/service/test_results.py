"""What the outside tells by itself: kept, the first one counts, taken up also after a crash."""

from typing import Any

import pytest
from tests.service.rig import OPERATOR, Rig

from forenotice.core import errors
from forenotice.core.driver_calls import Finished, Task
from forenotice.core.operations import Kind
from forenotice.service import queries, results, tick, upkeep
from forenotice.service.calls import Call
from forenotice.store.database import Store


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.service.awaits_results = True
    return rig


def started(rig: Rig) -> Task:
    """Host a fails; the driver has been asked to move its two VMs."""
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    (task,) = tick.tick(rig.service)
    return task


def tell(rig: Rig, task: Task, call: Call = OPERATOR, **result: Any) -> dict[str, Any]:
    return results.answer(rig.service, call, task.operation, **{"attempt": 1, "done": task.vms, **result})


def test_an_answer_is_kept_and_told_to_whoever_waits(rig: Rig) -> None:
    task = started(rig)
    assert results.answers(rig.service, [task.operation]) == {}
    assert tell(rig, task)["id"] == task.operation
    ((key, outcome),) = results.answers(rig.service, [task.operation]).items()
    assert (key, outcome.done) == ((task.operation, 1), task.vms)
    assert rig.actions(action="driver.answered") == ["driver.answered"]


def test_the_same_again_is_the_same_and_another_one_is_refused(rig: Rig) -> None:
    task = started(rig)
    tell(rig, task)
    tell(rig, task, done=task.vms[::-1])
    with pytest.raises(errors.ConflictError, match="first answer counts"):
        tell(rig, task, done=task.vms[1:], failures={task.vms[0]: "no"})
    assert len(rig.actions(action="driver.answered")) == 1


def test_it_is_taken_up_after_whoever_asked_has_died(rig: Rig, store: Store) -> None:
    task = started(rig)
    again = Rig(store, clock=rig.clock)
    again.service.awaits_results = True
    upkeep.resume(again.service, alone=True)
    tell(again, task)
    assert tick.tick(again.service) == []
    again.run(3)
    assert queries.operation(again.service, task.operation)["status"] == "Completed"
    # The outside may not have heard that we heard.
    tell(again, task)
    with pytest.raises(errors.ConflictError, match="Completed") as found:
        tell(again, task, done=(), failures=dict.fromkeys(task.vms, "no"))
    assert found.value.facts["status"] == "Completed"


def test_what_fits_nothing_is_refused_with_the_state(rig: Rig) -> None:
    task = started(rig)
    with pytest.raises(errors.NotFoundError):
        results.answer(rig.service, OPERATOR, "unheard-of", attempt=1)
    for attempt in (0, 2):
        with pytest.raises(errors.ConflictError, match="is at attempt 1") as found:
            tell(rig, task, attempt=attempt)
        assert found.value.facts == {"operation": task.operation, "status": "Started", "attempt": 1}
    (scheduled,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    with pytest.raises(errors.ConflictError, match="is Scheduled"):
        results.answer(rig.service, OPERATOR, scheduled["id"], attempt=1)
    rig.service.awaits_results = False
    with pytest.raises(errors.ConflictError, match="only a webhook driver does"):
        tell(rig, task)


def test_an_attempt_that_nobody_has_asked_for_has_no_result_yet(rig: Rig) -> None:
    task = started(rig)
    failed = tick.Report(operation=task.operation, attempt=1, outcome=Finished(failures=dict.fromkeys(task.vms, "no")))
    tick.tick(rig.service, [failed])
    with pytest.raises(errors.ConflictError, match="attempt 2 is not asked for yet"):
        tell(rig, task, attempt=2)
    rig.clock.advance(seconds=2)
    (again,) = tick.tick(rig.service)
    tell(rig, again, attempt=2)


def test_all_that_were_asked_for_have_one_result_each(rig: Rig) -> None:
    task = started(rig)
    first, *others = task.vms
    for wrong, said in (
        ({"done": others}, f"what became of {first} is not said"),
        ({"done": [*task.vms, "stranger"]}, "stranger cannot be taken: nobody asked for it"),
        ({"failures": {first: "no"}}, f"{first} cannot be taken: it is either done or has failed"),
    ):
        with pytest.raises(errors.RefusedError, match=said):
            tell(rig, task, **wrong)


def test_answers_are_forgotten_a_day_after_the_end(rig: Rig) -> None:
    task = started(rig)
    tell(rig, task)
    rig.clock.advance(hours=25)
    upkeep.keep_up(rig.service)
    assert results.answers(rig.service, [task.operation])
    rig.run(3)
    upkeep.keep_up(rig.service)
    assert not results.answers(rig.service, [task.operation])
