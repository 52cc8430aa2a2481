"""From the fleet as it is to the fleet as it is described, in one step."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.core.builders import Site

from forenotice.core import errors
from forenotice.core.fleet import Listening, Policy, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.reconciliation import Difference, FleetSpec, GroupSpec, HostSpec, compare, reconcile

WEB = GroupSpec(kind=ScopeKind.AVAILABILITY_SET)


def spec_of(*vms: VmSpec, hosts: str = "ab", groups: dict[str, GroupSpec] | None = None, **rest: Any) -> FleetSpec:
    return FleetSpec(
        hosts={name: HostSpec() for name in hosts},
        groups={"web": WEB} if groups is None else groups,
        vms={vm.name: vm for vm in vms},
        **rest,
    )


WEB_0 = VmSpec(name="web-0", host="a", group="web", addresses=("10.0.0.1",))
WEB_1 = VmSpec(name="web-1", host="b", group="web", update_domain=1, addresses=("10.0.0.2",))
DB = VmSpec(name="db", host="a")
BASE = spec_of(WEB_0, WEB_1, DB)


def apply(site: Site, spec: FleetSpec, *, prune: bool = False, move: bool = False) -> list[str]:
    """What differed, shortly."""
    return [f"{each.action} {each.noun} {each.name}" for each in differences(site, spec, prune=prune, move=move)]


def differences(site: Site, spec: FleetSpec, *, prune: bool = False, move: bool = False) -> list[Difference]:
    with site.transaction(everything=True) as draft:
        return reconcile(draft, spec, prune=prune, move=move)


def compared(site: Site, spec: FleetSpec) -> list[Difference]:
    return compare(site.state, spec)


def founded() -> Site:
    site = Site()
    apply(site, BASE)
    return site


def test_changes_tell_what_was_and_what_becomes() -> None:
    site = founded()
    wanted = spec_of(
        WEB_0,
        WEB_1,
        replace(DB, host="b", spot=True),
        groups={"web": GroupSpec(kind=ScopeKind.AVAILABILITY_SET, policy=Policy(auto_approve_restart=True))},
        policies={"db": Policy(max_user_operations=1)},
    )
    wanted = replace(wanted, hosts={**wanted.hosts, "a": HostSpec(cordoned=True)})
    expected = [
        Difference(action="change", noun="host", name="a", fields={"cordoned": (False, True)}),
        Difference(action="change", noun="group", name="web", fields={"auto_approve_restart": (False, True)}),
        Difference(action="change", noun="vm", name="db", fields={"host": ("a", "b"), "spot": (False, True)}),
        Difference(action="change", noun="policy of vm", name="db", fields={"max_user_operations": (None, 1)}),
    ]
    assert compared(site, wanted) == expected
    assert differences(site, wanted, move=True) == expected
    assert site.state.hosts["a"].cordoned
    assert site.scope("vm:db").policy == Policy(max_user_operations=1)


def test_what_is_not_described_stays_unless_pruned() -> None:
    site = founded()
    rest = spec_of(DB, hosts="a", groups={})
    assert apply(site, rest) == []
    assert apply(site, rest, prune=True) == ["remove vm web-0", "remove vm web-1", "remove group web", "remove host b"]
    assert (set(site.state.hosts), set(site.state.scopes), set(site.state.vms)) == ({"a"}, {"vm:db"}, {"db"})


def test_a_host_stays_cordoned_unless_told_otherwise() -> None:
    site = founded()
    apply(site, replace(BASE, hosts={"a": HostSpec(cordoned=True), "b": HostSpec()}))
    assert apply(site, BASE) == []
    assert site.state.hosts["a"].cordoned
    assert apply(site, replace(BASE, hosts={"a": HostSpec(cordoned=False)})) == ["change host a"]
    assert not site.state.hosts["a"].cordoned


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (spec_of(hosts="/"), r"^hosts\./: '/' is not a host name"),
        (spec_of(groups={"a b": WEB}), r"^groups\.a b: 'a b' is not a group name"),
        (spec_of(VmSpec(name="\0", host="a")), r"is not a VM name"),
        (spec_of(replace(DB, host="")), r"^vms\.db: '' is not a host name"),
        (replace(BASE, hosts={"a": HostSpec(labels={"rack": "r 1"})}), r"^hosts\.a: 'r 1' is not the value of a label"),
        (replace(BASE, hosts={"new": HostSpec(capacity=-1)}), r"^hosts\.new: capacity cannot be -1"),
        (spec_of(replace(DB, size=-1)), r"^vms\.db: size cannot be -1"),
        (spec_of(VmSpec(name="new", host="a", size=-1)), r"^vms\.new: size cannot be -1"),
        (spec_of(replace(DB, vm_id="")), r"^vms\.db: '' is not a vmId"),
        (spec_of(replace(DB, addresses=("nope",))), r"^vms\.db: 'nope' is not an IP address"),
        (spec_of(replace(WEB_0, update_domain=-1)), r"^vms\.web-0: update domain -1 is out of range"),
        (
            spec_of(groups={"web": replace(WEB, policy=Policy(max_user_operations=0))}),
            r"^groups\.web: max_user_operations",
        ),
        (spec_of(DB, policies={"db": Policy(max_user_operations=0)}), r"^vms\.db: max_user_operations must be"),
        (spec_of(replace(WEB_0, fault_domain=-1)), r"^vms\.web-0: fault domain -1 is out of range"),
    ],
)
def test_what_never_fits_is_not_compared(wanted: FleetSpec, said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        compared(founded(), wanted)


def test_amounts_are_compared_as_they_are_shown() -> None:
    wanted = replace(BASE, hosts={"a": HostSpec(capacity=64.0)}, vms={"db": replace(DB, size=2.0)})
    shown = {
        each.name: {field: str(value) for field, (_, value) in each.fields.items()}
        for each in compared(founded(), wanted)
    }
    assert (shown["a"], shown["db"]) == ({"capacity": "64"}, {"size": "2"})


def test_a_host_is_changed_in_all_that_a_file_describes() -> None:
    site = founded()
    described = HostSpec(
        cordoned=True, labels={"rack": "r1"}, capacity=64, address="qemu+ssh://a/system", inventory="libvirt"
    )
    wanted = replace(BASE, hosts={**BASE.hosts, "a": described})
    (change,) = differences(site, wanted)
    assert {name: value for name, (_, value) in change.fields.items()} == asdict(described)
    assert {name: getattr(site.state.hosts["a"], name) for name in asdict(described)} == asdict(described)
    assert compared(site, wanted) == []


def test_addresses_and_places_may_be_swapped() -> None:
    site = founded()
    swapped = spec_of(
        replace(WEB_0, host="b", addresses=WEB_1.addresses), replace(WEB_1, host="a", addresses=WEB_0.addresses), DB
    )
    assert apply(site, swapped, move=True) == ["change vm web-0", "change vm web-1"]
    assert (site.vm("web-0").host, site.vm("web-0").addresses) == ("b", ("10.0.0.2",))


def test_a_vm_may_take_the_address_of_one_that_goes() -> None:
    site = founded()
    assert apply(site, spec_of(WEB_0, replace(DB, addresses=WEB_1.addresses)), prune=True) == [
        "remove vm web-1",
        "change vm db",
    ]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (spec_of(WEB_0, replace(WEB_1, host="a"), DB), "cannot share host a"),
        (spec_of(replace(DB, host="nope")), r"^vms\.db: there is no host 'nope'"),
        (spec_of(VmSpec(name="new", host="nope")), r"^vms\.new: there is no host 'nope'"),
        (spec_of(groups={"g": GroupSpec(kind=ScopeKind.STANDALONE)}), r"^groups\.g: a group is"),
        (spec_of(WEB_0, WEB_1, replace(DB, addresses=("10.0.0.1",))), r"10\.0\.0\.1 of db belongs to web-0"),
        (
            spec_of(WEB_0, WEB_1, DB, groups={"web": GroupSpec(kind=ScopeKind.CLOUD_SERVICE)}),
            "group web is of kind availability-set and cannot become cloud-service",
        ),
    ],
)
def test_the_rules_hold_for_the_result(wanted: FleetSpec, said: str) -> None:
    site = founded()
    before = dict(site.state.vms)
    with pytest.raises(errors.ForenoticeError, match=said):
        apply(site, wanted, move=True)
    assert site.state.vms == before


def moved() -> Site:
    """The service has moved all VMs of host a to host c."""
    site = founded()
    apply(site, spec_of(hosts="abc"))
    for name in ("web-0", "db"):
        site.set_vm(name, host="c")
    return site


KEPT = [
    Difference(action="keep", noun="vm", name="web-0", fields={"host": ("c", "a")}),
    Difference(action="keep", noun="vm", name="db", fields={"host": ("c", "a")}),
]


def test_other_fields_of_a_vm_that_runs_elsewhere_are_applied() -> None:
    site = moved()
    wanted = spec_of(WEB_0, WEB_1, replace(DB, spot=True, addresses=("10.0.0.3",)), VmSpec(name="new", host="a"))
    changed = {"addresses": ((), ("10.0.0.3",)), "spot": (False, True)}
    assert differences(site, wanted) == [
        KEPT[0],
        Difference(action="change", noun="vm", name="db", fields=changed),
        KEPT[1],
        Difference(action="add", noun="vm", name="new"),
    ]
    assert (site.vm("db").host, site.vm("db").spot, site.vm("new").host) == ("c", True, "a")
    assert differences(site, wanted) == KEPT


def test_a_vm_that_exists_may_be_described_on_a_host_that_is_gone() -> None:
    site = moved()
    wanted = spec_of(WEB_0, WEB_1, DB, hosts="bc")
    assert apply(site, wanted, prune=True) == ["keep vm web-0", "keep vm db", "remove host a"]
    with pytest.raises(errors.NotFoundError, match=r"^vms\.web-0: there is no host 'a'"):
        apply(site, wanted, move=True)


def test_a_host_to_which_the_service_moved_vms_is_not_pruned() -> None:
    site = moved()
    with pytest.raises(errors.ConflictError, match=r"not name host c, where (web-0|db) runs: .* \(2\)"):
        apply(site, BASE, prune=True)
    assert apply(site, BASE, prune=True, move=True) == ["change vm web-0", "change vm db", "remove host c"]


def test_the_rules_hold_for_where_vms_really_run() -> None:
    site = moved()
    with pytest.raises(errors.ConflictError, match=r"web-2 .* and web-0 .* cannot share host c|web-0 .* and web-2"):
        apply(site, spec_of(WEB_0, WEB_1, DB, replace(WEB_1, name="web-2", host="c", addresses=()), hosts="abc"))


def test_what_a_live_event_names_may_be_described_elsewhere() -> None:
    site = moved()
    site.set_policy("group:web", listening=Listening.ALWAYS)
    operation = site.schedule(Kind.HOST_UPDATE, "c")
    assert differences(site, BASE)[1:] == KEPT
    with pytest.raises(errors.ConflictError, match=operation.id):
        apply(site, BASE, move=True)


def test_labels_are_as_the_file_says() -> None:
    site = founded()
    labelled = replace(BASE, hosts={"a": HostSpec(labels={"rack": "r1"}), "b": HostSpec()})
    (found,) = differences(site, labelled)
    assert (found.name, found.fields) == ("a", {"labels": ({}, {"rack": "r1"})})
    assert differences(site, labelled) == []
    (found,) = differences(site, BASE)
    assert found.fields == {"labels": ({"rack": "r1"}, {})}


def test_capacity_holds_for_the_result() -> None:
    site = founded()
    small = {"a": HostSpec(capacity=2), "b": HostSpec(capacity=1)}
    late = VmSpec(name="late", host="a")
    assert apply(site, replace(BASE, hosts=small)) == ["change host a", "change host b"]
    assert apply(site, replace(BASE, hosts=small)) == []
    with pytest.raises(
        errors.ConflictError, match="host a has not enough room for late: it has a capacity of 2, of whi"
    ):
        apply(site, replace(BASE, hosts=small, vms={**BASE.vms, "late": late}))
    away = replace(DB, host="b")
    with pytest.raises(errors.ConflictError, match="host b has not enough room for db"):
        apply(site, replace(BASE, hosts=small, vms={**BASE.vms, "db": away}), move=True)
    larger = {"a": HostSpec(capacity=2), "b": HostSpec(capacity=2)}
    moved = replace(BASE, hosts=larger, vms={**BASE.vms, "db": away, "late": late})
    assert apply(site, moved, move=True) == ["change host b", "change vm db", "add vm late"]
    assert apply(site, replace(moved, hosts={"a": HostSpec(capacity=0), "b": HostSpec()})) == [
        "change host a",
        "change host b",
    ]
