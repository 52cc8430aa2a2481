"""A commit that comes late: notice and the sight of Started count from then."""

from datetime import timedelta

import pytest
from tests.core.builders import NOW, Site, row

from forenotice.core import delay
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.windows import parse_all

LATE = timedelta(seconds=4, milliseconds=300)


def make_up(site: Site, operation: Operation) -> Operation:
    promised_at = site.now
    site.wait(LATE)
    with site.transaction(operations=[operation.id]) as draft:
        delay.make_up(draft, draft.operation(operation.id), promised_at)
    return site.state.operations[operation.id]


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.HOST_UPDATE])
def test_what_was_announced_is_put_off(kind: Kind) -> None:
    site = row()
    operation = site.schedule(kind, "a" if kind.traits.of_host else "web-0")
    after = make_up(site, operation)
    assert after.not_before == after.due_at == operation.not_before + timedelta(seconds=5)
    assert {event.not_before for event in site.events(operation)} == {after.not_before}
    assert [entry.action for entry in site.journal].count("event.postponed") == len(site.events(operation))


def test_what_is_due_at_once_stays_so() -> None:
    site = row()
    site.set_policy("group:web", auto_approve=True)
    first = site.schedule(Kind.RESTART, "web-0")
    waiting = site.schedule(Kind.REDEPLOY, "web-0")
    assert (first.status, waiting.status) == (Status.STARTED, Status.SCHEDULED)
    after = make_up(site, waiting)
    assert after.due_at == waiting.due_at
    assert after.not_before > waiting.not_before


def test_what_started_counts_from_now() -> None:
    site = row()
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert make_up(site, operation).started_at == site.now


def test_what_was_made_earlier_stays_as_it_is() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(LATE)
    assert make_up(site, operation) == operation


def test_a_window_that_closes_meanwhile_is_waited_for_again() -> None:
    site = row()
    site.set_policy("group:web", windows=parse_all(["daily 12:14-12:15 UTC", "daily 23:00-23:30 UTC"]))
    site.wait(-timedelta(seconds=3))
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    assert operation.not_before == NOW + timedelta(minutes=14, seconds=57)
    after = make_up(site, operation)
    assert after.not_before == after.due_at == NOW.replace(hour=23)
