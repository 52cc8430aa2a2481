"""What counts from another moment than was thought: after a late commit, and after a wrong clock."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.core.builders import DAY, HOUR, MINUTE, NOW, Site, row

from forenotice.core import lifecycle
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.windows import parse_all

LATE = timedelta(seconds=4, milliseconds=300)


def make_up(site: Site, operation: Operation) -> Operation:
    promised_at = site.now
    site.wait(LATE)
    with site.transaction(operations=[operation.id]) as draft:
        lifecycle.restore_notice(draft, draft.operation(operation.id), promised_at)
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
    site.set_policy("group:web", auto_approve_restart=True, auto_approve_redeploy=True)
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


def set_right(site: Site, operation: Operation, *, behind: timedelta) -> Operation:
    """The journal is at the site's time, and the clock so far behind it."""
    wrongly = site.now
    site.wait(-behind)
    draft = site.look(operations=[operation.id])
    lifecycle.correct_clock(draft, draft.operation(operation.id), wrongly)
    return draft.operation(operation.id)


def test_what_was_left_of_the_notice_is_left_of_it() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(5 * MINUTE)
    after = set_right(site, operation, behind=DAY)
    assert (after.not_before, after.due_at) == (site.now + 10 * MINUTE, site.now)


def test_what_the_clock_jumped_is_taken_back_too() -> None:
    site = row()
    operation = replace(site.schedule(Kind.RESTART, "web-0"), clock_jumped=DAY)
    site.state.operations[operation.id] = operation
    site.wait(DAY + 5 * MINUTE)
    after = set_right(site, operation, behind=DAY)
    assert (after.not_before, after.clock_jumped) == (operation.not_before, timedelta(0))


@pytest.mark.parametrize("behind", [DAY, MINUTE])
def test_what_was_over_stays_over(behind: timedelta) -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(20 * MINUTE)
    after = set_right(site, operation, behind=behind)
    assert after.not_before == min(operation.not_before, site.now)


def test_what_had_started_has_not_started_in_the_future() -> None:
    site = row()
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    after = set_right(site, failure, behind=DAY)
    assert (after.started_at, after.due_at) == (site.now, site.now)


def test_what_has_ended_stays_as_it_is() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    ended = replace(operation, status=Status.CANCELED, ended_at=site.now, due_at=None)
    site.state.operations[operation.id] = ended
    assert set_right(site, ended, behind=DAY) == ended


def test_what_is_planned_is_judged_anew() -> None:
    site = row()
    site.set_policy("group:web", windows=parse_all(["daily 22:00-04:00 UTC"]))
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    after = set_right(site, operation, behind=HOUR)
    assert (after.status, after.due_at) == (Status.PLANNED, site.now)
