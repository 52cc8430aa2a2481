"""How a VM is at a glance."""

import pytest

from forenotice.core.operations import Status
from forenotice.core.states import State, furthest, state


@pytest.mark.parametrize(
    ("status", "listening", "shown"),
    [
        (Status.STARTED, True, State.STARTED),
        (Status.STARTED, False, State.STARTED),
        (Status.SCHEDULED, True, State.SCHEDULED),
        (Status.SCHEDULED, False, State.SCHEDULED),
        (None, True, State.FINE),
        (None, False, State.NOT_LISTENING),
        (Status.COMPLETED, True, State.FINE),
        (Status.FAILED, False, State.NOT_LISTENING),
    ],
)
def test_what_happens_to_it_comes_before_whether_it_listens(
    status: Status | None, listening: bool, shown: State
) -> None:
    assert state(status, listening=listening) is shown


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
