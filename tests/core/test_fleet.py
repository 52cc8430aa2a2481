"""Names, addresses, domains and policies: what is accepted, and the sentence for what is not."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise, permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.invariants import most_down

from forenotice.core import errors, fleet, windows
from forenotice.core.fleet import Policy, Scope, ScopeKind, Vm, VmState, furthest, vm_state
from forenotice.core.operations import Status

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


NAME = partial(fleet.require_name, "VM")
DOMAIN = partial(fleet.require_domain, "fault domain")
OF_GROUP = partial(fleet.require_policy, ScopeKind.PLACEMENT_GROUP)
OF_VM = partial(fleet.require_policy, ScopeKind.STANDALONE)
TOO_SHORT, TOO_LONG = 5 * MINUTE - timedelta(seconds=1), 15 * MINUTE + timedelta(seconds=1)
NO_BUDGETS = ["", "0", "0%", "101%", "1000001", "-1", "1.5", "25 %", "%", "many", "٣", "9" * 5000]


@pytest.mark.parametrize(
    ("require", "values"),
    [
        (NAME, ["a", "web-0", "pool_3", "FrontEnd_IN_0", "a.b", "-", "x" * 64]),
        (fleet.require_address, ["10.0.0.4", "fd00::4"]),
        (fleet.require_vm_id, ["8a506c35-679a-4f78-9d76-0000000000ff", "8A506C35-679A-4F78-9D76-0000000000FF"]),
        (DOMAIN, [0, 4, 999]),
        (OF_GROUP, [Policy(terminate_notice=minutes * MINUTE) for minutes in (5, 7.5, 15)]),
        (OF_GROUP, [Policy(max_unavailable=most) for most in ("1", "1000000", "1%", "25%", "100%")]),
        (OF_GROUP, [Policy(min_available=0), Policy(min_available=1_000_000)]),
        (OF_VM, [Policy(shutdown_timeout=seconds * SECOND) for seconds in (0, 1, 3600)]),
        (OF_VM, [Policy(), Policy(max_user_operations=1), Policy(windows=(windows.parse("daily 01:00-02:00 UTC"),))]),
    ],
)
def test_what_is_accepted_is_kept_as_given(require: Callable[[Any], object], values: list[Any]) -> None:
    assert [require(value) for value in values] == values


@pytest.mark.parametrize(
    ("require", "values", "said"),
    [
        (
            NAME,
            ["", "x" * 65, "a b", "a/b", "ä", "a\n", "web:0", "٣", "x" * 100_000],
            "is not a VM name: 1 to 64 letters, digits",
        ),
        (
            fleet.require_address,
            ["", "10.0.0", "10.0.0.4/24", "web-0", "10.0.0.256", " 10.0.0.4"],
            "is not an IP address: give one such as",
        ),
        (
            fleet.require_vm_id,
            ["", "web-0", "8a506c35679a4f789d760000000000ff", "x" * 1000, "٣" * 36],
            "is not a vmId: give a GUID such as",
        ),
        (DOMAIN, [-1, 1000], "fault domain -?1(000)? is out of range: give a number from 0"),
        (OF_GROUP, [Policy(terminate_notice=notice) for notice in (TOO_SHORT, TOO_LONG)], "from 5 to 15 minutes"),
        (OF_VM, [Policy(terminate_notice=5 * MINUTE)], "only a group can announce deletions"),
        (OF_VM, [Policy(shutdown_timeout=seconds * SECOND) for seconds in (-1, 3601)], "from 0 to 3600 seconds"),
        (OF_VM, [Policy(max_user_operations=most) for most in (0, 10**20)], "must be from 1 to 1000000"),
        (OF_VM, [Policy(max_unavailable="1"), Policy(min_available=0)], "only a group has a budget"),
        (OF_GROUP, [Policy(min_available=least) for least in (-1, 10**20)], "min_available must be from 0 to 1000000"),
        (
            OF_GROUP,
            [Policy(max_unavailable=most) for most in NO_BUDGETS],
            "give a number from 1 to 1000000, or a part from 1% to 100%",
        ),
    ],
)
def test_what_is_refused_says_what_would_be_right(
    require: Callable[[Any], object], values: list[Any], said: str
) -> None:
    for value in values:
        with pytest.raises(errors.RefusedError, match=said) as refused:
            require(value)
        assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    "ordered",
    [
        ["ss_2", "ss_10", "ss_100"],
        ["a", "a0", "a00", "a01", "a1", "a1b"],
        ["a1b", "a2", "a10", "b"],
        ["FrontEnd_IN_0", "FrontEnd_IN_9", "FrontEnd_IN_10"],
        ["1-2-3", "1-2-10", "1-10-0", "2", "10"],
        ["web", "web1", "web-1", "web-1.9", "web-1.10", "web-2"],
    ],
)
def test_names_are_sorted_in_the_order_people_count(ordered: list[str]) -> None:
    for names in permutations(ordered):
        assert sorted(names, key=fleet.natural_key) == ordered


NAMES = st.text("ab0129._-", max_size=8)


@given(st.lists(NAMES, max_size=8), st.randoms(use_true_random=False))
def test_natural_order_is_total_and_does_not_depend_on_the_order_before(names: list[str], random: Random) -> None:
    ordered = sorted(names, key=fleet.natural_key)
    shuffled = random.sample(names, len(names))
    assert sorted(shuffled, key=fleet.natural_key) == ordered
    for one, other in pairwise(ordered):
        assert (fleet.natural_key(one) == fleet.natural_key(other)) == (one == other)


@given(st.sampled_from(["", "a", "ss_", "a1-"]), st.integers(0, 10**80), st.integers(0, 10**80))
def test_natural_order_counts(prefix: str, one: int, other: int) -> None:
    assert (fleet.natural_key(f"{prefix}{one}") < fleet.natural_key(f"{prefix}{other}")) == (one < other)


@pytest.mark.parametrize("name", ["9" * 100_000, "0" * 100_000, "1a" * 50_000, "a" * 100_000])
def test_natural_order_of_hostile_names_costs_no_more_than_their_length(name: str) -> None:
    """int() refuses numbers of thousands of digits, and takes quadratic time for those it does not."""
    parts, whole = fleet.natural_key(name)
    assert whole == name
    assert sum(len(text) + len(digits) for text, _, digits in parts) <= len(name)


def test_an_address_is_kept_in_one_form() -> None:
    assert fleet.require_address("FD00:0:0:0:0:0:0:4") == "fd00::4"


def test_link_local_addresses_are_known_by_how_they_begin() -> None:
    assert [address for address in ("fe80::4", "febf::4", "169.254.0.4") if not fleet.is_link_local(address)] == []
    assert not any(map(fleet.is_link_local, ("fec0::4", "fe7f::4", "fe8::4", "169.25.4.1", "10.169.254.1")))


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("fe80::4", "link-local"),
        ("fe80::4%tap0", "link-local"),
        ("169.254.0.4", "link-local"),
        ("ff02::1", "multicast"),
        ("224.0.0.1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("0.1.2.3", "reserved"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::127.0.0.1", "reserved"),
        ("::10.0.0.4", "reserved"),
        ("127.0.0.1", "a loopback address"),
        ("::ffff:127.1.0.21", "a loopback address"),
        ("::1", "a loopback address"),
    ],
)
def test_an_address_that_does_not_tell_one_vm_is_refused(address: str, what: str) -> None:
    with pytest.raises(errors.RefusedError, match=rf"is {what}.*: give one such as 10\.0\.0\.4") as refused:
        fleet.require_address(address)
    if "loopback" not in what:
        with pytest.raises(errors.RefusedError, match=what):
            fleet.require_address(address, loopback=True)
    else:
        assert fleet.require_address(address, loopback=True) == refused.value.facts["address"]


def test_a_scope_is_a_group_or_one_vm() -> None:
    assert Scope(key=fleet.group_key("web"), kind=ScopeKind.AVAILABILITY_SET, tag="").name == "web"
    assert Scope(key=fleet.standalone_key("db"), kind=ScopeKind.STANDALONE, tag="").name == "db"
    assert Vm(name="web-0", vm_id="", host="a", scope=fleet.group_key("web")).group == "web"
    assert Vm(name="db", vm_id="", host="a", scope=fleet.standalone_key("db")).group is None


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
    missing = VmState.STARTED if status is Status.STARTED else VmState.MISSING
    assert vm_state(status, listening=listening, missing=True) is missing


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
    found = (policy.has_budget, policy.allowed_down(members), policy.budget(members))
    assert found == (allowed is not None, allowed, told)


@given(
    st.none() | st.integers(1, 12).map(str) | st.integers(1, 100).map("{}%".format),
    st.none() | st.integers(0, 12),
    st.integers(0, 12),
)
def test_a_part_of_a_vm_is_none(most: str | None, least: int | None, members: int) -> None:
    policy = Policy(max_unavailable=most, min_available=least)
    allowed = policy.allowed_down(members)
    if allowed is not None:
        assert allowed >= 0
        assert min(allowed, members) == max(0, most_down(policy, members).__floor__())
