"""Drift and definitions: kept, found, and gone with the host or VM that they are about."""

from datetime import timedelta

from tests.store.samples import NOW, changes, entry, host, scope, vm

from forenotice.core.draft import Changes
from forenotice.core.fleet import Drift, DriftKind
from forenotice.store.transaction import Transaction

WATCHED = {"address": "test:///default", "inventory": "libvirt"}


def drift(host: str, name: str, kind: DriftKind = DriftKind.REFUSED, **more: str) -> Drift:
    return Drift(host=host, name=name, kind=kind, reason=more.get("reason", "so"), since=NOW)


def keep(tx: Transaction, *drifts: Drift, settled: tuple[tuple[str, str], ...] = ()) -> None:
    tx.apply(Changes(drift={**{(each.host, each.name): each for each in drifts}, **dict.fromkeys(settled)}))


def fleet(tx: Transaction) -> None:
    tx.apply(changes(host("a", **WATCHED), host("b", **WATCHED), host("c"), scope("vm:db"), vm("db", "a", "vm:db")))


def test_drift_is_kept_found_and_settled(tx: Transaction) -> None:
    fleet(tx)
    db, odd = drift("a", "db", DriftKind.MISSING), drift("a", "ödd name")
    keep(tx, db, odd, drift("b", "db"))
    assert tx.drift.page(9) == [db, odd, drift("b", "db")]
    assert tx.drift.page(1, host="b") == tx.drift.page(9, host="b", vm="db") == tx.drift.on("b") == [drift("b", "db")]
    assert tx.drift.page(9, vm="db") == tx.drift.of_vms(["db", "x"])["db"] == [db, drift("b", "db")]
    assert (tx.drift.counts(["a", "b", "c"]), tx.drift.hosts()) == ({"a": 2, "b": 1}, ["a", "b"])
    assert tx.drift.missing(["db", "ödd name"]) == {"db"}
    assert (tx.drift.of_vms([]), tx.drift.counts([]), tx.drift.missing([])) == ({}, {}, set())
    keep(tx, drift("b", "db", reason="else"), settled=(("a", "db"), ("a", "x")))
    assert tx.drift.page(9) == [odd, drift("b", "db", reason="else")]


def test_drift_goes_with_its_host_its_vm_and_the_inventory(tx: Transaction) -> None:
    fleet(tx)
    keep(tx, drift("a", "db"), drift("a", "x"), drift("b", "db"), drift("b", "y"))
    tx.apply(changes(host("a", **WATCHED, capacity=2)))
    assert tx.drift.counts(["a", "b"]) == {"a": 2, "b": 2}
    assert tx.drift.counts_by_kind() == {"refused": 4}
    tx.apply(changes(without_vms=["db"]))
    assert [each.name for each in tx.drift.page(9)] == ["x", "y"]
    tx.apply(changes(host("a", address=WATCHED["address"]), without_hosts=["b"]))
    assert tx.drift.page(9) == []
    assert [each.name for each in tx.hosts.watched()] == []


def test_hosts_that_are_watched(tx: Transaction) -> None:
    fleet(tx)
    assert [(each.name, each.inventory) for each in tx.hosts.watched()] == [("a", "libvirt"), ("b", "libvirt")]


def test_definitions(tx: Transaction) -> None:
    fleet(tx)
    tx.definitions.put({"db": "<domain/>"}, NOW)
    tx.definitions.put({"db": "<domain>ö</domain>"}, NOW + timedelta(seconds=1))
    assert tx.definitions.get("db") == "<domain>ö</domain>"
    assert (tx.definitions.of(["db", "x"]), tx.definitions.of([])) == ({"db": "<domain>ö</domain>"}, {})
    tx.apply(changes(without_vms=["db"]))
    assert tx.definitions.get("db") is None


def test_who_is_known_by_what(tx: Transaction) -> None:
    fleet(tx)
    assert (tx.vms.known_by(["id-db", "id-x"]), tx.vms.known_by([])) == ({"id-db": "db"}, {})


def test_what_has_happened_since_to_hosts_and_vms(tx: Transaction) -> None:
    position = tx.apply(changes(entry("vm.moved", host="a", vm="db")))
    assert tx.journal.since(position, ["vm.moved"], hosts=["a"], vms=["db"]) == []
    tx.apply(changes(entry("vm.changed", host="b", vm="db"), entry("operation.started", host="a"), entry("vm.moved")))
    actions = ("vm.changed", "vm.moved", "operation.started")
    assert tx.journal.since(position, actions, hosts=["a"], vms=[]) == [position + 2]
    assert tx.journal.since(position, actions, hosts=["a"], vms=["db"]) == [position + 1, position + 2]
    assert tx.journal.since(position, actions[1:], hosts=["c"], vms=["db"]) == []
