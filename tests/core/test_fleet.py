"""Names, addresses, domains and policies: what is accepted, and the sentence for what is not."""

from datetime import timedelta
from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.invariants import most_down

from forenotice.core import errors, fleet, windows
from forenotice.core.fleet import Policy, Scope, ScopeKind, Vm, VmState, furthest, vm_state
from forenotice.core.operations import Status

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("name", ["a", "web-0", "pool_3", "FrontEnd_IN_0", "a.b", "-", "x" * 64])
def test_a_name_is_letters_digits_and_three_signs(name: str) -> None:
    assert fleet.require_name("VM", name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a/b", "ä", "a\n", "web:0", "٣"])
def test_other_names_are_refused_with_what_would_be_right(name: str) -> None:
    with pytest.raises(errors.RefusedError, match="is not a VM name: 1 to 64 letters, digits"):
        fleet.require_name("VM", name)


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


def test_a_refusal_does_not_repeat_endless_names() -> None:
    with pytest.raises(errors.RefusedError) as refused:
        fleet.require_name("VM", "x" * 100_000)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("given", "kept"), [("10.0.0.4", "10.0.0.4"), ("fd00::4", "fd00::4"), ("FD00:0:0:0:0:0:0:4", "fd00::4")]
)
def test_an_address_is_kept_in_one_form(given: str, kept: str) -> None:
    assert fleet.require_address(given) == kept


def test_link_local_addresses_are_known_by_how_they_begin() -> None:
    assert [address for address in ("fe80::4", "febf::4", "169.254.0.4") if not fleet.is_link_local(address)] == []
    assert not any(map(fleet.is_link_local, ("fec0::4", "fe7f::4", "fe8::4", "169.25.4.1", "10.169.254.1")))


@pytest.mark.parametrize("address", ["", "10.0.0", "10.0.0.4/24", "web-0", "10.0.0.256", " 10.0.0.4"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(errors.RefusedError, match="is not an IP address: give one such as"):
        fleet.require_address(address)


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


def test_a_vm_id_is_a_guid_and_kept_as_given() -> None:
    for vm_id in ("8a506c35-679a-4f78-9d76-0000000000ff", "8A506C35-679A-4F78-9D76-0000000000FF"):
        assert fleet.require_vm_id(vm_id) == vm_id


@pytest.mark.parametrize("given", ["", "web-0", "8a506c35679a4f789d760000000000ff", "x" * 1000, "٣" * 36])
def test_what_is_not_a_guid_is_no_vm_id(given: str) -> None:
    with pytest.raises(errors.RefusedError, match="is not a vmId: give a GUID such as") as refused:
        fleet.require_vm_id(given)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("number", [0, 4, 999])
def test_a_domain_is_a_small_number(number: int) -> None:
    assert fleet.require_domain("update domain", number) == number


@pytest.mark.parametrize("number", [-1, 1000])
def test_other_domains_are_refused(number: int) -> None:
    with pytest.raises(errors.RefusedError, match=f"fault domain {number} is out of range: give a number from 0"):
        fleet.require_domain("fault domain", number)


@pytest.mark.parametrize("minutes", [5, 7.5, 15])
def test_a_group_may_announce_deletions_5_to_15_minutes_ahead(minutes: float) -> None:
    policy = Policy(terminate_notice=minutes * MINUTE)
    assert fleet.require_policy(ScopeKind.PLACEMENT_GROUP, policy) is policy


@pytest.mark.parametrize(
    ("kind", "policy", "said"),
    [
        (ScopeKind.PLACEMENT_GROUP, Policy(terminate_notice=5 * MINUTE - timedelta(seconds=1)), "from 5 to 15 minutes"),
        (
            ScopeKind.PLACEMENT_GROUP,
            Policy(terminate_notice=15 * MINUTE + timedelta(seconds=1)),
            "from 5 to 15 minutes",
        ),
        (ScopeKind.STANDALONE, Policy(terminate_notice=5 * MINUTE), "only a group can announce deletions"),
        (ScopeKind.STANDALONE, Policy(max_user_operations=0), "must be from 1 to 1000000"),
        (ScopeKind.STANDALONE, Policy(max_user_operations=10**20), "must be from 1 to 1000000"),
        (ScopeKind.STANDALONE, Policy(max_unavailable="1"), "only a group has a budget"),
        (ScopeKind.STANDALONE, Policy(min_available=0), "only a group has a budget"),
        (ScopeKind.CLOUD_SERVICE, Policy(min_available=-1), "min_available must be from 0 to 1000000"),
        (ScopeKind.CLOUD_SERVICE, Policy(min_available=10**20), "min_available must be from 0 to 1000000"),
    ],
)
def test_policies_that_cannot_be(kind: ScopeKind, policy: Policy, said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        fleet.require_policy(kind, policy)


def test_a_limit_of_one_and_no_policy_at_all_are_fine_for_a_standalone_vm() -> None:
    assert fleet.require_policy(ScopeKind.STANDALONE, Policy(max_user_operations=1))
    assert fleet.require_policy(ScopeKind.STANDALONE, Policy())


@pytest.mark.parametrize("most", ["1", "1000000", "1%", "25%", "100%"])
def test_a_group_may_have_so_many_out_at_once(most: str) -> None:
    policy = Policy(max_unavailable=most, min_available=1_000_000)
    assert fleet.require_policy(ScopeKind.AVAILABILITY_SET, policy) is policy


@pytest.mark.parametrize("most", ["", "0", "0%", "101%", "1000001", "-1", "1.5", "25 %", "%", "many", "٣", "9" * 5000])
def test_other_limits_are_refused(most: str) -> None:
    with pytest.raises(
        errors.RefusedError, match="give a number from 1 to 1000000, or a part from 1% to 100%"
    ) as refused:
        fleet.require_policy(ScopeKind.AVAILABILITY_SET, Policy(max_unavailable=most))
    assert len(refused.value.message) < 200


def test_a_standalone_vm_may_have_windows() -> None:
    assert fleet.require_policy(ScopeKind.STANDALONE, Policy(windows=(windows.parse("daily 01:00-02:00 UTC"),)))


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
