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
