"""Whose what happened under a name is, and whom a name means."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.core import roles, selectors
from forenotice.core.roles import Former

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


GONE = Former(ended_at=at(20), is_borne=False)
GONE_TWICE = Former(ended_at=at(20), before=at(10), is_borne=False)
SUCCEEDED = Former(ended_at=at(20), before=at(10), is_borne=True)


@pytest.mark.parametrize(
    ("former", "minute", "hidden", "meant"),
    [
        (GONE, 5, False, True),
        (GONE, 20, False, True),
        (GONE, 21, False, False),
        (GONE_TWICE, 10, True, False),
        (GONE_TWICE, 11, False, True),
        (GONE_TWICE, 21, False, False),
        (SUCCEEDED, 11, True, False),
        (SUCCEEDED, 20, True, False),
        (SUCCEEDED, 21, False, True),
    ],
)
def test_a_name_means_its_bearer_of_that_time_or_the_next(
    former: Former, minute: int, hidden: bool, meant: bool
) -> None:
    assert former.hides(at(minute)) is hidden
    assert former.is_meant(at(minute)) is meant


def test_names_are_bound_and_patterns_are_not() -> None:
    selector = selectors.of_scopes("vm:db,vm:d*,web,!vm:db-1")
    former = {"vm:db": SUCCEEDED, "vm:db-1": SUCCEEDED, "vm:other": SUCCEEDED}
    bound = roles.bound(selector, at(15), former)
    assert bound.wanted == ("vm:d*", "group:web")
    assert (bound.unwanted, bound.text) == (selector.unwanted, selector.text)
    assert "vm:db" in bound
    assert roles.bound(selector, at(25), former) is selector
    nothing = roles.bound(selectors.of_scopes("vm:db"), at(15), former)
    assert "vm:db" not in nothing
