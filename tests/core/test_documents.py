"""The document before it is rendered: which events, in which order, and what counts as a visible change."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.core.builders import NOW, SECOND

from forenotice.core import documents
from forenotice.core.fleet import Scope, ScopeKind
from forenotice.core.operations import Event, EventType, Source, Status

EVENT = Event(
    id="B",
    operation="op",
    scope="group:web",
    resources=("web-0", "web-1"),
    update_domain=0,
    type=EventType.FREEZE,
    source=Source.PLATFORM,
    description="",
    duration=9,
    status=Status.SCHEDULED,
    created_at=NOW,
    not_before=NOW + 900 * SECOND,
)
STARTED = replace(EVENT, status=Status.STARTED)
OVER = replace(EVENT, status=Status.COMPLETED, ended_at=NOW)


def test_events_are_listed_oldest_first_then_by_first_resource_then_by_id() -> None:
    scope = Scope(key="group:web", kind=ScopeKind.AVAILABILITY_SET, tag="t", incarnation=7)
    newer = replace(EVENT, id="A", created_at=NOW + SECOND)
    twin = replace(EVENT, id="A2")
    tenth, second = replace(EVENT, id="A3", resources=("web-10",)), replace(EVENT, id="C", resources=("web-2",))
    document = documents.document(scope, [newer, tenth, EVENT, second, twin])
    assert [event.id for event in document.events] == ["A2", "B", "C", "A3", "A"]
    assert (document.scope, document.tag, document.kind, document.incarnation) == ("group:web", "t", scope.kind, 7)
    lost = replace(OVER, id="A", resources=())
    assert [event.id for event in documents.in_order([EVENT, lost])] == ["A", "B"]


def test_what_guests_can_see() -> None:
    for after in (STARTED, OVER, replace(EVENT, resources=("web-1",)), replace(EVENT, not_before=NOW)):
        assert documents.looks_different(EVENT, after)


def test_what_guests_cannot_see() -> None:
    assert not documents.looks_different(EVENT, replace(EVENT, approved_at=NOW, approved_by="x", implied=True))
    # A Started event has a blank NotBefore.
    assert not documents.looks_different(STARTED, replace(STARTED, not_before=NOW))
    assert not documents.looks_different(OVER, replace(OVER, status=Status.FAILED, ended_at=NOW + SECOND))


NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
SECONDS = 68_990_400


@pytest.mark.parametrize(
    ("now", "known", "epoch"),
    [
        (NOW, (), SECONDS),
        # A later restore has a later epoch, even if the first is unknown.
        (NOW + timedelta(seconds=1), (0,), SECONDS + 1),
        (NOW, (0, 0), SECONDS),
        (NOW, (SECONDS - documents.STEP, 5), SECONDS),
        # Restored twice on one day, or by a clock that is wrong.
        (NOW, (SECONDS - 60, 0), SECONDS - 60 + documents.STEP),
        (datetime(1970, 1, 1, tzinfo=UTC), (0, SECONDS), SECONDS + documents.STEP),
        (datetime(2092, 1, 1, tzinfo=UTC), (), 2_145_916_800),
    ],
)
def test_the_epoch_that_follows(now: datetime, known: tuple[int, ...], epoch: int) -> None:
    assert documents.next_epoch(now, *known) == epoch < 2**31


def test_a_suffix_is_short_and_its_own() -> None:
    assert documents.epoch_suffix(SECONDS) == ".41cb5c0"


@pytest.mark.parametrize(
    ("epoch", "position", "fell"), [(7, 100, False), (7, 101, False), (8, 3, False), (7, 99, True), (6, 500, True)]
)
def test_a_database_that_is_older_than_it_was(epoch: int, position: int, fell: bool) -> None:
    assert documents.is_behind(epoch, position, was=(7, 100)) is fell
