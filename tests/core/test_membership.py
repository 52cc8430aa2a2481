"""Changes of the fleet: what is unique, what may not go, and what a live event keeps in place."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.builders import MINUTE, SECOND, Site, is_nothing, row

from forenotice.core import errors, membership
from forenotice.core.driver_calls import NotYet
from forenotice.core.fleet import Facts, Host, Listening, Policy, ScopeKind
from forenotice.core.operations import Kind, Status
from forenotice.core.windows import parse_all

GIVEN_ID = "8A506C35-679A-4F78-9D76-0000000000FF"

# Hosts


def test_a_host_comes_and_goes() -> None:
    site = Site()
    assert site.add_host("a", cordoned=True) == Host(name="a", cordoned=True)
    site.remove_host("a")
    assert site.state.hosts == {}
    assert site.actions(host="a") == ["host.added", "host.removed"]


def test_cordoning_twice_is_cordoning_once() -> None:
    site = row()
    site.cordon("a")
    site.cordon("a")
    site.cordon("a", cordoned=False)
    assert site.actions(host="a")[-2:] == ["host.cordoned", "host.uncordoned"]
    assert not site.state.hosts["a"].cordoned


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (lambda site: site.add_host("a"), errors.ConflictError, "host a exists already"),
        (lambda site: site.add_host("a b"), errors.RefusedError, "is not a host name"),
        (lambda site: site.cordon("z"), errors.NotFoundError, "there is no host 'z'"),
        (lambda site: site.remove_host("z"), errors.NotFoundError, "there is no host 'z'"),
        (lambda site: site.remove_host("a"), errors.ConflictError, "host a still has 1 VMs, such as web-0"),
        (lambda site: site.add_group("web"), errors.ConflictError, "group web exists already"),
        (lambda site: site.add_group("a b"), errors.RefusedError, "is not a group name"),
        (lambda site: site.add_group("x", ScopeKind.STANDALONE), errors.RefusedError, "a group is an availability-set"),
        (lambda site: site.add_group("x", terminate_notice=MINUTE), errors.RefusedError, "from 5 to 15 minutes"),
        (lambda site: site.remove_group("z"), errors.NotFoundError, "there is no group 'z'"),
        (lambda site: site.remove_group("web"), errors.ConflictError, "group web still has 3 VMs, such as web-0"),
        (lambda site: site.set_policy("vm:z"), errors.NotFoundError, "there is no vm 'z'"),
        (lambda site: site.set_policy("group:web", max_user_operations=0), errors.RefusedError, "from 1 to 1000000"),
        (lambda site: site.add_vm("web-0", "b"), errors.ConflictError, "VM web-0 exists already"),
        (lambda site: site.add_vm("a b", "b"), errors.RefusedError, "is not a VM name"),
        (lambda site: site.add_vm("x", "z"), errors.NotFoundError, "there is no host 'z'"),
        (lambda site: site.add_vm("x", "a", group="z"), errors.NotFoundError, "there is no group 'z'"),
        (lambda site: site.add_vm("x", "a", update_domain=-1), errors.RefusedError, "update domain -1 is out of range"),
        (lambda site: site.add_vm("x", "a", fault_domain=1000), errors.RefusedError, "fault domain 1000 is out of"),
        (lambda site: site.add_vm("x", "a", addresses=("x",)), errors.RefusedError, "'x' is not an IP address"),
        (lambda site: site.add_vm("x", "a", addresses=("fe80::1",)), errors.RefusedError, "fe80::1 is link-local"),
        (lambda site: site.add_vm("x", "a", addresses=("127.0.0.1",)), errors.RefusedError, "is a loopback address"),
        (lambda site: site.set_vm("z", spot=True), errors.NotFoundError, "there is no VM 'z'"),
        (
            lambda site: site.set_vm("web-0", colour="red"),
            errors.RefusedError,
            "a VM has no 'colour': it has addresses",
        ),
        (lambda site: site.set_vm("web-0", name="x"), errors.RefusedError, "a VM has no 'name'"),
        (lambda site: site.set_vm("web-0", host="z"), errors.NotFoundError, "there is no host 'z'"),
        (lambda site: site.set_vm("web-0", group="z"), errors.NotFoundError, "there is no group 'z'"),
        (lambda site: site.remove_vm("z"), errors.NotFoundError, "there is no VM 'z'"),
    ],
)
def test_what_cannot_be(command: Callable[[Site], object], error: type[Exception], said: str) -> None:
    site = row()
    journal = len(site.journal)
    with pytest.raises(error, match=said):
        command(site)
    assert len(site.journal) == journal


def test_a_host_that_vms_are_on_their_way_to_stays() -> None:
    site = row()
    redeploy = site.schedule(Kind.REDEPLOY, "web-0")
    site.remove_host("d")
    site.add_host("d")
    site.approve_all(redeploy)
    (task,) = site.tick()
    with pytest.raises(errors.ConflictError, match=f"operation {redeploy.id} is moving VMs to host d"):
        site.remove_host("d")
    site.succeed(task)
    site.run(3 * SECOND)
    site.set_vm("web-0", host="a")
    site.remove_host("d")


def test_a_host_that_all_have_left_may_go_before_that_has_ended() -> None:
    site = row()
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    (task,) = site.tick()
    site.succeed(task)
    site.remove_host("a")
    site.run(3 * SECOND)
    assert site.operation(failure).status is Status.COMPLETED


# Groups and policies


@pytest.mark.parametrize("kind", [kind for kind in ScopeKind if kind is not ScopeKind.STANDALONE])
def test_a_group_comes_and_goes(kind: ScopeKind) -> None:
    site = Site()
    scope = site.add_group("web", kind, terminate_notice=5 * MINUTE)
    assert (scope.key, scope.kind, scope.incarnation) == ("group:web", kind, 1)
    assert scope.policy.terminate_notice == 5 * MINUTE
    site.remove_group("web")
    assert site.state.scopes == {}
    assert site.actions(scope="group:web") == ["group.added", "group.removed"]


def test_a_policy_is_journalled_as_operators_write_it_and_once() -> None:
    site = row()
    draft = site.look(scopes=["group:web"])
    membership.set_policy(draft, "group:web", site.scope("group:web").policy)
    assert is_nothing(draft.changes())
    site.set_policy("group:web", terminate_notice=5 * MINUTE, max_user_operations=2)
    assert site.journal[-1].action == "scope.policy_changed"
    assert site.journal[-1].data["policy"] == {
        "listening": "always",
        "auto_approve_restart": False,
        "auto_approve_redeploy": False,
        "terminate_notice_minutes": 5,
        "max_user_operations": 2,
        "max_unavailable": None,
        "min_available": None,
        "windows": [],
        "shutdown_timeout_seconds": 60,
    }


# VMs


def test_a_standalone_vm_is_a_scope_of_its_own() -> None:
    site = row()
    vm = site.add_vm("db", "a", policy=Policy(), facts=Facts(size="small"), spot=True, vm_id=GIVEN_ID)
    assert (vm.scope, vm.group, vm.vm_id, vm.spot, vm.facts.size) == ("vm:db", None, GIVEN_ID, True, "small")
    assert site.scope("vm:db").kind is ScopeKind.STANDALONE
    assert site.add_vm("other", "a").vm_id
    assert site.actions(vm="db") == ["vm.added"]


def test_addresses_are_unique_in_the_fleet() -> None:
    site = row()
    site.add_vm("db", "a", addresses=("10.0.0.4", "FD00::4", "FD00:0::4"))
    assert site.vm("db").addresses == ("10.0.0.4", "fd00::4")
    with pytest.raises(errors.ConflictError, match=r"10\.0\.0\.4 of www belongs to db") as conflict:
        site.add_vm("www", "b", addresses=("10.0.0.4",))
    assert conflict.value.facts == {"vm": "www", "other": "db", "identity": "10.0.0.4"}
    site.add_vm("www", "b", addresses=("10.0.0.5",))
    with pytest.raises(errors.ConflictError, match="belongs to db"):
        site.set_vm("www", addresses=("10.0.0.4",))
    site.set_vm("db", addresses=("10.0.0.6",))
    site.set_vm("www", addresses=("10.0.0.4", "10.0.0.5"))


def test_an_address_of_before_stays_though_it_would_not_be_taken_now() -> None:
    site = row()
    site.add_vm("db", "a")
    site.state.vms["db"] = replace(site.vm("db"), addresses=("fe80::4",))
    assert site.set_vm("db", spot=True).addresses == ("fe80::4",)
    assert site.set_vm("db", addresses=("fe80::4", "10.0.0.4")).addresses == ("fe80::4", "10.0.0.4")
    with pytest.raises(errors.RefusedError, match="link-local"):
        site.set_vm("db", addresses=("fe80::5",))
    assert site.set_vm("db", addresses=("10.0.0.4",)).addresses == ("10.0.0.4",)
    with pytest.raises(errors.RefusedError, match="link-local"):
        site.set_vm("db", addresses=("fe80::4",))


def test_a_vm_is_changed_in_what_is_named_only() -> None:
    site = row()
    site.add_vm("db", "a", addresses=("10.0.0.4",), facts=Facts(size="small"))
    before = site.vm("db")
    after = site.set_vm("db", spot=True, vm_id=GIVEN_ID)
    assert (after.spot, after.vm_id) == (True, GIVEN_ID)
    assert (after.addresses, after.facts, after.host) == (before.addresses, before.facts, "a")
    assert site.journal[-1].data["fields"] == ["spot", "vm_id"]
    assert site.set_vm("db", vm_id=None).vm_id == GIVEN_ID


def test_a_change_that_changes_nothing_is_none() -> None:
    site = row()
    journal = len(site.journal)
    site.set_vm("web-0", host="a", group="web", update_domain=0)
    assert len(site.journal) == journal


def test_moving_a_vm_makes_room() -> None:
    site = row(hosts="abc")
    site.add_host("d", cordoned=True)
    site.schedule(Kind.LIVE_MIGRATION, "a")
    site.wait(20 * MINUTE)
    site.tick()
    (held,) = site.live()
    assert held.held
    site.set_vm("web-1", host="d")
    assert site.operation(held).due_at == site.now
    site.tick()
    assert site.operation(held).targets == {"web-0": "b"}


def test_regrouping_a_vm() -> None:
    site = row()
    site.add_vm("db", "d", update_domain=3)
    site.set_vm("db", group="web")
    assert site.vm("db").scope == "group:web"
    assert site.actions(vm="db")[-2:] == ["vm.changed", "vm.left"]
    assert {entry.scope for entry in site.journal[-2:]} == {"vm:db", "group:web"}
    site.set_vm("db", group=None)
    assert site.vm("db").scope == "vm:db"


@pytest.mark.parametrize("kind", [Kind.HOST_UPDATE, Kind.RESTART])
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (lambda site: site.remove_vm("web-0"), "forgotten"),
        (lambda site: site.set_vm("web-0", host="d"), "moved"),
        (lambda site: site.set_vm("web-0", group=None), "regrouped"),
        (lambda site: site.set_vm("web-0", update_domain=4), "given another update domain"),
        (lambda site: site.set_vm("web-0", spot=True), "made spot or regular"),
    ],
)
def test_a_vm_that_a_live_event_names_stays(kind: Kind, command: Callable[[Site], object], what: str) -> None:
    site = row()
    operation = site.schedule(kind, "a" if kind.traits.of_host else "web-0")
    with pytest.raises(
        errors.ConflictError, match=f"web-0 cannot be {what} while operation {operation.id}"
    ) as conflict:
        command(site)
    assert conflict.value.facts["operation"] == operation.id
    site.cancel(operation.id)
    command(site)


def test_a_vm_that_a_live_event_names_may_change_otherwise() -> None:
    site = row()
    site.schedule(Kind.HOST_UPDATE, "a")
    site.set_vm("web-0", addresses=("10.0.0.4",), facts=Facts(size="large"))
    site.set_vm("web-1", host="d")


def test_a_vm_that_is_being_deleted_without_an_event_stays() -> None:
    site = row()
    deletion = site.schedule(Kind.DELETION, "web-0")
    (task,) = site.tick()
    site.report(task.operation, NotYet(again_at=site.now + MINUTE))
    with pytest.raises(errors.ConflictError, match=rf"{deletion.id} \(deletion, Started\)"):
        site.remove_vm("web-0")


def test_nobody_comes_to_a_host_whose_maintenance_he_would_not_be_told_of() -> None:
    site = row()
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    with pytest.raises(errors.ConflictError, match=r"late would not be told: .* cancel operation") as refused:
        site.add_vm("late", "a")
    assert refused.value.facts == {"host": "a", "operation": operation.id, "status": Status.SCHEDULED}
    site.add_vm("late", "d")
    with pytest.raises(errors.ConflictError, match="late would not be told"):
        site.set_vm("late", host="a")
    site.cancel(operation.id)
    site.set_vm("late", host="a")
    assert site.vm("late").host == "a"


def test_windows_are_heeded_at_once_also_where_the_same_change_lets_a_scope_listen() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", listening=Listening.ALWAYS, windows=parse_all(["daily 22:00-04:00 UTC"]))
    assert not site.event(operation).approved
    assert site.operation(operation).due_at == site.now


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"": "r1"}, "'' is not the key of a label: 1 to 64 letters, digits, '.', '_', '/' or '-'"),
        ({"a=b": "r1"}, "'a=b' is not the key of a label"),
        ({"rack": ""}, "'' is not the value of a label"),
        ({"rack": "r 1"}, "'r 1' is not the value of a label"),
        ({"rack": "x" * 65}, "is not the value of a label"),
        ({str(number): "x" for number in range(65)}, "65 labels are too many: a host has at most 64"),
    ],
)
def test_what_no_host_can_be_labelled(labels: dict[str, str], said: str) -> None:
    site = Site()
    with pytest.raises(errors.RefusedError, match=re.escape(said)), site.transaction(hosts=["a"]) as draft:
        membership.add_host(draft, Host(name="a", labels=labels))
    site.add_host("a")
    with pytest.raises(errors.RefusedError, match=re.escape(said)), site.transaction(hosts=["a"]) as draft:
        membership.set_host(draft, Host(name="a", labels=labels))


@pytest.mark.parametrize("address", ["", "two words", "bell\a", "h\u00f6st", "x" * 257])
def test_what_is_no_address_of_a_host(address: str) -> None:
    with pytest.raises(errors.RefusedError), Site().transaction(hosts=["a"]) as draft:
        membership.add_host(draft, Host(name="a", address=address))


@pytest.mark.parametrize(
    ("inventory", "address", "said"),
    [
        ("vmware", "esx://a", "'vmware' is no inventory: give libvirt, or none"),
        ("libvirt", None, "inventory libvirt needs the host's connection URI"),
        ("libvirt", "10.0.0.1", "such as qemu\\+ssh://rack1-01/system"),
        ("libvirt", "qemu+ssh://a/system?command=/bin/sh", "names a program \\(command=\\)"),
    ],
)
def test_what_is_no_inventory_of_a_host(inventory: str, address: str | None, said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said), Site().transaction(hosts=["a"]) as draft:
        membership.add_host(draft, Host(name="a", inventory=inventory, address=address))


def test_labels_are_changed_and_journalled_once() -> None:
    site = Site()
    site.add_host("a")
    for _ in range(2):
        with site.transaction(hosts=["a"]) as draft:
            membership.set_host(draft, Host(name="a", labels={"rack": "r1"}, address="10.0.0.1"))
    assert site.state.hosts["a"].labels == {"rack": "r1"}
    assert site.actions(host="a") == ["host.added", "host.changed"]
    assert site.journal[-1].data == {
        "fields": ["labels", "address"],
        "labels": {"rack": "r1"},
        "capacity": None,
        "address": "10.0.0.1",
        "inventory": None,
    }


# Capacity


def test_what_does_not_fit_is_not_placed() -> None:
    site = Site()
    site.add_host("a", capacity=3)
    site.add_host("b")
    site.add_vm("small", "a")
    site.add_vm("big", "b", size=4)
    commands: list[Callable[[], object]] = [
        lambda: site.add_vm("new", "a", size=2.5),
        lambda: site.set_vm("big", host="a", size=2.5),
    ]
    for command in commands:
        with pytest.raises(errors.ConflictError, match=r"host a has not enough room for (new|big)") as refused:
            command()
        assert refused.value.message.endswith(
            ": it has a capacity of 3, of which 3.5 would be used; choose another host, or raise its capacity"
        )
        assert {**refused.value.facts, "vm": ""} == {"host": "a", "vm": "", "capacity": 3, "used": 3.5}
    site.set_vm("big", host="a", size=2)
    assert site.vm("big").host == "a"


def test_tenths_add_up() -> None:
    site = Site()
    site.add_host("a", capacity=0.3)
    for number in range(3):
        site.add_vm(f"vm-{number}", "a", size=0.1)
    with pytest.raises(errors.ConflictError, match=r"of which 0\.4 would be used"):
        site.add_vm("vm-3", "a", size=0.1)


@pytest.mark.parametrize("value", [-1, -0.001, 1e15 + 1, float("nan"), float("inf")])
def test_what_is_no_amount(value: float) -> None:
    site = Site()
    said = "cannot be .*: give a number from 0 to 1000000000000000, in any unit"
    with pytest.raises(errors.RefusedError, match=f"capacity {said}"):
        site.add_host("a", capacity=value)
    site.add_host("a", capacity=7.0)
    assert repr(site.state.hosts["a"].capacity) == "7"
    with pytest.raises(errors.RefusedError, match=f"capacity {said}"):
        site.set_capacity("a", value)
    with pytest.raises(errors.RefusedError, match=f"size {said}"):
        site.add_vm("new", "a", size=value)


@pytest.mark.parametrize(
    "relief",
    [
        lambda site: site.set_capacity("b", 9),
        lambda site: site.set_capacity("b", None),
        lambda site: site.set_vm("other", size=0),
        lambda site: site.remove_vm("other"),
    ],
)
def test_what_makes_room_lets_go_on_what_waited_for_it(relief: Callable[[Site], object]) -> None:
    site = Site()
    site.add_host("a")
    site.add_host("b", capacity=2)
    site.add_vm("db", "a", policy=Policy(listening=Listening.NEVER))
    site.add_vm("other", "b", size=2)
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.wait(16 * MINUTE)
    site.tick()
    assert (site.operation(operation).status, site.operation(operation).held) == (Status.SCHEDULED, True)
    relief(site)
    site.tick()
    assert site.operation(operation).targets == {"db": "b"}
