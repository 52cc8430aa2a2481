"""The thread that follows hosts: one transaction where something differs, none otherwise."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.test_inventory import OPERATIONS, REALITIES
from tests.service.inventories import ID, WATCHED, Hosts, domain
from tests.service.rig import OPERATOR, ManualClock, Rig, wait_for

from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.core.fleet import DriftKind, VmState
from forenotice.core.inventory import DomainFacts, DomainState, Inventory, Rule, observe
from forenotice.core.operations import Kind, Status
from forenotice.core.selectors import of_scopes
from forenotice.runtime import Runtime
from forenotice.service import fleet, fleet_map, housekeeping, inventory, queries
from forenotice.service.inventory import InventoryLoop
from forenotice.service.service import Service
from forenotice.store.database import Store
from forenotice.views.fleet import HostChange

pytestmark = pytest.mark.both_databases


class Site:
    def __init__(self, store: Store) -> None:
        self.time = 0.0
        self.rig = self.process(store, ManualClock())
        self.hosts = Hosts()
        rules = [Rule(name="web-*", facts=DomainFacts(group="web"))]
        self.loop = InventoryLoop(self.rig.service, self.hosts.open, rules)
        for name in "abc":
            self.rig.add_host(name, **WATCHED)

    def process(self, store: Store, clock: ManualClock) -> Rig:
        return Rig(store, runtime=Runtime(clock=clock, monotonic=lambda: self.time))

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.rig.clock.advance(seconds=seconds)

    def step(self, *changed: str) -> None:
        """Until nothing is due."""
        for name in changed:
            self.hosts.changed(name)
        while not self.loop.step():
            pass

    def entries(self) -> int:
        return len(self.rig.entries())

    def drift(self, **of: Any) -> dict[tuple[str, str], DriftKind]:
        return {(each.host, each.name): each.kind for each in queries.drift(self.rig.service, **of).items}


@pytest.fixture
def site(store: Store) -> Site:
    return Site(store)


def test_what_hosts_have_becomes_the_fleet_and_nothing_is_written_twice(site: Site) -> None:
    site.hosts.domains = {"a": [domain("web-0", 1), domain("db", 2)], "b": [domain("web-1", 3, update_domain=1)]}
    site.step()
    assert {name: site.rig.vm(name).host for name in ("web-0", "db", "web-1")} == {
        "web-0": "a",
        "db": "a",
        "web-1": "b",
    }
    assert (site.rig.vm("web-1").group, site.rig.vm("web-1").update_domain) == ("web", 1)
    assert {entry.by for entry in site.rig.entries(vm="db")} == {"inventory"}
    assert inventory.definition(site.rig.service, "db") == "<domain>db</domain>"
    assert inventory.definition(site.rig.service, "nobody") is None
    assert site.hosts.followed == dict.fromkeys("abc", "test:///default")
    asked, written = len(site.hosts.asked), site.entries()
    site.step()
    assert len(site.hosts.asked) == asked, "nothing is due"
    site.time += 61
    site.step()
    assert (len(site.hosts.asked), site.entries()) == (asked + 3, written)


def test_a_definition_that_changes_is_kept_without_an_entry(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)]}
    site.step()
    written = site.entries()
    site.hosts.domains["a"][0] = domain("db2", 2)
    site.step("a")
    assert (site.entries(), inventory.definition(site.rig.service, "db")) == (written, "<domain>db2</domain>")
    # Another begins with what the store has.
    again = InventoryLoop(site.rig.service, site.hosts.open)
    again.step()
    assert site.entries() == written


def test_a_namesake_that_is_refused_does_not_replace_the_definition_of_a_renamed_vm(site: Site) -> None:
    site.rig.add_vm("db", "a", vm_id=ID.format(1))
    site.hosts.domains = {"a": [domain("renamed", 1), domain("db", 2)]}
    for _ in range(3):
        site.step("a")
        assert inventory.definition(site.rig.service, "db") == "<domain>renamed</domain>"
    assert site.drift() == {("a", "db"): DriftKind.REFUSED}


def test_the_definition_of_a_vm_that_an_operator_adds_again_is_kept_again(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)]}
    site.step()
    site.rig.remove_vm("db")
    site.rig.add_vm("db", "a", vm_id=ID.format(2))
    site.step("a")
    assert inventory.definition(site.rig.service, "db") == "<domain>db</domain>"


def test_a_vm_that_is_moved_by_hand_leaves_what_is_scheduled(site: Site) -> None:
    site.hosts.domains = {"a": [domain("web-0", 1), domain("db", 2)], "b": []}
    site.step()
    [operation] = site.rig.schedule(Kind.HOST_UPDATE, "a")
    site.hosts.move("web-0", "a", "b")
    site.step("a", "b")
    assert site.rig.vm("web-0").host == "b"
    assert site.rig.operation(operation).vms == ["db"]
    assert site.rig.actions(vm="web-0", action="vm.") == ["vm.added", "vm.moved"]
    assert site.drift() == {}


def test_what_is_missing_is_shown_until_it_is_settled(site: Site) -> None:
    site.hosts.domains = {"a": [domain("web-0", 1), domain("db", 2)]}
    site.step()
    kept = site.hosts.domains["a"]
    site.hosts.domains["a"] = []
    site.step("a")
    assert site.drift() == dict.fromkeys((("a", "db"), ("a", "web-0")), DriftKind.MISSING)
    assert site.drift(vm="db", host="a") == {("a", "db"): DriftKind.MISSING}
    service = site.rig.service
    assert [each.kind for each in site.rig.vm("db").drift] == ["missing"]
    assert [each.state for each in fleet_map.with_states(service, queries.vms(service).items)] == ["missing"] * 2
    assert fleet_map.by_host(service).states[VmState.MISSING] == 2
    assert (queries.host(service, "a").drift, queries.hosts(service).items[0].drift) == (2, 2)
    assert queries.drift(service, limit=1).more
    assert [each.drift[0].kind for each in queries.vms(service, seen=of_scopes("group:web")).items] == ["missing"]
    site.rig.remove_vm("db")
    assert site.drift() == {("a", "web-0"): DriftKind.MISSING}
    site.hosts.domains["a"] = kept[:1]
    site.step("a")
    assert (site.drift(), site.rig.actions(vm="web-0")[-1]) == ({}, "vm.found")


def test_other_drift_of_a_vm_is_not_for_tenants(site: Site) -> None:
    site.hosts.domains = {"a": [domain("web-0", 1)], "b": [domain("web-0", 1)], "c": [domain("x", 3, addresses=("?",))]}
    site.rig.add_group("web")
    site.rig.add_vm("web-0", "a", group="web", vm_id=ID.format(1))
    site.step()
    assert set(site.drift().values()) == {DriftKind.DUPLICATE, DriftKind.REFUSED}
    assert len(site.rig.vm("web-0").drift) == 2
    assert queries.vm(site.rig.service, "web-0", of_scopes("group:web")).drift == []
    changed = site.rig.set_vm("web-0", spot=True)
    assert len(changed.drift) == 2


def test_a_rule_that_ignores_new_domains_changes_nothing_for_vms_of_the_fleet(site: Site) -> None:
    """Its description names a group and an address that exist."""
    site.loop = InventoryLoop(site.rig.service, site.hosts.open, [Rule(name="*", ignore=True)])
    site.rig.add_group("web", max_unavailable=1)
    for name, host, address in (("db", "b", "10.0.0.1"), ("web-0", "a", "10.0.0.2")):
        site.rig.add_vm(name, host, vm_id=ID.format(len(name)), addresses=(address,))
    db = domain("db", 2)
    for facts in ({"addresses": ("10.0.0.1",)}, {"group": "web"}):
        site.hosts.domains = {"a": [domain("web-0", 5, **facts), domain("x", 9)], "b": [db]}
        site.step("a")
    assert (site.rig.vm("web-0").group, site.rig.vm("web-0").addresses) == ("web", ["10.0.0.2"])
    assert (queries.group(site.rig.service, "web").policy.max_unavailable, site.drift()) == (1, {})
    assert site.rig.actions(action="drift.") == ["drift.noticed", "drift.settled"]


def test_what_was_in_the_way_is_looked_at_again_without_asking_the_host(site: Site) -> None:
    site.rig.add_vm("taken", "c", addresses=("10.0.0.1",), vm_id=ID.format(9))
    site.hosts.domains = {"a": [domain("x", 1, addresses=("10.0.0.1",))], "c": [domain("taken", 9)]}
    site.step()
    assert site.drift() == {("a", "x"): DriftKind.REFUSED}
    asked = len(site.hosts.asked)
    site.step()
    assert len(site.hosts.asked) == asked
    site.rig.set_vm("taken", addresses=[])
    site.step()
    assert (site.drift(), site.rig.vm("x").addresses) == ({}, ["10.0.0.1"])


def test_a_host_that_does_not_answer_keeps_what_it_has_and_says_since_when(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)]}
    site.step()
    written, now = site.entries(), site.rig.clock.now()
    site.hosts.silent["a"] = "no route to host"
    site.hosts.domains["a"] = []
    site.step("a")
    site.rig.clock.advance(seconds=30)
    for _ in range(8):
        site.time += 61
        site.step()
    shown = queries.host(site.rig.service, "a")
    assert (shown.silent_since, shown.silent_because) == (now, "no route to host")
    assert (site.entries(), site.drift(), site.rig.vm("db").host) == (written, {}, "a")
    assert fleet.set_host(site.rig.service, OPERATOR, "a", HostChange(cordoned=True)).silent_since == now
    # At another address nobody has asked it yet.
    elsewhere = HostChange(address="test:///elsewhere")
    assert fleet.set_host(site.rig.service, OPERATOR, "a", elsewhere).silent_since is None
    del site.hosts.silent["a"]
    site.time += 61
    site.step()
    assert queries.host(site.rig.service, "a").silent_since is None
    assert site.drift() == {("a", "db"): DriftKind.MISSING}


def test_a_silent_host_is_asked_less_and_less_often(site: Site) -> None:
    site.hosts.silent = dict.fromkeys("abc", "no")
    site.step()
    asked = []
    for second in range(300):
        site.time += 1
        before = len(site.hosts.asked)
        site.step()
        asked += [second] if len(site.hosts.asked) > before else []
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert (pauses[:3], max(pauses)) == ([4, 8, 16], 60)


def test_a_host_that_is_no_longer_watched_is_forgotten(site: Site) -> None:
    site.hosts.domains = {"a": [domain("bad name", 1)], "b": [domain("db", 2)]}
    site.hosts.silent["c"] = "no"
    site.step()
    assert (site.drift(), list(site.rig.service.silent)) == ({("a", "bad name"): DriftKind.REFUSED}, ["c"])
    for name in "ac":
        site.rig.set_host(name, inventory=None)
    site.hosts.domains["b"] = []
    site.step("a", "b")
    assert set(site.hosts.followed) == {"b"}
    assert (site.drift(), site.rig.service.silent) == ({("b", "db"): DriftKind.MISSING}, {})


def test_what_an_operation_does_meanwhile_is_not_taken_back(site: Site) -> None:
    """A list that is older than the end of a move says the VM is still where it was."""
    site.hosts.domains = {"a": [domain("db", 2)], "b": []}
    site.step()

    def move_at_once() -> None:
        site.hosts.before_answer = lambda: None
        [operation] = site.rig.schedule(Kind.REDEPLOY, "db")
        site.rig.approve_all(operation)
        site.rig.run(40)
        site.hosts.move("db", "a", site.rig.vm("db").host)

    site.hosts.before_answer = move_at_once
    site.hosts.domains["a"] = [replace(site.hosts.domains["a"][0], facts=DomainFacts(size=2))]
    site.step("a")
    site.step("a", "b", "c")
    moved = [(entry.by, entry.host) for entry in site.rig.entries(vm="db", action="vm.moved")]
    assert moved == [("system", site.rig.vm("db").host)]
    assert (site.rig.vm("db").size, site.drift()) == (2, {})


def test_what_was_moved_by_hand_during_an_operation_is_recorded_when_that_is_over(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": []}
    site.step()
    [operation] = site.rig.schedule(Kind.HOST_UPDATE, "a")
    site.rig.approve_all(operation)
    site.rig.tick()
    assert site.rig.operation(operation).status is Status.STARTED
    site.hosts.move("db", "a", "b")
    site.step("a", "b")
    assert site.rig.vm("db").host == "a"
    site.rig.run(40)
    site.step()
    assert (site.rig.operation(operation).status, site.rig.vm("db").host) == (Status.COMPLETED, "b")


def test_what_is_removed_meanwhile_does_not_come_back(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)]}
    site.step()

    def remove() -> None:
        site.hosts.before_answer = lambda: None
        site.hosts.domains["a"] = []
        site.rig.remove_vm("db")

    site.hosts.before_answer = remove
    site.step("a")
    assert site.rig.actions(vm="db", action="vm.") == ["vm.added", "vm.removed"]


def test_what_is_removed_while_its_host_has_it_is_added_again(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)]}
    site.step()
    site.rig.remove_vm("db")
    site.time += 61
    site.step()
    assert site.rig.actions(vm="db", action="vm.") == ["vm.added", "vm.removed", "vm.added"]
    assert inventory.definition(site.rig.service, "db") == "<domain>db</domain>"


def test_one_that_is_off_is_moved_when_its_former_host_no_longer_has_it(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2, DomainState.OFF)], "b": []}
    site.step()
    site.hosts.domains["b"] = [domain("db", 2, DomainState.OFF)]
    site.step("b")
    assert site.rig.vm("db").host == "a"
    site.hosts.domains["a"] = []
    site.step("a")
    assert (site.rig.vm("db").host, site.drift()) == ("b", {})


def test_the_former_host_of_one_that_appears_is_asked_although_it_tells_nothing(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2, DomainState.OFF)], "b": []}
    site.step()
    site.hosts.move("db", "a", "b")
    site.step("b")
    assert (site.rig.vm("db").host, site.drift()) == ("b", {})


def test_vms_that_cannot_be_where_the_other_was_do_not_keep_it_busy(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": [domain("x", 3)]}
    site.step()
    for name in "ab":
        site.rig.set_host(name, capacity=0)
    site.hosts.move("db", "a", "b")
    site.hosts.move("x", "b", "a")
    site.step("a", "b")
    assert site.drift() == {("a", "x"): DriftKind.MISPLACED, ("b", "db"): DriftKind.MISPLACED}


def test_others_that_may_have_the_vm_are_asked_before_it_is_moved(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": []}
    site.step()
    site.hosts.move("db", "a", "b")
    site.step("b")
    assert (site.rig.vm("db").host, site.drift()) == ("b", {})
    site.hosts.domains["c"] = [domain("db", 2)]
    site.hosts.silent["c"] = "gone"
    site.hosts.changed("c")
    site.hosts.domains["a"] = [domain("db", 2)]
    site.step("a")
    assert site.drift() == dict.fromkeys((("a", "db"), ("b", "db")), DriftKind.DUPLICATE)


@pytest.mark.parametrize("first", "ab")
def test_a_vm_that_is_moved_while_its_hosts_are_listed_is_neither_missing_nor_twice(site: Site, first: str) -> None:
    source, target = ("a", "b") if first == "a" else ("b", "a")
    site.hosts.domains = {source: [domain("db", 2)], target: []}
    site.step()

    def move() -> None:
        # The first has answered, the second not yet.
        site.hosts.before_answer = lambda: None
        site.hosts.move("db", source, target)
        site.hosts.changed("a")
        site.hosts.changed("b")

    site.hosts.before_answer = move
    site.step("a", "b")
    assert site.rig.actions(vm="db") == ["vm.added", "vm.moved"]
    assert (site.rig.vm("db").host, site.drift()) == (target, {})


def test_where_a_vm_was_arriving_is_asked_again_before_it_is_missing(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": [domain("db", 2, DomainState.ARRIVING)]}
    site.step()
    site.hosts.domains = {"a": [], "b": [domain("db", 2)]}
    site.step("a")
    assert site.rig.actions(vm="db") == ["vm.added", "vm.moved"]


def test_a_host_that_falls_silent_while_it_is_asked_again_is_not_recorded(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": [domain("x", 3, addresses=("no",))]}
    site.step()
    site.hosts.silent["b"] = "gone"
    site.hosts.domains["b"] = []
    # It has drift, so it is looked at whenever the fleet changes, as it was last listed.
    site.rig.add_group("new")
    site.step()
    assert site.drift() == {("b", "x"): DriftKind.REFUSED}


@pytest.mark.parametrize("first", "ab")
def test_two_hosts_that_are_the_same_machine_are_both_silent(site: Site, first: str) -> None:
    site.hosts.machines = {"a": "one", "b": "other"}
    site.hosts.domains = {"a": [domain("db", 2)], "b": [domain("x", 3)]}
    site.step()
    written = site.entries()
    wrong, right = ("a", "b") if first == "a" else ("b", "a")
    site.rig.set_host(wrong, address="test:///wrong")
    site.hosts.machines[wrong] = site.hosts.machines[right]
    site.hosts.domains[wrong] = site.hosts.domains[right]
    for _ in range(3):
        site.step(first)
        site.time += 61
    assert site.entries() == written + 1
    silent = site.rig.service.silent
    assert {name: silent[name].why for name in silent} == dict.fromkeys(
        "ab", "a and b are the same machine: correct the address of one of them"
    )
    # Both begin anew, too.
    again = Second(site)
    again.hosts.machines = site.hosts.machines
    site.pass_time(61)
    again.step()
    assert site.entries() == written + 1
    site.rig.set_host(wrong, address="test:///default")
    site.hosts.machines[wrong] = "another"
    site.hosts.domains[wrong] = [domain("db", 2) if wrong == "a" else domain("x", 3)]
    site.time += 61
    site.step()
    assert (site.rig.service.silent, site.drift(), site.entries()) == ({}, {}, written + 2)


@pytest.mark.parametrize("change", [{"inventory": None}, {"address": "test:///other"}, None])
def test_a_host_that_is_changed_while_it_is_asked_is_not_recorded(site: Site, change: dict[str, Any] | None) -> None:
    site.step()

    def meddle() -> None:
        site.hosts.before_answer = lambda: None
        site.hosts.domains["a"] = []
        if change is None:
            fleet.remove_host(site.rig.service, OPERATOR, "a")
        else:
            site.rig.set_host("a", **change)

    site.hosts.domains["a"] = [domain("bad name", 1), domain("db", 2)]
    site.hosts.before_answer = meddle
    site.step("a")
    assert (site.drift(), site.rig.actions(action="vm.")) == ({}, [])


def test_hosts_are_asked_at_the_same_time(site: Site) -> None:
    site.hosts.before_answer = lambda: begun.append(len(site.hosts.begun))
    begun: list[int] = []
    site.step()
    assert begun == [3, 3, 3]


def test_what_happens_while_other_hosts_are_waited_for_is_listed_again(site: Site) -> None:
    site.step()

    def change() -> None:
        site.hosts.before_answer = lambda: None
        site.hosts.domains["b"] = [domain("db", 2)]
        site.hosts.changed("b")

    site.time += 61
    site.hosts.before_answer = change
    site.hosts.asked.clear()
    site.step()
    assert site.hosts.asked.count("b") == 2


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(history=st.lists(REALITIES, min_size=1, max_size=3), kind=OPERATIONS)
def test_what_is_loaded_is_all_that_a_decision_needs(site: Site, history: list[Any], kind: Kind | None) -> None:
    service = site.rig.service
    for seen in history:
        found = Inventory(seen)
        for host in seen:
            with service.store.read() as reader:
                whole = reader.worlds.fleet()
                whole.drift.update({(each.host, each.name): each for each in reader.drift.page(1000)})
                loaded = inventory._load(reader, host, found)
            assert decided(service, loaded, host, found) == decided(service, whole, host, found)
        site.hosts.domains = {host: list(domains) for host, domains in seen.items()}
        site.hosts.silent = {host: "gone" for host in "abc" if host not in seen}
        site.step(*"abc")
        with service.store.read() as reader:
            whole = reader.worlds.fleet()
        assert whole.addresses == {each: vm.name for vm in whole.vms.values() for each in vm.known_by}
        vms = queries.vms(service, limit=1).items
        if kind and vms:
            with suppress(errors.ForenoticeError):
                site.rig.schedule(kind, vms[0].host if kind.traits.of_host else vms[0].name)


def decided(service: Service, world: World, host: str, found: Inventory) -> object:
    draft = service.draft(world)
    observe(draft, host, found)
    changes = draft.changes()
    entries = [(entry.action, entry.host, entry.vm, entry.data) for entry in changes.entries]
    operations = {key: (each.status, each.vms) for key, each in changes.operations.items()}
    return entries, changes.vms, changes.drift.keys(), operations


@dataclass
class Second:
    """Another process on the same database."""

    site: Site

    def __post_init__(self) -> None:
        self.rig = self.site.process(self.site.rig.service.store, self.site.rig.clock)
        self.hosts = Hosts(domains=self.site.hosts.domains)
        self.loop = InventoryLoop(self.rig.service, self.hosts.open)

    def step(self) -> None:
        while not self.loop.step():
            pass


def test_a_process_that_a_host_does_not_answer_takes_back_nothing_of_another(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": []}
    site.step()
    second = Second(site)
    second.hosts.silent["b"] = "no route to host"
    site.rig.set_host("b", capacity=0)
    site.hosts.move("db", "a", "b")
    for _ in range(5):
        site.pass_time(61)
        site.step()
        second.step()
    assert site.drift() == {("b", "db"): DriftKind.MISPLACED}
    assert site.rig.actions(vm="db") == ["vm.added", "drift.noticed"]
    assert (list(site.rig.service.silent), list(second.rig.service.silent)) == ([], ["b"])


@pytest.mark.parametrize("end", ["stopped", "killed", "killed, and nobody else can be there"])
def test_another_process_records_when_the_first_is_gone(site: Site, end: str) -> None:
    site.hosts.domains = {"a": [domain("db", 2)]}
    site.step()
    second = Second(site)
    site.hosts.domains["a"].append(domain("x", 3))
    second.step()
    assert [each.name for each in queries.vms(site.rig.service).items] == ["db"]
    if end == "stopped":
        site.loop.stop()
    elif end == "killed":
        site.pass_time(61)
    else:
        housekeeping.resume(second.rig.service, alone=True)
    second.step()
    assert [each.name for each in queries.vms(site.rig.service).items] == ["db", "x"]


def test_a_process_that_slept_through_its_lease_records_nothing(site: Site) -> None:
    site.hosts.domains = {"a": [domain("db", 2)], "b": [domain("db", 2, DomainState.OFF)]}
    site.step()
    second = Second(site)
    second.hosts.domains = {"a": [domain("db", 2)]}

    def sleep() -> None:
        # Another host is asked once more before something is written.
        if site.hosts.asked[-1] == "b":
            site.hosts.before_answer = lambda: None
            site.pass_time(61)
            second.step()

    site.hosts.before_answer = sleep
    site.hosts.domains["a"].append(domain("x", 3))
    site.hosts.changed("a")
    site.loop.step()
    assert site.hosts.before_answer is not sleep
    site.step()
    assert [each.name for each in queries.vms(site.rig.service).items] == ["db"]


def test_without_the_library_hosts_say_so(site: Site) -> None:
    def refuse(_: Callable[[str], None]) -> Hosts:
        raise errors.RefusedError("libvirt cannot be used: pip install 'forenotice[libvirt]'")

    loop = InventoryLoop(site.rig.service, refuse)
    loop.step()
    assert "pip install 'forenotice[libvirt]'" in (queries.host(site.rig.service, "a").silent_because or "")
    loop.stop()


def test_the_thread_follows_by_itself(store: Store) -> None:
    rig, hosts = Rig(store), Hosts()
    loop = InventoryLoop(rig.service, hosts.open)
    loop.start()
    try:
        hosts.domains = {"a": [domain("db", 2)]}
        rig.add_host("a", **WATCHED)
        wait_for(lambda: [each.name for each in queries.vms(rig.service).items] == ["db"])
        hosts.domains["a"].append(domain("x", 3))
        hosts.changed("a")
        wait_for(lambda: len(queries.vms(rig.service).items) == 2)
    finally:
        loop.stop()
    assert hosts.closed
