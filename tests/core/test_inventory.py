"""The fleet follows what hosts say of their domains; what it cannot follow is drift until reality fits again."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.builders import HOUR, Site, is_nothing, row

from forenotice.core import errors, inventory
from forenotice.core.draft import Changes
from forenotice.core.fleet import DriftKind, ScopeKind, Vm
from forenotice.core.inventory import Domain, DomainFacts, DomainState, Inventory, Rule
from forenotice.core.operations import Kind, Status

RUNNING, OFF, ARRIVING = DomainState.RUNNING, DomainState.OFF, DomainState.ARRIVING
Seen = Mapping[str, Sequence[Domain]]


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def domain(name: str, number: int = 0, state: DomainState = RUNNING, **facts: Any) -> Domain:
    more = {key: facts.pop(key) for key in ("unreadable", "operation") if key in facts}
    return Domain(name=name, uuid=uuid(number or crc32(name.encode())), state=state, facts=DomainFacts(**facts), **more)


def of(vm: Vm, state: DomainState = RUNNING, **facts: Any) -> Domain:
    return replace(domain(vm.name, state=state, **facts), uuid=vm.vm_id.lower())


def observe(site: Site, seen: Seen, *, rules: Sequence[Rule] = ()) -> list[Changes]:
    """What each host says is recorded until nothing changes; the same twice must change nothing at once."""
    found, made = Inventory(seen, rules), []

    def look(host: str) -> Changes:
        draft = site.look(everything=True)
        inventory.observe(draft, host, found)
        return site.keep(draft)

    for _ in range(5):
        changes = []
        for host in seen:
            changes.append(look(host))
            assert is_nothing(look(host))
        made += changes
        if all(map(is_nothing, changes)):
            return made
    raise AssertionError("it never settles")


def drift(site: Site) -> dict[tuple[str, str], DriftKind]:
    return {key: each.kind for key, each in site.state.drift.items()}


def reality(site: Site, **moved: str) -> dict[str, list[Domain]]:
    """All VMs run where the fleet has them, but for those that are moved."""
    found: dict[str, list[Domain]] = {host: [] for host in site.state.hosts}
    for vm in site.state.vms.values():
        found[moved.get(vm.name.replace("-", "_"), vm.host)].append(of(vm))
    return found


# What appears


def test_what_appears_is_added_with_what_its_description_and_the_rules_say() -> None:
    site = Site()
    site.add_hosts("ab")
    rules = [
        Rule(name="web-*", host="a", facts=DomainFacts(group="web", update_domain=1, addresses=("10.0.0.9",))),
        Rule(name="web-*", facts=DomainFacts(group="web", update_domain=2, spot=True)),
        Rule(name="infra-*", ignore=True),
    ]
    web_0 = domain("web-0", 1, update_domain=3, size=2.0, kind=ScopeKind.PLACEMENT_GROUP)
    seen = {"a": [web_0, domain("infra-1"), domain("db", 2, OFF)], "b": [domain("web-1", 3), domain("Z", 4, ARRIVING)]}
    observe(site, seen, rules=rules)
    assert {vm.name: (vm.host, vm.vm_id, vm.group, vm.domains) for vm in site.state.vms.values()} == {
        "web-0": ("a", uuid(1), "web", (3, 0)),
        "web-1": ("b", uuid(3), "web", (2, 0)),
        "db": ("a", uuid(2), None, (0, 0)),
    }
    assert (site.vm("web-0").size, site.vm("web-0").addresses, site.vm("web-1").spot) == (2, ("10.0.0.9",), True)
    assert site.scope("group:web").kind is ScopeKind.PLACEMENT_GROUP
    assert site.actions() == ["host.added", "host.added", "group.added", *["vm.added"] * 3]
    assert drift(site) == {}


@pytest.mark.parametrize(
    ("strange", "kind", "said"),
    [
        (domain("a b"), DriftKind.REFUSED, "is not a VM name"),
        (domain("x", addresses=("10.0.0.1",)), DriftKind.REFUSED, "10.0.0.1 of x belongs to web-0"),
        (domain("x", addresses=("nowhere",)), DriftKind.REFUSED, "'nowhere' is not an IP address"),
        (domain("x", group="web", kind=ScopeKind.CLOUD_SERVICE), DriftKind.REFUSED, "is of kind availability-set, and"),
        (domain("x", group="web", update_domain=7), DriftKind.REFUSED, "cannot share host a"),
        (domain("x", group="new", size=99.0), DriftKind.REFUSED, "host a has not enough room for x"),
        (domain("web-1", 7), DriftKind.REFUSED, "VM web-1 of the fleet has another vmId: rename this domain"),
        (domain("x", group="no group"), DriftKind.REFUSED, "is not a group name"),
        (domain("x", unreadable="spot='x' is neither"), DriftKind.UNREADABLE, "spot='x' is neither"),
    ],
)
def test_what_cannot_be_added_is_drift_until_it_goes(strange: Domain, kind: DriftKind, said: str) -> None:
    site = row()
    site.set_vm("web-0", addresses=("10.0.0.1",))
    site.set_capacity("a", 10)
    real, scopes = reality(site), set(site.state.scopes)
    observe(site, {**real, "a": [*real["a"], strange]})
    assert drift(site) == {("a", strange.name): kind}
    assert said in site.state.drift["a", strange.name].reason
    assert set(site.state.scopes) == scopes
    assert (site.journal[-1].action, site.journal[-1].host) == ("drift.noticed", "a")
    assert site.journal[-1].vm == ("web-1" if strange.name == "web-1" else None)
    observe(site, real)
    assert (drift(site), site.journal[-1].action) == ({}, "drift.settled")


def test_drift_lasts_since_it_began_and_tells_a_new_reason() -> None:
    site = row()
    real = reality(site)
    observe(site, {**real, "a": [*real["a"], domain("x", addresses=("1.2.3",))]})
    since, site.now = site.now, site.now + HOUR
    observe(site, {**real, "a": [*real["a"], domain("x", addresses=("1.2.3.4.5",))]})
    assert site.state.drift["a", "x"].since == since
    assert "'1.2.3.4.5'" in site.state.drift["a", "x"].reason
    observe(site, {**real, "a": [*real["a"], domain("x", unreadable="what")]})
    assert site.state.drift["a", "x"].since == site.now


def test_a_host_whose_maintenance_is_announced_takes_no_stranger_yet() -> None:
    site = row()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    real = reality(site)
    observe(site, {**real, "a": [*real["a"], domain("x")]})
    assert "of which x would not be told" in site.state.drift["a", "x"].reason
    site.cancel(operation.id)
    observe(site, {**real, "a": [*real["a"], domain("x")]})
    assert (drift(site), site.vm("x").host) == ({}, "a")


def test_the_same_domain_off_elsewhere_is_no_second_vm() -> None:
    site = Site()
    site.add_hosts("ab")
    observe(site, {"a": [domain("x", 1, OFF)], "b": [domain("x", 1)]})
    assert (site.vm("x").host, drift(site)) == ("b", {})


# What vanishes


def test_what_vanishes_is_missing_until_it_is_there_again() -> None:
    site = row()
    real = reality(site)
    observe(site, {**real, "b": []})
    assert drift(site) == {("b", "web-1"): DriftKind.MISSING}
    assert site.actions(vm="web-1")[-1] == "vm.missing"
    observe(site, real)
    assert (drift(site), site.actions(vm="web-1")[-1]) == ({}, "vm.found")


def test_what_is_missing_goes_when_an_operator_removes_it() -> None:
    site = row()
    observe(site, {**reality(site), "b": []})
    site.remove_vm("web-1")
    observe(site, {**reality(site), "b": []})
    assert drift(site) == {}
    assert site.actions(vm="web-1")[-2:] == ["vm.missing", "vm.removed"]


def test_nothing_is_marked_of_a_host_that_does_not_answer() -> None:
    site = row()
    real = reality(site)
    del real["b"]
    made = observe(site, real)
    assert all(map(is_nothing, made))


# What moves


def test_what_somebody_has_moved_is_moved_and_leaves_what_is_scheduled() -> None:
    site = row()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    observe(site, reality(site, web_0="d"))
    assert (site.vm("web-0").host, drift(site)) == ("d", {})
    assert site.operation(operation).status is Status.CANCELED
    moved = next(entry for entry in site.journal if entry.action == "vm.moved")
    assert (moved.host, moved.operation, moved.data) == ("d", None, {"source": "a"})


def test_a_vm_that_was_missing_and_runs_elsewhere_is_moved_although_its_host_is_silent() -> None:
    site = row()
    observe(site, {**reality(site), "a": []})
    real = reality(site, web_0="d")
    del real["a"]
    observe(site, real)
    assert (site.vm("web-0").host, drift(site)) == ("d", {})


def test_one_that_is_off_is_moved_only_if_its_host_answers_without_it() -> None:
    site = row()
    real = reality(site, web_0="d")
    real["d"] = [of(site.vm("web-0"), OFF)]
    a = real.pop("a")
    observe(site, real)
    assert site.vm("web-0").host == "a"
    observe(site, {**real, "a": [of(site.vm("web-0"), OFF)]})
    assert site.vm("web-0").host == "a"
    observe(site, {**real, "a": a})
    assert (site.vm("web-0").host, drift(site)) == ("d", {})


def test_one_that_is_off_on_several_others_is_missing() -> None:
    site = row()
    off = of(site.vm("web-0"), OFF)
    observe(site, {**reality(site), "a": [], "c": [of(site.vm("web-2")), off], "d": [off]})
    assert drift(site) == {("a", "web-0"): DriftKind.MISSING}


def test_a_vm_that_runs_on_two_hosts_stays_and_both_say_so() -> None:
    site = row()
    real = reality(site)
    real["d"] = [of(site.vm("web-0"))]
    observe(site, real)
    assert drift(site) == dict.fromkeys((("a", "web-0"), ("d", "web-0")), DriftKind.DUPLICATE)
    assert "web-0 runs on a and d at the same time" in site.state.drift["a", "web-0"].reason
    assert site.vm("web-0").host == "a"
    observe(site, {**real, "a": []})
    assert (drift(site), site.vm("web-0").host) == ({}, "d")


def test_of_two_other_hosts_that_run_it_its_own_says_nothing() -> None:
    site = row("abcde")
    real = {**reality(site), "a": [], "d": [of(site.vm("web-0"))], "e": [of(site.vm("web-0"))]}
    observe(site, real)
    assert set(drift(site)) == {("d", "web-0"), ("e", "web-0")}


def test_a_migration_by_hand_is_no_drift_while_it_lasts() -> None:
    site = row()
    real = reality(site)
    arriving = [of(site.vm("web-0"), ARRIVING)]
    for source in (real["a"], arriving):
        made = observe(site, {**real, "a": source, "d": arriving})
        assert all(map(is_nothing, made))


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda site: site.schedule(Kind.HOST_UPDATE, "b"), "of which web-0 would not be told"),
        (lambda _: None, "cannot share host b"),
    ],
)
def test_where_a_vm_must_not_be_it_is_misplaced(prepare: Any, said: str) -> None:
    site = row()
    prepare(site)
    observe(site, reality(site, web_0="b"))
    assert drift(site) == {("b", "web-0"): DriftKind.MISPLACED}
    assert said in site.state.drift["b", "web-0"].reason
    assert site.vm("web-0").host == "a"


def test_one_that_is_described_anew_is_no_longer_misplaced() -> None:
    site = row()
    real = reality(site, web_0="b")
    observe(site, real)
    assert drift(site) == {("b", "web-0"): DriftKind.MISPLACED}
    observe(site, {**real, "b": [of(site.vm("web-0"), group="new"), of(site.vm("web-1"))]})
    assert (site.vm("web-0").host, site.vm("web-0").group, drift(site)) == ("b", "new", {})


# Operations


def test_an_operation_that_has_started_is_not_disturbed() -> None:
    site = row()
    missing = {**reality(site), "a": []}
    observe(site, missing)
    site.start(Kind.REDEPLOY, "web-0")
    operation = next(iter(site.live()))
    made = observe(site, {**missing, operation.targets["web-0"]: [of(site.vm("web-0"), operation=operation.id)]})
    assert all(map(is_nothing, made))
    assert drift(site) == {("a", "web-0"): DriftKind.MISSING}
    site.run(HOUR)
    observe(site, reality(site))
    assert (drift(site), site.vm("web-0").host) == ({}, operation.targets["web-0"])


def test_what_a_driver_has_prepared_is_no_vm_while_its_operation_lives() -> None:
    site = row()
    operation = site.start(Kind.RESTART, "web-0")
    real = reality(site)
    prepared = {**real, "d": [domain("x", 9, OFF, operation=operation.id)]}
    made = observe(site, prepared)
    assert all(map(is_nothing, made))
    site.run(HOUR)
    observe(site, prepared)
    assert site.vm("x").host == "d"


# Who is who


def test_a_vm_is_known_by_its_uuid_and_else_by_its_name() -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_vm("known", "a", vm_id=uuid(1))
    site.add_vm("described", "b")
    seen = {"a": [domain("renamed", 1)], "b": [domain("described", 7)], "c": [domain("known", 2)]}
    observe(site, seen)
    assert set(site.state.vms) == {"known", "described"}
    assert drift(site) == {("c", "known"): DriftKind.REFUSED}
    observe(site, {"a": [domain("described", 1)], "b": [], "c": [domain("described", 7)]})
    assert (site.vm("known").host, site.vm("described").host, drift(site)) == ("a", "c", {})


def test_a_namesake_is_not_taken_for_a_vm_whose_host_is_silent() -> None:
    site = Site()
    site.add_hosts("ab")
    seen = {"a": [domain("db", 1)], "b": [domain("db", 2)]}
    observe(site, seen)
    assert drift(site) == {("b", "db"): DriftKind.REFUSED}
    del seen["a"]
    made = observe(site, seen)
    assert all(map(is_nothing, made))
    assert site.vm("db").host == "a"


# What a description says


def test_a_description_that_changes_is_followed() -> None:
    site = row()
    site.add_vm("db", "d", addresses=("10.0.0.1",))
    real = reality(site)
    told = of(site.vm("db"), group="new", update_domain=2, spot=True, addresses=("10.0.0.2",), size=3.0)
    observe(site, {**real, "d": [told]})
    db = site.vm("db")
    assert (db.group, db.update_domain, db.spot, db.addresses, db.size) == ("new", 2, True, ("10.0.0.2",), 3)
    assert site.actions(vm="db")[-2:] == ["vm.changed", "vm.left"]
    observe(site, {**real, "d": [of(db, group="web", update_domain=2)]})
    assert (site.vm("db").group, drift(site)) == ("web", {})


def test_what_a_live_event_relies_on_is_changed_when_it_is_over() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    for facts in ({"group": "new"}, {"update_domain": 5}):
        real = {**reality(site), "a": [of(site.vm("web-0"), **facts)]}
        observe(site, real)
        assert drift(site) == {("a", "web-0"): DriftKind.DIFFERENT}
        assert f"while operation {operation.id} (restart, Scheduled) names it" in site.state.drift["a", "web-0"].reason
    assert "group:new" not in site.state.scopes
    site.cancel(operation.id)
    observe(site, real)
    assert (site.vm("web-0").update_domain, drift(site)) == (5, {})


@pytest.mark.parametrize(
    ("facts", "kind", "said"),
    [
        ({"update_domain": 1000}, DriftKind.DIFFERENT, "out of range"),
        ({"addresses": ("10.0.0.2",)}, DriftKind.DIFFERENT, "belongs to web-1"),
        ({"group": "new", "addresses": ("10.0.0.2",)}, DriftKind.DIFFERENT, "belongs to web-1"),
        ({"group": "web", "kind": ScopeKind.CLOUD_SERVICE}, DriftKind.DIFFERENT, "and not cloud-service"),
        ({"size": 9.0}, DriftKind.DIFFERENT, "host a has not enough room for web-0"),
        ({"unreadable": "no XML"}, DriftKind.UNREADABLE, "no XML"),
    ],
)
def test_a_description_that_cannot_be_followed_is_drift(facts: Any, kind: DriftKind, said: str) -> None:
    site = row()
    site.set_vm("web-1", addresses=("10.0.0.2",))
    site.set_capacity("a", 8)
    before = site.vm("web-0")
    observe(site, {**reality(site), "a": [of(before, **facts)]})
    assert drift(site) == {("a", "web-0"): kind}
    assert said in site.state.drift["a", "web-0"].reason
    assert (site.vm("web-0"), "group:new" in site.state.scopes) == (before, False)


def test_one_vm_makes_way_for_another_at_once() -> None:
    site = row()
    for number in range(3):
        site.add_vm(f"db-{number}", "d", addresses=(f"10.0.1.{number}",))
    told = [of(site.vm(f"db-{number}"), addresses=(f"10.0.1.{number + 1}",)) for number in range(3)]
    observe(site, {**reality(site), "d": told})
    assert (site.vm("db-0").addresses, site.vm("db-2").addresses, drift(site)) == (("10.0.1.1",), ("10.0.1.3",), {})


def test_what_two_want_of_each_other_neither_gets() -> None:
    site = row()
    site.add_vm("x", "d", addresses=("10.0.1.0",))
    site.add_vm("y", "d", addresses=("10.0.1.1",))
    told = [of(site.vm("x"), addresses=("10.0.1.1",)), of(site.vm("y"), addresses=("10.0.1.0",))]
    observe(site, {**reality(site), "d": told})
    assert set(drift(site)) == {("d", "x"), ("d", "y")}


def test_domains_that_may_be_the_same_vm() -> None:
    one, other, namesake = domain("x", 1), domain("renamed", 1), domain("x", 2)
    found = Inventory({"a": [one], "b": [other], "c": [namesake], "d": [domain("z", 3)]})
    assert set(found.near("a")) == {one, other, namesake}
    assert set(found.hosts_of(one.uuid, one.name)) == {"a", "b", "c"}


# All of it

NAMES = [*(f"vm-{number}" for number in range(5)), "not a name"]
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "group": st.sampled_from(["red", "blue"]),
        "kind": st.sampled_from([ScopeKind.AVAILABILITY_SET, ScopeKind.CLOUD_SERVICE]),
        "update_domain": st.integers(0, 1),
        "addresses": st.sampled_from([("10.0.0.1",), ("10.0.0.2",), ("here",)]),
        "size": st.sampled_from([0.5, 2.0]),
        "unreadable": st.just("it is wrong"),
    },
)
DOMAINS = st.builds(
    lambda name, number, state, facts: domain(NAMES[name], number or name + 1, state, **facts),
    st.integers(0, len(NAMES) - 1),
    # Sometimes that of another.
    st.sampled_from([0, 0, 0, 0, 1, 2]),
    st.sampled_from([RUNNING, RUNNING, RUNNING, OFF, ARRIVING]),
    FACTS,
)
HOSTS = st.lists(DOMAINS, max_size=4, unique_by=(lambda each: each.name, lambda each: each.uuid))
REALITIES = st.dictionaries(st.sampled_from("abc"), HOSTS, min_size=1)
OPERATIONS = st.sampled_from([Kind.RESTART, Kind.REDEPLOY, Kind.HOST_UPDATE, Kind.LIVE_MIGRATION, None, None])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(REALITIES, OPERATIONS, st.booleans(), st.integers(0, 3)), min_size=1, max_size=4))
def test_whatever_hosts_say_the_fleet_stays_sound_and_differs_in_drift_alone(
    history: list[tuple[Seen, Kind | None, bool, int]],
) -> None:
    site = Site()
    site.add_hosts("abcd")
    site.set_capacity("b", 3)
    for seen, kind, starts, choice in history:
        before = set(site.state.vms)
        observe(site, seen)
        assert before <= set(site.state.vms)
        is_told(site, seen)
        targets = [vm.host if kind and kind.traits.of_host else vm.name for vm in site.state.vms.values()]
        if kind and targets:
            name = targets[choice % len(targets)]
            with suppress(errors.ForenoticeError):
                operation = site.schedule(kind, name)
                if starts:
                    site.approve_all(operation)
                    site.tick()


def is_told(site: Site, seen: Seen) -> None:
    found = Inventory(seen)
    busy = {name for each in site.live() if each.status is Status.STARTED for name in each.vms}
    owners = {identity: vm.name for vm in site.state.vms.values() for identity in vm.known_by}
    for host, domains in seen.items():
        for each in domains:
            name = owners.get(each.uuid, each.name)
            recorded = name in site.state.vms and site.vm(name).host == host
            if each.state is RUNNING and name not in busy:
                assert recorded or {(host, name), (host, each.name)} & site.state.drift.keys(), (host, each)
        for vm in site.state.vms.values():
            there = found.with_uuid(vm.vm_id) or found.with_name(vm.name)
            if vm.host == host and vm.name not in busy and not there:
                assert drift(site)[host, vm.name] is DriftKind.MISSING
    for host, name in site.state.drift:
        assert host in site.state.hosts, name


def test_two_hosts_are_not_one_machine() -> None:
    inventory.require_own_machines({"a": "one", "b": "two", "c": "", "d": ""})
    with pytest.raises(errors.ConflictError, match="a and b are the same machine"):
        inventory.require_own_machines({"b": "one", "a": "one", "c": ""})
