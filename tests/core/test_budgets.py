"""Budgets: how many VMs of a group may be down at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.builders import row
from tests.core.invariants_of_rollouts import most_down

from forenotice.core import budgets, errors
from forenotice.core.budgets import NO_LIMITS, UserLimits
from forenotice.core.fleet import Policy
from forenotice.core.operations import Kind


@pytest.mark.parametrize(
    ("most", "least", "members", "allowed", "told"),
    [
        (None, None, 10, None, ""),
        ("2", None, 10, 2, "max_unavailable 2"),
        ("25%", None, 10, 2, "max_unavailable 25%"),
        ("25%", None, 3, 0, "max_unavailable 25%"),
        ("100%", None, 3, 3, "max_unavailable 100%"),
        (None, 8, 10, 2, "min_available 8"),
        (None, 8, 5, 0, "min_available 8"),
        (None, 0, 5, 5, "min_available 0"),
        ("3", 8, 10, 2, "min_available 8"),
        ("1", 8, 10, 1, "max_unavailable 1"),
    ],
)
def test_what_a_budget_allows(
    most: str | None, least: int | None, members: int, allowed: int | None, told: str
) -> None:
    policy = Policy(max_unavailable=most, min_available=least)
    assert budgets.has_budget(policy) == (allowed is not None)
    assert budgets.allowed(policy, members) == allowed
    if allowed is not None:
        assert budgets.told(policy, members) == told


@given(
    st.none() | st.integers(1, 12).map(str) | st.integers(1, 100).map("{}%".format),
    st.none() | st.integers(0, 12),
    st.integers(0, 12),
)
def test_a_part_of_a_vm_is_none(most: str | None, least: int | None, members: int) -> None:
    policy = Policy(max_unavailable=most, min_available=least)
    allowed = budgets.allowed(policy, members)
    if allowed is not None:
        assert allowed >= 0
        assert min(allowed, members) == max(0, most_down(policy, members).__floor__())


def test_planned_maintenance_that_no_budget_allows_is_refused() -> None:
    site = row()
    site.add_vm("web-3", "a", group="web")
    site.set_policy("group:web", min_available=3)
    with pytest.raises(errors.ConflictError, match="the budget of group web can never be met: 2 of its 4 VMs are on"):
        site.schedule(Kind.HOST_UPDATE, "a")
    assert site.schedule(Kind.HOST_UPDATE, "b")
    site.set_policy("group:web", min_available=4)
    with pytest.raises(errors.ConflictError) as refused:
        site.schedule(Kind.HOST_UPDATE, "c")
    assert refused.value.message == (
        "the budget of group web can never be met: 1 of its 4 VMs is on host c, but min_available 4 allows 0 down at "
        "once: change it"
    )
    assert site.schedule(Kind.RESTART, "web-0")
    assert site.schedule(Kind.HARDWARE_FAILURE, "a")


def test_whether_users_are_limited() -> None:
    limited = [UserLimits(fleet=1), UserLimits(tenant=1), UserLimits(fleet=1, tenant=1)]
    assert all(limits.any for limits in limited)
    assert not NO_LIMITS.any
