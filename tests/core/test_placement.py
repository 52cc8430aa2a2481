"""Where VMs may be: domains of a group stay apart, now and when those under way arrive."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.builders import NOW, Site, row

from forenotice.core import errors
from forenotice.core.draft import Draft, World
from forenotice.core.driver_calls import Finished
from forenotice.core.fleet import Host, Policy, Vm
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import Timing


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


def test_a_host_that_another_domain_is_on_its_way_to_is_taken() -> None:
    site = row(hosts="abcde")
    assert chosen(site, Kind.REDEPLOY, "web-0") == {"web-0": "d"}
    assert chosen(site, Kind.REDEPLOY, "web-1") == {"web-1": "e"}
    with pytest.raises(errors.ConflictError, match="no host can take web-2"):
        site.schedule(Kind.REDEPLOY, "web-2")


def test_no_vm_is_put_where_another_domain_is_on_its_way_to() -> None:
    site = row()
    assert chosen(site, Kind.REDEPLOY, "web-0") == {"web-0": "d"}
    with pytest.raises(errors.ConflictError, match="cannot share host d"):
        site.add_vm("late", "d", group="web", update_domain=5)
    site.add_vm("late", "d", group="web", update_domain=0)
    with pytest.raises(errors.ConflictError, match="cannot share host d"):
        site.set_vm("late", fault_domain=5)


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


def test_whoever_has_few_hosts_to_go_to_is_not_kept_out_by_others() -> None:
    site = roomy(a=None, b=4, c=None)
    site.add_group("web")
    site.add_vm("large", "a", size=4)
    site.add_vm("web-0", "a", group="web", size=1)
    site.add_vm("web-1", "c", group="web", update_domain=1, fault_domain=1)
    assert chosen(site, Kind.LIVE_MIGRATION, "a") == {"large": "c", "web-0": "b"}


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


def test_nobody_goes_where_an_edge_is_lost() -> None:
    site = row()
    site.beat("d")
    site.lose("d")
    with pytest.raises(errors.ConflictError) as refused:
        site.schedule(Kind.REDEPLOY, "web-0")
    assert refused.value.message == (
        "no host can take web-0: add or uncordon one that keeps its group's domains apart; "
        "no VM moves to the host whose edge is lost"
    )
    site.add_host("e")
    site.lose("e")
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.tick()
    said = site.explain_operation(failure)
    assert "no VM moves to the 2 hosts whose edge is lost" in said.sentence
    site.find("e")
    site.tick()
    assert dict(site.operation(failure).targets) == {"web-0": "e"}


def test_nobody_goes_where_an_edge_is_lost_as_a_last_resort() -> None:
    site = roomy(a=None, b=None, c=None)
    site.add_vm("vm-0", "a")
    for host in "bc":
        site.add_vm(f"vm-{host}", host)
        site.schedule(Kind.HOST_UPDATE, host)
    site.lose("b")
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.tick()
    assert dict(site.operation(failure).targets) == {"vm-0": "c"}


WEB = "group:web"


def vm(name: str, host: str, update_domain: int = 0, scope: str = WEB) -> Vm:
    return Vm(name=name, vm_id=name, host=host, scope=scope, update_domain=update_domain)


def move(name: str, to: str, **fields: Any) -> Operation:
    made = Operation(
        id=f"move-{name}",
        kind=Kind.REDEPLOY,
        host="a",
        vms=(name,),
        status=Status.STARTED,
        created_at=NOW,
        not_before=NOW,
    )
    return replace(made, targets={name: to}, **fields)


def draft(*vms: Vm, **known: object) -> Draft:
    world = World(
        hosts={name: Host(name=name) for name in "abcd"},
        vms={each.name: each for each in vms},
        occupancy={"a": 3, "b": 2, "c": 1, "d": 0},
    )
    for field, value in known.items():
        setattr(world, field, value)
    return Draft(world, now=NOW, timing=Timing(), new_id=lambda: "id")


def fitting(draft: Draft, vm: Vm) -> list[str]:
    return [host for *_, host in draft.targets.fitting(vm) if draft.targets.fits(vm, host)]


def test_the_emptiest_comes_first_and_what_awaits_maintenance_last() -> None:
    here = draft(vm("db", "a", scope="vm:db"), awaiting={"d"})
    assert fitting(here, here.vm("db")) == ["c", "b", "a", "d"]
    here.put_host(Host(name="c", cordoned=True))
    assert fitting(here, here.vm("db")) == ["b", "a", "d"]
    here.world.occupancy = {"b": 9, "a": 1}
    assert fitting(here, here.vm("db")) == ["a", "b"]


def test_a_host_is_as_full_as_it_will_be() -> None:
    here = draft(vm("db", "a", scope="vm:db"), vm("web-0", "a"))
    assert fitting(here, here.vm("web-0")) == fitting(here, here.vm("db")) == ["d", "c", "b", "a"]
    for name in ("db", "web-0"):
        here.put_operation(move(name, "d"))
    assert fitting(here, here.vm("web-0")) == fitting(here, here.vm("db")) == ["c", "b", "d", "a"]
    here.put_operation(move("db", "d", done=("db",)))
    here.put_vm(vm("db", "d", scope="vm:db"))
    assert fitting(here, here.vm("web-0")) == fitting(here, here.vm("db")) == ["c", "a", "b", "d"]
    here.remove_vm("db")
    assert fitting(here, here.vm("web-0")) == ["c", "d", "a", "b"]


def test_domains_of_a_group_stay_apart_whatever_moves() -> None:
    here = draft(vm("web-0", "a"), vm("web-1", "b", 1), vm("web-2", "c", 1))
    assert fitting(here, here.vm("web-0")) == ["d", "a"]
    here.put_operation(move("web-1", "d"))
    assert fitting(here, here.vm("web-0")) == ["a"]
    here.put_vm(vm("web-1", "d", 1))
    here.put_operation(move("web-1", "d", done=("web-1",)))
    assert fitting(here, here.vm("web-0")) == ["b", "a"]
    here.remove_vm("web-2")
    assert fitting(here, here.vm("web-0")) == ["c", "b", "a"]
    here.put_vm(vm("web-3", "b", 2))
    assert fitting(here, here.vm("web-0")) == ["c", "a"]


def test_whoever_is_on_the_way_counts_there_from_the_start() -> None:
    here = draft(vm("web-0", "a"), vm("web-1", "b", 1), operations={"x": move("web-1", "d"), "y": move("gone", "c")})
    assert fitting(here, here.vm("web-0")) == ["c", "a"]
    # As another domain of the group it would be told apart from there, too.
    here.put_vm(vm("web-1", "b", 0))
    assert fitting(here, here.vm("web-0")) == ["d", "b", "c", "a"]


@pytest.mark.parametrize("counted", [True, False])
def test_vms_that_are_only_counted_are_in_the_way_like_those_that_are_loaded(counted: bool) -> None:
    others = (vm("web-1", "b", 1), vm("web-2", "c", 1))
    domains = {(WEB, "a"): {(0, 0): 1}, (WEB, "b"): {(1, 0): 1}, (WEB, "c"): {(1, 0): 1}}
    here = draft(vm("web-0", "a"), domains=domains) if counted else draft(vm("web-0", "a"), *others)
    assert fitting(here, here.vm("web-0")) == ["d", "a"]
    here.put_operation(move("web-0", "d"))
    assert fitting(here, vm("web-9", "c", 1)) == ["c", "b"]


def rooms(draft: Draft, size: float) -> str:
    """Hosts that have room for one of this size."""
    return "".join(host for host in "abcd" if draft.targets.has_room(replace(vm("x", "z"), size=size), host))


def limited(**known: object) -> Draft:
    hosts = {name: Host(name=name, capacity=capacity) for name, capacity in zip("abcd", (4, 4, 4, None), strict=True)}
    vms = {each.name: each for each in (vm("one", "a"), vm("two", "b"))}
    return draft(*vms.values(), hosts=hosts, **known)


def test_room_is_what_the_capacity_leaves() -> None:
    here = limited()
    assert (rooms(here, 3), rooms(here, 3.001), rooms(here, 4), rooms(here, 5)) == ("abcd", "cd", "cd", "d")
    here = limited(used={"a": 2.5})
    assert (rooms(here, 1.5), rooms(here, 2)) == ("abcd", "bcd")
    here.put_host(Host(name="a", capacity=9))
    assert rooms(here, 6) == "ad"


def test_who_comes_takes_room_from_the_start_and_who_leaves_keeps_it_until_gone() -> None:
    here = limited()
    here.put_operation(move("one", "b"))
    assert (rooms(here, 2), rooms(here, 3)) == ("abcd", "acd")
    # Its size may change on the way.
    here.put_vm(replace(here.vm("one"), size=3))
    assert (rooms(here, 1), rooms(here, 0)) == ("acd", "abcd")
    here.put_operation(move("one", "b", done=("one",)))
    here.put_vm(replace(here.vm("one"), host="b"))
    assert (rooms(here, 4), rooms(here, 0)) == ("acd", "abcd")
    here.remove_vm("one")
    assert rooms(here, 3) == "abcd"


def test_who_is_gone_before_it_arrives_takes_no_room() -> None:
    here = limited()
    here.put_operation(move("one", "b"))
    here.remove_vm("one")
    assert rooms(here, 3) == "abcd"
    here.put_operation(move("one", "b", status=Status.FAILED))
    assert rooms(here, 3) == "abcd"


def test_who_is_moved_by_others_takes_room_too_but_nobody_does_twice() -> None:
    incoming = {"one": ("c", None), "far": ("c", 2)}
    here = limited(incoming=incoming, operations={"x": move("one", "c"), "y": move("lost", "b")})
    assert (rooms(here, 1), rooms(here, 2)) == ("abcd", "abd")
    here.put_operation(replace(move("one", "c"), id="x", status=Status.FAILED))
    assert rooms(here, 2) == "abcd"
    here = limited(incoming=incoming, operations={"z": move("far", "c")})
    assert (rooms(here, 1), rooms(here, 2)) == ("abcd", "abd")
