"""Hosts that can take a VM: in order, and always as the world has become."""

from dataclasses import replace
from typing import Any

import pytest
from tests.core.builders import NOW

from forenotice.core.draft import Draft, World
from forenotice.core.fleet import Host, Vm
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import Timing

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
