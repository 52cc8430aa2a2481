"""Hosts, groups and VMs: one at a time, and as a file."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.service.rig import OPERATOR, START, Rig

from forenotice.core import errors
from forenotice.core.fleet import Facts, ScopeKind
from forenotice.core.operations import Kind
from forenotice.service import fleet, maintenance, queries
from forenotice.views import base
from forenotice.views import fleet as fleet_views
from forenotice.views.fleet import FactsChange, HostChange, NewGroup, PolicyChange, VmChange

FLEET = b"""
[hosts.rack1]
[hosts.rack2]
cordoned = true

[groups.api]
kind = "availability-set"
policy = { terminate_notice_minutes = 10, auto_approve_restart = true, shutdown_timeout_seconds = 0 }

[vms.api-0]
host = "rack1"
group = "api"
addresses = ["10.0.0.1", "fd00::0:1"]
facts = { location = "north", tags = { team = "api" } }

[vms.ledger]
host = "rack2"
policy = { listening = "never" }
"""


def apply(
    rig: Rig,
    data: bytes | fleet_views.Fleet | dict[str, Any],
    *,
    prune: bool = False,
    move: bool = False,
    dry_run: bool = False,
) -> list[tuple[str, ...]]:
    document = fleet.parse(data, "toml") if isinstance(data, bytes) else fleet.parse(msgspec.json.encode(data), "json")
    answer = fleet.apply(rig.service, OPERATOR, document, prune=prune, move=move, dry_run=dry_run)
    assert answer.applied is not dry_run
    differences = answer.changes + answer.kept
    return [(each.action, each.noun, each.name, *sorted(each.fields)) for each in differences]


def test_one_at_a_time(rig: Rig) -> None:
    empty = fleet_views.Host(
        name="rack1",
        cordoned=False,
        labels={},
        capacity=None,
        address=None,
        used=0,
        vms=0,
        inventory=None,
        silent_since=None,
        silent_because=None,
        drift=0,
    )
    assert rig.add_host("rack1") == empty
    group = rig.add_group("api", max_user_operations=2)
    assert (group.policy.max_user_operations, group.listening) == (2, False)
    vm = rig.add_vm("api-0", "rack1", group="api", addresses=("10.0.0.1",), facts=Facts(size="m2"))
    assert (vm.group, vm.facts.size, vm.policy) == ("api", "m2", None)
    assert [each.name for each in rig.published.by_key["group:api"].members] == ["api-0"]

    facts = FactsChange(zone="1")
    changed = rig.set_vm("api-0", group=None, facts=facts, addresses=["10.0.0.2"], host="host-d")
    assert (changed.group, changed.host, changed.addresses) == (None, "host-d", ["10.0.0.2"])
    assert (changed.facts.size, changed.facts.zone) == ("m2", "1")
    assert rig.published.by_key["group:api"].members == ()
    assert [each.name for each in rig.published.by_key["vm:api-0"].members] == ["api-0"]
    rig.add_vm("api-1", "rack1", addresses=("10.0.0.1",))

    rig.remove_vm("api-0")
    rig.remove_vm("api-1")
    fleet.remove_group(rig.service, OPERATOR, "api")
    fleet.remove_host(rig.service, OPERATOR, "rack1")
    assert rig.published.by_key["vm:api-0"].document is None
    assert rig.published.by_key["group:api"].document is None


def test_a_scope_keeps_its_incarnation_while_its_vm_is_elsewhere(rig: Rig) -> None:
    rig.schedule(Kind.RESTART, "db")
    before = rig.vm("db").incarnation
    rig.run(16 * 60, step=30)
    fleet.add_group(rig.service, OPERATOR, NewGroup(name="api", kind=ScopeKind.CLOUD_SERVICE, policy=PolicyChange()))
    rig.set_vm("db", group="api")
    assert rig.vm("db").incarnation == 1
    rig.set_vm("db", group=None)
    assert rig.vm("db").incarnation > before


def test_loopback_addresses_are_for_fleets_to_try_things_on(rig: Rig) -> None:
    rig.service.allows_loopback = False
    for command in (
        lambda: rig.add_vm("new", "host-a", addresses=("127.9.0.1",)),
        lambda: rig.set_vm("db", addresses=["127.9.0.1"]),
        lambda: apply(rig, b'[vms.new]\nhost = "host-a"\naddresses = ["127.9.0.1"]\n', dry_run=True),
    ):
        with pytest.raises(errors.RefusedError, match="--allow-loopback-addresses"):
            command()
    # What it has already, it keeps.
    assert rig.set_vm("db", facts=FactsChange(size="large")).addresses == ["127.1.0.30"]


def test_what_a_live_event_names_stays_put(rig: Rig) -> None:
    rig.schedule(Kind.RESTART, "web-0")
    for changes in ({"host": "host-d"}, {"group": None}, {"update_domain": 3}):
        with pytest.raises(errors.ConflictError):
            fleet.set_vm(rig.service, OPERATOR, "web-0", base.convert(changes, VmChange, "the body"))
    for remove, name in ((fleet.remove_vm, "web-0"), (fleet.remove_group, "web"), (fleet.remove_host, "host-a")):
        with pytest.raises(errors.ConflictError):
            remove(rig.service, OPERATOR, name)
    rig.set_vm("web-0", facts=FactsChange(zone="2"))


def test_a_host_that_vms_are_moving_to_cannot_go(rig: Rig) -> None:
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    with pytest.raises(errors.ConflictError, match="is moving VMs to host host-d"):
        fleet.remove_host(rig.service, OPERATOR, "host-d")


@pytest.mark.parametrize(
    "changes",
    [{"listening": "sometimes"}, {"terminate_notice_minutes": 4}, {"max_user_operations": 0}, {"colour": "red"},
     {"terminate_notice_minutes": 1e300}, {"max_unavailable": True}, {"max_unavailable": 10**30}, {"windows": "daily"}],
)  # fmt: skip
def test_a_policy_that_is_none_is_refused(rig: Rig, changes: dict[str, object]) -> None:
    with pytest.raises(errors.RefusedError):
        fleet.set_policy(rig.service, OPERATOR, "group:web", base.convert(changes, PolicyChange, "the body"))


def test_a_file_is_applied_in_one_step(rig: Rig) -> None:
    expected = [
        ("add", "host", "rack1"),
        ("add", "host", "rack2"),
        ("add", "group", "api"),
        ("add", "vm", "api-0"),
        ("add", "vm", "ledger"),
        ("change", "policy of vm", "ledger", "listening"),
    ]
    assert apply(rig, FLEET, dry_run=True) == expected
    with pytest.raises(errors.NotFoundError):
        rig.vm("ledger")
    assert apply(rig, FLEET) == expected
    assert apply(rig, FLEET) == []
    assert rig.vm("api-0").addresses == ["10.0.0.1", "fd00::1"]


def test_a_file_with_a_key_that_was_split_names_both_new_ones() -> None:
    with pytest.raises(errors.RefusedError) as refused:
        fleet.parse(b"[groups.api]\nkind = 'cloud-service'\npolicy = { auto_approve = true }", "toml")
    assert "groups.api" in refused.value.message
    assert refused.value.message.endswith("give auto_approve_restart and auto_approve_redeploy")


def test_pruning_removes_what_the_file_does_not_name(rig: Rig) -> None:
    removed = [each for each in apply(rig, FLEET, prune=True) if each[0] == "remove"]
    assert len(removed) == 10 + 2 + 4
    assert [host.name for host in queries.hosts(rig.service).items] == ["rack1", "rack2"]
    assert rig.published.by_key["group:web"].document is None


def test_what_was_exported_can_be_applied(rig: Rig) -> None:
    exported = msgspec.to_builtins(fleet.export(rig.service))
    assert apply(rig, exported, prune=True) == []
    hosts = exported["vms"]["web-0"]["host"], exported["vms"]["web-1"]["host"]
    exported["vms"]["web-0"]["host"], exported["vms"]["web-1"]["host"] = reversed(hosts)
    addresses = exported["vms"]["db"]["addresses"], exported["vms"]["batch"]["addresses"]
    exported["vms"]["db"]["addresses"], exported["vms"]["batch"]["addresses"] = reversed(addresses)
    exported["hosts"]["host-d"]["cordoned"] = True
    exported["groups"]["pool"]["policy"]["auto_approve_restart"] = True
    assert apply(rig, exported, move=True) == [
        ("change", "host", "host-d", "cordoned"),
        ("change", "group", "pool", "auto_approve_restart"),
        ("change", "vm", "batch", "addresses"),
        ("change", "vm", "db", "addresses"),
        ("change", "vm", "web-0", "host"),
        ("change", "vm", "web-1", "host"),
    ]


def test_vms_stay_where_the_service_moved_them(rig: Rig) -> None:
    exported = fleet.export(rig.service)
    [operation] = rig.schedule(Kind.LIVE_MIGRATION, "host-a")
    kept = [("keep", "vm", name, "host") for name in ("pool_0", "pool_1", "web-0")]
    assert apply(rig, exported) == []
    rig.approve_all(operation)
    rig.tick()
    assert rig.operation(operation).status == "Started"
    assert apply(rig, exported) == []
    rig.run(30, step=5)
    assert apply(rig, exported) == kept
    assert rig.vm("web-0").host == "host-d"
    assert apply(rig, exported, dry_run=True) == kept
    differences = fleet.diff(rig.service, fleet.parse(msgspec.json.encode(exported), "json")).differences
    assert differences[0] == fleet_views.Difference(
        action="change", noun="vm", name="pool_0", fields={"host": fleet_views.Values(now="host-d", to="host-a")}
    )
    assert len(differences) == 3
    assert apply(rig, fleet.export(rig.service), prune=True) == []
    assert apply(rig, exported, move=True) == [("change", *each[1:]) for each in kept]


def test_a_host_that_failed_since_the_export_stays_cordoned(rig: Rig) -> None:
    exported = fleet.export(rig.service)
    rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    assert apply(rig, exported) == []
    assert queries.host(rig.service, "host-a").cordoned
    assert fleet.export(rig.service).hosts["host-a"] == fleet_views.HostTable(cordoned=True)


@pytest.mark.parametrize(
    ("data", "file_format", "sentence"),
    [
        (b"[hosts", "toml", "is not TOML"),
        (b"\xff", "toml", "is not UTF-8"),
        (b"{", "json", "is not JSON"),
        (b'{"hosts": {"\\ud800": {}}}', "json", "is not JSON"),
        (b'{"hosts": {"a": {"colour": 1}}}', "json", "colour"),
        (b'{"vms": {"a": {}}}', "json", "host"),
        (b'{"vms": {"a": {"host": "h", "facts": {"zone": "\\u0000"}}}}', "json", "zone"),
        (b'{"vms": {"a": {"host": "h", "group": "g", "policy": {}}}}', "json", "give it to the group"),
        (b'{"groups": {"web": {"kind": "cloud-service"}}}', "json", "cannot become"),
        (b'{"groups": {"new": {"kind": "standalone"}}}', "json", "a group is"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(rig: Rig, data: bytes, file_format: str, sentence: str) -> None:
    with pytest.raises(errors.ForenoticeError, match=sentence):
        fleet.apply(rig.service, OPERATOR, fleet.parse(data, file_format), prune=False, dry_run=False)


def test_a_command_that_changes_nothing_is_in_the_journal_once_per_key(rig: Rig) -> None:
    [operation] = rig.schedule(Kind.RESTART, "web-0")
    event = operation.events[0].id
    maintenance.approve(rig.service, OPERATOR, event)
    call = replace(OPERATOR, origin="192.0.2.7", reason="to be sure")
    keyed = replace(call, key="k", digest="d")
    for _ in range(2):
        fleet.set_host(rig.service, keyed, "host-a", HostChange(cordoned=False))
    fleet.set_group(rig.service, call, "web", PolicyChange())
    fleet.set_vm(rig.service, call, "db", VmChange())
    fleet.set_policy(rig.service, call, "vm:db", PolicyChange())
    maintenance.approve(rig.service, call, event)
    for dry_run in (True, False):
        fleet.apply(rig.service, call, fleet.parse(b"", "toml"), prune=False, dry_run=dry_run)
    found = rig.entries(action="command.unchanged")
    assert [entry.data["asked"] for entry in found] == [
        "host.change",
        "group.change",
        "vm.change",
        "policy.change",
        "event.approve",
        "fleet.apply",
    ]
    assert (found[0].host, found[1].scope, found[2].vm, found[4].event) == ("host-a", "group:web", "db", event)
    assert {(entry.by, entry.origin, entry.reason) for entry in found} == {("ada", "192.0.2.7", "to be sure")}


def test_approving_again_and_again_does_not_fill_the_journal(rig: Rig) -> None:
    [operation] = rig.schedule(Kind.RESTART, "web-0")
    event = operation.events[0].id
    for key in ("a", "b", "c", "d", "e"):
        maintenance.approve(rig.service, replace(OPERATOR, token_id="t", key=key, digest=key), event)
        assert rig.approve("web-0", "group:web", event) is None
    assert rig.actions().count("event.approved") == rig.actions().count("command.unchanged") == 1
    with rig.service.store.read() as reader:
        assert [bool(reader.responses.find("t", key, START)) for key in ("a", "b", "c")] == [True, False, False]
    rig.clock.advance(minutes=10)
    maintenance.approve(rig.service, OPERATOR, event.lower())
    assert rig.actions().count("command.unchanged") == 2
    of_event = [entry.action for entry in rig.entries(event=event)]
    assert of_event.count("command.unchanged") == 2


def test_what_nobody_asked_for_is_done_by_the_system(rig: Rig) -> None:
    rig.schedule(Kind.RESTART, "batch")
    rig.run(20 * 60, step=60)
    done = rig.entries(action="event.", vm="batch")
    assert [(entry.action, entry.by) for entry in done][1:] == [
        ("event.started", "system"),
        ("event.completed", "system"),
    ]
