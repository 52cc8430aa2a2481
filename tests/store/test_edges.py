"""Edges: kept, lost, gone with their host; and what a decision is told of those that are lost."""

from dataclasses import replace
from datetime import timedelta

from tests.store.samples import NOW, changes, event, host, operation, scope, vm

from forenotice.core.edges import Edge
from forenotice.core.operations import Kind, Status
from forenotice.store.fleet import GroupFilter
from forenotice.store.transaction import Transaction

SECOND = timedelta(seconds=1)


def fleet(tx: Transaction) -> None:
    """Group `web` on a and b, `db` on c; each host has an edge."""
    tx.apply(
        changes(
            *map(host, "abcd"),
            scope("group:web"),
            scope("vm:db"),
            scope("group:empty"),
            vm("web-0", "a", "group:web"),
            vm("web-1", "b", "group:web"),
            vm("db", "c", "vm:db"),
        )
    )
    tx.edges.put(Edge(host=name, since=NOW) for name in "abc")


def lose(tx: Transaction, **since: int) -> None:
    tx.edges.put(Edge(host=name, since=NOW, lost_since=NOW + seconds * SECOND) for name, seconds in since.items())


def test_edges_are_kept_changed_and_forgotten(tx: Transaction) -> None:
    fleet(tx)
    a, b, c = tx.edges.all()
    assert a == Edge(host="a", since=NOW)
    assert tx.edges.of(["c", "a", "x"]) == [a, c]
    assert tx.edges.of([]) == []
    tx.edges.put([replace(b, lost_since=NOW)])
    assert tx.edges.of(["b"]) == [Edge(host="b", since=NOW, lost_since=NOW)]
    tx.edges.forget("b")
    tx.edges.forget("x")
    assert tx.edges.all() == [a, c]


def test_an_edge_goes_with_its_host(tx: Transaction) -> None:
    fleet(tx)
    tx.apply(changes(host("b", cordoned=True), without_vms=["web-0"], without_hosts=["a"]))
    assert [edge.host for edge in tx.edges.all()] == ["b", "c"]


def test_a_scope_tells_since_when_an_edge_of_its_guests_is_lost(tx: Transaction) -> None:
    fleet(tx)
    keys = ["group:web", "vm:db", "group:empty"]
    assert all(each.unheard_since is None for each in tx.scopes.named(keys).values())
    lose(tx, a=5, b=3)
    unheard = {"group:web": NOW + 3 * SECOND, "vm:db": None, "group:empty": None}
    for found in (
        tx.scopes.named(keys),
        {each.key: each for each, _ in tx.scopes.groups(None, 9, GroupFilter())} | tx.scopes.named(["vm:db"]),
        tx.worlds.load(scopes=keys).scopes,
        tx.worlds.load(vms=["web-0", "db"], scopes=["group:empty"]).scopes,
        tx.worlds.fleet().scopes,
        {each.key: each for each, _, _ in tx.worlds.scopes()} | tx.scopes.named(["vm:db"]),
    ):
        assert {key: each.unheard_since for key, each in found.items()} == unheard
    tx.edges.put([Edge(host="b", since=NOW)])
    assert tx.scopes.named(["group:web"])["group:web"].unheard_since == NOW + 5 * SECOND
    tx.edges.forget("a")
    assert tx.scopes.named(["group:web"])["group:web"].unheard_since is None


def test_a_scope_is_written_without_what_its_edges_tell(tx: Transaction) -> None:
    fleet(tx)
    lose(tx, a=0)
    heard = replace(tx.scopes.named(["group:web"])["group:web"], last_heard=NOW)
    tx.apply(changes(heard))
    tx.edges.put([Edge(host="a", since=NOW)])
    assert tx.scopes.named(["group:web"])["group:web"] == replace(heard, unheard_since=None)


def test_nobody_is_placed_where_an_edge_is_lost(tx: Transaction) -> None:
    fleet(tx)
    lose(tx, c=0)
    world = tx.worlds.load(vms=["web-0"], targets=True)
    assert (world.occupancy, world.lost_edges) == ({"a": 1, "b": 1, "d": 0}, {"c"})
    assert tx.worlds.targets(["group:web"]).lost_edges == {"c"}
    assert tx.worlds.load(vms=["web-0"]).lost_edges == set()
    assert tx.hosts.emptier(9) == ["d", "a", "b"]


def test_a_clock_that_was_ahead_leaves_no_edge_lost_in_the_future(tx: Transaction) -> None:
    fleet(tx)
    lose(tx, a=-SECOND.seconds, b=3600)
    tx.set_back(NOW, NOW + timedelta(hours=1))
    a, b = tx.edges.of(["a", "b"])
    assert (a.lost_since, b.lost_since) == (NOW - SECOND, NOW)


def test_which_names_are_hosts(tx: Transaction) -> None:
    fleet(tx)
    assert tx.hosts.among(["a", "x", "d"]) == {"a", "d"}
    assert tx.hosts.among([]) == set()


def test_where_a_vm_is_and_where_it_goes(tx: Transaction) -> None:
    fleet(tx)
    moves = {"kind": Kind.REDEPLOY, "vms": ("db",), "targets": {"db": "d"}}
    tx.apply(
        changes(
            operation("1", "c", Status.STARTED, **moves),
            event("E1", "1", "vm:db", Status.STARTED, resources=("db",)),
            operation("2", "c", Status.COMPLETED, **moves | {"targets": {"db": "a"}}),
            event("E2", "2", "vm:db", Status.COMPLETED, resources=("db",), ended_at=NOW),
        )
    )
    assert tx.vms.whereabouts("db") == {"c", "d"}
    assert tx.vms.whereabouts("web-0") == {"a"}
    assert tx.vms.whereabouts("x") == set()


def test_what_is_held_on_hosts_is_woken(tx: Transaction) -> None:
    fleet(tx)
    later = NOW + SECOND
    tx.apply(
        changes(
            operation("1", "a", held=True, due_at=later),
            operation("2", "b", due_at=later),
            operation("3", "c", Status.STARTED, held=True, due_at=later),
        )
    )
    assert [tx.operations.are_held_on([name]) for name in "abc"] == [True, False, False]
    assert tx.operations.wake_on(["a", "b", "c"], NOW) == 1
    assert tx.operations.wake_on(["a"], NOW) == 0
    assert tx.operations.due(NOW, 9) == ["1"]
