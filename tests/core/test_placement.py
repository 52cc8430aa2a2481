"""Where VMs may be: domains of a group stay apart, now and when those under way arrive."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.builders import Site, row

from forenotice.core import errors, placement
from forenotice.core.driver_calls import Finished
from forenotice.core.fleet import Policy
from forenotice.core.operations import Kind, Status


def chosen(site: Site, kind: Kind, name: str) -> dict[str, str]:
    """The targets that a move gets at its start."""
    operation = site.schedule(kind, name)
    site.approve_all(operation)
    site.tick()
    return dict(site.operation(operation).targets)


@pytest.mark.parametrize(
    ("domains", "said"),
    [
        ((1, 0), r"late \(update domain 1\) and web-0 \(update domain 0\) of group web cannot share host a"),
        ((0, 1), r"late \(fault domain 1\) and web-0 \(fault domain 0\) of group web cannot share host a"),
    ],
)
def test_two_domains_of_a_group_never_share_a_host(domains: tuple[int, int], said: str) -> None:
    site = row()
    with pytest.raises(errors.ConflictError, match=said) as conflict:
        site.add_vm("late", "a", group="web", update_domain=domains[0], fault_domain=domains[1])
    assert conflict.value.facts == {"vm": "late", "other": "web-0", "host": "a"}
    assert "late" not in site.state.vms


def test_one_domain_and_other_groups_may_share_a_host() -> None:
    site = row()
    site.add_vm("web-3", "a", group="web")
    site.add_group("shop")
    site.add_vm("shop-0", "a", group="shop", update_domain=4)
    site.add_vm("db", "a", update_domain=5)
    assert len(site.look(hosts="a").vms_on("a")) == 4


@pytest.mark.parametrize(
    "change", [{"host": "b"}, {"update_domain": 1}, {"fault_domain": 1}], ids=lambda change: next(iter(change))
)
def test_a_change_must_keep_domains_apart(change: dict[str, object]) -> None:
    site = row()
    site.add_vm("web-3", "a", group="web")
    with pytest.raises(errors.ConflictError, match="cannot share host"):
        site.set_vm("web-3", **change)


def test_regrouping_must_keep_domains_apart() -> None:
    site = row()
    site.add_vm("db", "a", update_domain=7)
    with pytest.raises(errors.ConflictError, match="cannot share host a"):
        site.set_vm("db", group="web")


def test_a_move_goes_to_the_emptiest_host() -> None:
    site = Site()
    site.add_hosts("abcd")
    for number, host in enumerate("abbc"):
        site.add_vm(f"vm-{number}", host)
    assert chosen(site, Kind.REDEPLOY, "vm-0") == {"vm-0": "d"}


def test_many_spread_over_the_emptiest() -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_vm("old", "b")
    for number in range(4):
        site.add_vm(f"vm-{number}", "a")
    assert chosen(site, Kind.LIVE_MIGRATION, "a") == {"vm-0": "c", "vm-1": "b", "vm-2": "c", "vm-3": "b"}


@pytest.mark.parametrize("group", [None, "web"])
def test_those_that_are_asked_for_together_spread_over_the_emptiest(group: str | None) -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_group("web", auto_approve_redeploy=True)
    site.add_vm("old", "b")
    names = [f"vm-{number}" for number in range(4)]
    for name in names:
        site.add_vm(name, "a", group=group, policy=Policy(auto_approve_redeploy=True))
    site.schedule(Kind.REDEPLOY, *names)
    assert [each.targets[each.vms[0]] for each in site.live()] == ["c", "b", "c", "b"]
    site.schedule(Kind.HARDWARE_FAILURE, "b")
    assert site.live()[-1].targets == {"old": "c"}


def test_never_to_a_cordoned_host_nor_to_its_own() -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_vm("db", "a")
    site.add_vm("old", "c")
    site.cordon("b")
    assert chosen(site, Kind.REDEPLOY, "db") == {"db": "c"}


def test_never_to_a_host_that_is_cordoned_in_the_same_transaction() -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_vm("db", "a")
    site.add_vm("www", "b")
    site.add_vm("old", "c")
    site.add_vm("older", "c")
    site.schedule(Kind.HARDWARE_FAILURE, "a", "b")
    (_, second) = site.live()
    assert (second.host, second.targets) == ("b", {"www": "c"})


@pytest.mark.parametrize("kind", [Kind.REDEPLOY, Kind.LIVE_MIGRATION])
def test_a_move_keeps_domains_apart(kind: Kind) -> None:
    site = row()
    site.add_vm("db", "d")
    # b and c are as empty, but hold other domains of the group.
    assert chosen(site, kind, "a" if kind.traits.of_host else "web-0") == {"web-0": "d"}


def test_those_of_one_domain_may_go_to_one_host() -> None:
    site = row()
    site.add_vm("web-3", "a", group="web")
    assert chosen(site, Kind.LIVE_MIGRATION, "a") == {"web-0": "d", "web-3": "d"}


def test_a_host_that_another_domain_is_on_its_way_to_is_taken() -> None:
    site = row(hosts="abcde")
    assert chosen(site, Kind.REDEPLOY, "web-0") == {"web-0": "d"}
    assert chosen(site, Kind.REDEPLOY, "web-1") == {"web-1": "e"}
    with pytest.raises(errors.ConflictError, match="no host can take web-2"):
        site.schedule(Kind.REDEPLOY, "web-2")


def test_a_host_that_a_domain_was_on_its_way_to_is_free_when_that_has_failed() -> None:
    site = row()
    first = site.schedule(Kind.REDEPLOY, "web-0")
    site.approve_all(first)
    site.tick()
    assert site.operation(first).targets == {"web-0": "d"}
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.operation(first).status is Status.FAILED


def test_no_vm_is_put_where_another_domain_is_on_its_way_to() -> None:
    site = row()
    assert chosen(site, Kind.REDEPLOY, "web-0") == {"web-0": "d"}
    with pytest.raises(errors.ConflictError, match="cannot share host d"):
        site.add_vm("late", "d", group="web", update_domain=5)
    site.add_vm("late", "d", group="web", update_domain=0)
    with pytest.raises(errors.ConflictError, match="cannot share host d"):
        site.set_vm("late", fault_domain=5)


def test_who_was_moved_here_and_is_moved_on_counts_where_it_goes() -> None:
    """In whatever order the operations are loaded."""
    site = row(hosts="abcdef")
    site.add_vm("db", "a")
    migration = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.approve_all(migration)
    site.tick()
    assert site.operation(migration).targets == {"db": "d", "web-0": "e"}
    site.report(migration.id, Finished(done=("web-0",), failures={"db": "no memory"}))
    assert dict(site.schedule(Kind.HARDWARE_FAILURE, "e").targets) == {"web-0": "f"}
    for newest_first in (False, True):
        site.state.events = dict(sorted(site.state.events.items(), reverse=newest_first))
        redeploy = site.schedule(Kind.REDEPLOY, "web-1")
        site.approve_all(redeploy)
        draft = site.look(operations=[redeploy.id], targets=True)
        assert placement.choose(draft, redeploy, ["web-1"]) == {"web-1": "d"}
        site.cancel(redeploy.id)


def test_a_host_that_awaits_maintenance_itself_comes_last() -> None:
    site = Site()
    site.add_hosts("abcd")
    for name, host in (("one", "a"), ("two", "b"), ("three", "d"), ("four", "d")):
        site.add_vm(name, host)
    site.schedule(Kind.HOST_UPDATE, "b")
    site.cordon("c")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.approve_all(operation)
    site.tick()
    assert site.operation(operation).targets == {"one": "d"}


# Capacity

AMOUNTS = st.sampled_from([None, 0, 0.1, 0.7, 1, 2, 3])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(AMOUNTS, min_size=3, max_size=3),
    st.lists(AMOUNTS, min_size=3, max_size=3),
    st.lists(
        st.tuples(st.sampled_from(["move", "fail", "arrive", "capacity", "size"]), st.integers(0, 2), AMOUNTS),
        max_size=9,
    ),
)
def test_no_host_is_filled_beyond_its_capacity(
    capacities: list[float | None], sizes: list[float | None], steps: list[tuple[str, int, float | None]]
) -> None:
    """Whatever happens, each in a transaction of its own: the site's watch looks at every one."""
    site = roomy(**dict(zip("abc", capacities, strict=True)))
    for number, size in enumerate(sizes):
        site.add_host(f"old-{number}")
        site.add_vm(f"vm-{number}", f"old-{number}", size=size, policy=Policy(auto_approve_redeploy=True))
        site.cordon(f"old-{number}")
    for what, number, amount in steps:
        host, name = "abc"[number], f"vm-{number}"
        tasks = {task.operation: task for task in site.tick()} if what in ("arrive", "fail") else {}
        with contextlib.suppress(errors.ConflictError):
            match what:
                case "move":
                    site.schedule(Kind.REDEPLOY, name)
                case "fail":
                    site.schedule(Kind.HARDWARE_FAILURE, host)
                case "arrive":
                    site.tick({key: Finished(done=task.vms, failures={}) for key, task in tasks.items()})
                case "capacity":
                    site.set_capacity(host, amount)
                case _:
                    site.set_vm(name, size=amount)
    site.tick()


def roomy(**capacities: float | None) -> Site:
    site = Site()
    for name, capacity in capacities.items():
        site.add_host(name, capacity=capacity)
    return site


def test_a_move_goes_where_there_is_room() -> None:
    site = roomy(a=None, b=2, c=9)
    site.add_vm("big", "a", size=3)
    site.add_vm("other", "c")
    assert chosen(site, Kind.REDEPLOY, "big") == {"big": "c"}


def test_two_moves_do_not_overfill_a_host() -> None:
    site = roomy(a=None, b=None, c=3)
    for host in "ab":
        site.add_vm(f"vm-{host}", host, size=2)
    site.cordon("a")
    site.cordon("b")
    assert chosen(site, Kind.REDEPLOY, "vm-a") == {"vm-a": "c"}
    with pytest.raises(errors.ConflictError) as refused:
        site.schedule(Kind.REDEPLOY, "vm-b")
    assert refused.value.message == (
        "no host has enough capacity left for vm-b (size 2): make room, raise a capacity, or add or uncordon a host"
    )
    assert refused.value.facts == {"vm": "vm-b", "size": 2}


def test_those_of_one_move_share_the_room() -> None:
    site = roomy(a=None, b=3, c=3)
    for number, size in enumerate((1, 1, 2, 2)):
        site.add_vm(f"vm-{number}", "a", size=size)
    targets = chosen(site, Kind.LIVE_MIGRATION, "a")
    assert sorted(targets[name] for name in ("vm-2", "vm-3")) == ["b", "c"], "the largest first, or they do not fit"
    assert sorted(targets[name] for name in ("vm-0", "vm-1")) == ["b", "c"]


def test_whoever_has_few_hosts_to_go_to_is_not_kept_out_by_others() -> None:
    site = roomy(a=None, b=4, c=None)
    site.add_group("web")
    site.add_vm("large", "a", size=4)
    site.add_vm("web-0", "a", group="web", size=1)
    site.add_vm("web-1", "c", group="web", update_domain=1, fault_domain=1)
    assert chosen(site, Kind.LIVE_MIGRATION, "a") == {"large": "c", "web-0": "b"}


def test_a_move_starts_whole_or_waits_for_room() -> None:
    site = roomy(a=None, b=3)
    for number in range(4):
        site.add_vm(f"vm-{number}", "a")
    assert chosen(site, Kind.LIVE_MIGRATION, "a") == {}
    site.set_capacity("b", 4)
    site.tick()
    assert {vm.name for vm in site.state.vms.values()} == set(site.live()[0].targets)


def test_a_last_resort_has_room_too() -> None:
    site = roomy(a=None, b=3, c=1)
    site.add_vm("vm-b", "b", size=1)
    site.add_vm("vm-c", "c", size=1)
    for number in range(3):
        site.add_vm(f"vm-{number}", "a")
    for host in "bc":
        site.schedule(Kind.HOST_UPDATE, host)
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.tick()
    assert dict(site.operation(failure).targets) == {"vm-0": "b", "vm-1": "b"}
    assert [(each.kind, each.host) for each in site.live() if each.kind is Kind.HOST_UPDATE] == [
        (Kind.HOST_UPDATE, "c")
    ]
