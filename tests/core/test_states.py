"""How a VM is at a glance."""

import pytest

from forenotice.core.operations import Status, VmState, furthest, vm_state


@pytest.mark.parametrize(
    ("status", "listening", "shown"),
    [
        (Status.STARTED, True, VmState.STARTED),
        (Status.STARTED, False, VmState.STARTED),
        (Status.SCHEDULED, True, VmState.SCHEDULED),
        (Status.SCHEDULED, False, VmState.SCHEDULED),
        (None, True, VmState.FINE),
        (None, False, VmState.NOT_LISTENING),
        (Status.COMPLETED, True, VmState.FINE),
        (Status.FAILED, False, VmState.NOT_LISTENING),
    ],
)
def test_what_happens_to_it_comes_before_whether_it_listens(
    status: Status | None, listening: bool, shown: VmState
) -> None:
    assert vm_state(status, listening=listening) is shown


@pytest.mark.parametrize(
    ("events", "by_vm"),
    [
        ([], {}),
        ([(Status.SCHEDULED, ("a", "b"))], {"a": Status.SCHEDULED, "b": Status.SCHEDULED}),
        (
            [(Status.SCHEDULED, ("a",)), (Status.STARTED, ("a", "b")), (Status.SCHEDULED, ("b", "c"))],
            {"a": Status.STARTED, "b": Status.STARTED, "c": Status.SCHEDULED},
        ),
        ([(Status.COMPLETED, ("a",)), (Status.CANCELED, ("a",)), (Status.FAILED, ("b",))], {}),
    ],
)
def test_the_event_that_is_furthest_on_counts(
    events: list[tuple[Status, tuple[str, ...]]], by_vm: dict[str, Status]
) -> None:
    assert furthest(events) == by_vm
