"""What a decision gets to see: complete, and no more than it needs."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.samples import MINUTE, NOW, Thing, changes, event, host, operation, scope, vm

from forenotice.core.draft import World
from forenotice.core.fleet import Policy, ScopeKind, Vm
from forenotice.core.operations import EventType, Kind, Status
from forenotice.core.rollouts import Options, Rollout, RolloutHost, RolloutHostStatus, RolloutStatus
from forenotice.store.database import Store
from forenotice.store.transaction import Transaction


def names(world: World) -> dict[str, Any]:
    kinds = ("hosts", "vms", "scopes", "operations", "events")
    loaded: dict[str, Any] = {kind: set(getattr(world, kind)) for kind in kinds}
    return loaded | {"occupancy": world.occupancy, "addresses": world.addresses}


NOTHING = names(World())

# a: web-0, db; b: web-1, pool_0; c: pool_1 and cordoned; d: empty
FLEET: tuple[Thing, ...] = (
    host("a"),
    host("b"),
    host("c", cordoned=True),
    host("d"),
    scope("group:web"),
    scope("group:pool"),
    scope("vm:db"),
    scope("group:idle"),
    scope("vm:gone"),
    vm("web-0", "a", "group:web", addresses=("10.0.0.1",)),
    vm("db", "a", "vm:db", addresses=("10.0.0.2", "fd00::2")),
    vm("web-1", "b", "group:web"),
    vm("pool_0", "b", "group:pool"),
    vm("pool_1", "c", "group:pool"),
    operation("on-a", "a"),
    operation("on-b", "b", status=Status.STARTED),
    operation("over-a", "a", status=Status.COMPLETED),
    operation("on-c", "c"),
    operation("silent-d", "d"),
    event("EA-WEB", "on-a", "group:web"),
    event("EA-DB", "on-a", "vm:db", created_at=NOW - MINUTE),
    event("EB-WEB", "on-b", "group:web", status=Status.STARTED, created_at=NOW - MINUTE),
    event("EB-POOL", "on-b", "group:pool", status=Status.CANCELED),
    event("EO-WEB", "over-a", "group:web", status=Status.COMPLETED, ended_at=NOW - MINUTE),
    event("EO-DB", "over-a", "vm:db", status=Status.COMPLETED, ended_at=NOW - 2 * MINUTE),
    event("EC-POOL", "on-c", "group:pool"),
)


def test_what_comes_with_what(tx: Transaction) -> None:
    tx.apply(changes(*FLEET))
    shared = {
        "hosts": {"a"},
        "vms": {"web-0", "db"},
        "scopes": {"group:web", "vm:db"},
        "operations": {"on-a", "on-b"},
        "events": {"EA-WEB", "EA-DB", "EB-WEB", "EB-POOL"},
    }
    assert names(tx.worlds.load(events=["ea-db"])) == NOTHING | shared
    explained = shared | {"events": {"EA-WEB", "EA-DB", "EB-WEB"}}
    assert names(tx.worlds.load(events=["ea-db"], to_explain=True)) == NOTHING | explained
    found = tx.worlds.load(addresses=["fd00::2", "10.9.9.9"])
    assert names(found) == NOTHING | {"vms": {"db"}, "addresses": {"fd00::2": "db"}}
    assert names(tx.worlds.fleet()) == {
        "hosts": {"a", "b", "c", "d"},
        "vms": {"web-0", "db", "web-1", "pool_0", "pool_1"},
        "scopes": {"group:web", "group:pool", "vm:db", "group:idle", "vm:gone"},
        "operations": {"on-a", "on-b", "on-c", "silent-d"},
        "events": {"EA-WEB", "EA-DB", "EB-WEB", "EB-POOL", "EC-POOL"},
        "occupancy": {},
        "addresses": {identity: each.name for each in FLEET if isinstance(each, Vm) for identity in each.known_by},
    }


WAITING: tuple[Thing, ...] = (
    *map(host, "abc"),
    *(scope(key) for key in ("group:web", "group:pool", "group:budgeted", "vm:db", "vm:other")),
    vm("web-0", "a", "group:web"),
    vm("web-1", "b", "group:web"),
    vm("db", "a", "vm:db"),
    vm("other", "a", "vm:other"),
    vm("pool_0", "c", "group:pool"),
    operation("mine", "a", vms=("db", "web-0")),
    event("MINE-WEB", "mine", "group:web"),
    event("MINE-DB", "mine", "vm:db"),
    event("MINE-GONE", "mine", "group:pool", status=Status.CANCELED),
    operation("busy", "a", status=Status.STARTED),
    event("BUSY", "busy", "vm:other", status=Status.STARTED),
    operation("next", "a"),
    event("NEXT", "next", "vm:db"),
    operation("out", "b", status=Status.STARTED),
    event("OUT-WEB", "out", "group:web", status=Status.STARTED),
    event("OUT-DB", "out", "group:budgeted", status=Status.STARTED),
    operation("announced", "b"),
    event("ANNOUNCED", "announced", "group:web"),
    operation("deletion", "b", kind=Kind.DELETION),
    event("DELETION", "deletion", "group:web", type=EventType.TERMINATE),
    operation("over", "a", status=Status.COMPLETED),
    event("OVER", "over", "group:web", status=Status.COMPLETED),
)


def test_what_explains_an_operation(tx: Transaction) -> None:
    tx.apply(changes(*WAITING))
    assert names(tx.worlds.to_explain()) == NOTHING
    wanted: tuple[dict[str, list[str]], ...] = (
        {"operations": ["mine"]},
        {"events": ["mine-db"]},
        {"events": ["MINE-WEB", "x"]},
    )
    for named in wanted:
        world = tx.worlds.to_explain(**named)
        assert names(world) == NOTHING | {
            "vms": {"web-0", "db"},
            "scopes": {"group:web", "group:pool", "vm:db"},
            "operations": {"mine", "busy", "out", "deletion"},
            "events": {"MINE-WEB", "MINE-DB", "MINE-GONE", "OUT-WEB", "DELETION"},
        }
        mine = [each.scope for each in world.events.values() if each.operation == "mine"]
        assert mine == ["group:pool", "group:web", "vm:db"]


def test_what_schedules_some_vms_however_many_share_their_hosts(tx: Transaction) -> None:
    moving = operation("moving", "c", status=Status.STARTED, vms=("web-2",), targets={"web-2": "b"})
    telling = event("MOVING", "moving", "group:web", status=Status.STARTED)
    tx.apply(changes(*WAITING, host("d"), vm("web-2", "c", "group:web", update_domain=1), moving, telling))
    assert names(tx.worlds.to_schedule([])) == NOTHING
    assert names(tx.worlds.to_schedule(["db", "gone"])) == NOTHING | {
        "hosts": {"a"},
        "vms": {"db"},
        "scopes": {"vm:db"},
        "operations": {"mine", "next"},
        "events": {"MINE-WEB", "MINE-DB", "MINE-GONE", "NEXT"},
    }
    moved, whole = tx.worlds.to_schedule(["web-0"], targets=True), tx.worlds.load(vms=["web-0"], targets=True)
    assert moved.vms.keys() == {"web-0", "web-2"}
    assert moved.domains == {
        ("group:web", "a"): {(0, 0): 1},
        ("group:web", "b"): {(0, 0): 1},
        ("group:web", "c"): {(1, 0): 1},
    }
    assert (moved.occupancy, moved.awaiting) == (whole.occupancy, whole.awaiting)
    # A limit of users' operations is held against all VMs of the scope.
    limited = scope("group:web", policy=Policy(max_user_operations=1))
    tx.apply(changes(limited, operation("untold", "b", kind=Kind.DELETION, vms=("web-1",))))
    world = tx.worlds.to_schedule(["web-0"])
    assert (set(world.vms), "untold" in world.operations) == ({"web-0", "web-1", "web-2"}, True)


def test_users_operations_of_the_whole_fleet_are_counted_by_author(tx: Transaction) -> None:
    tx.apply(
        changes(
            *FLEET,
            operation("a1", "b", kind=Kind.RESTART, by="tenant:a"),
            operation("a2", "b", kind=Kind.REDEPLOY, by="tenant:a"),
            operation("b", "b", kind=Kind.DELETION, status=Status.STARTED, by="operator:b"),
            operation("over", "b", kind=Kind.RESTART, status=Status.COMPLETED, by="tenant:a"),
            operation("platform", "b", kind=Kind.EVICTION, by="tenant:a"),
        )
    )
    assert tx.worlds.to_schedule(["db"], asked_by=True).asked_by == {"tenant:a": 2, "operator:b": 1}
    assert tx.worlds.to_schedule(["db"]).asked_by == {}


def test_hosts_alone_and_where_to_go(tx: Transaction) -> None:
    tx.apply(changes(*WAITING))
    targets, whole = tx.worlds.targets(["group:web", "vm:db"]), tx.worlds.load(vms=["web-0"], targets=True)
    hosts = tx.worlds.hosts(["c", "x"], ["web-1", "gone"])
    assert names(hosts) == NOTHING | {"hosts": {"c"}, "vms": {"pool_0", "web-1"}}
    assert names(targets) == NOTHING | {"hosts": {"c"}, "vms": {"web-0", "web-1"}, "occupancy": {"c": 1}}
    assert (targets.occupancy, targets.awaiting) == (whole.occupancy, whole.awaiting)


def test_targets_leave_out_hosts_in_maintenance_and_tell_which_await_it(tx: Transaction) -> None:
    running = Rollout(
        id="running",
        kind=Kind.LIVE_MIGRATION,
        hosts="*",
        options=Options(),
        status=RolloutStatus.RUNNING,
        since=NOW,
        created_at=NOW,
        opens_at=NOW,
    )
    over = replace(running, id="over", ended_at=NOW, status=RolloutStatus.COMPLETED)
    tx.rollouts.put([running, replace(running, id="done"), over])
    tx.rollouts.put_hosts(
        RolloutHost(rollout=name, host=where, wave=0, status=status)
        for name, where, status in (
            ("running", "b", RolloutHostStatus.WAITING),
            ("over", "c", RolloutHostStatus.WAITING),
            ("done", "d", RolloutHostStatus.DONE),
        )
    )
    ended = operation("over", "c", status=Status.COMPLETED)
    tx.apply(changes(*map(host, "abcde"), operation("up", "a"), operation("restart", "e", kind=Kind.RESTART), ended))
    world = tx.worlds.load(targets=True)
    assert (world.awaiting, set(world.occupancy)) == ({"b"}, set("bcde"))
    assert tx.worlds.load(hosts=["a"]).awaiting == set()


def test_what_is_used_of_capacities(tx: Transaction) -> None:
    started: dict[str, Any] = {"status": Status.STARTED}
    tx.apply(
        changes(
            *(host(name, capacity=capacity) for name, capacity in (("a", 9), ("b", 9.5), ("c", 9), ("full", 0))),
            host("open"),
            host("shut", cordoned=True, capacity=9),
            vm("plain", "full", "vm:plain"),
            vm("one", "a", "vm:one"),
            vm("half", "a", "vm:half", size=0.5),
            vm("three", "b", "vm:three", size=3),
            vm("two", "open", "vm:two", size=2),
            vm("four", "shut", "vm:four", size=4),
            operation(
                "move", "b", kind=Kind.LIVE_MIGRATION, **started, done=("one",), targets={"one": "b", "three": "c"}
            ),
            operation("evacuation", "open", **started, vms=("two",), targets={"two": "a"}),
            operation("to-open", "shut", **started, vms=("four",), targets={"four": "open"}),
            operation("over", "b", status=Status.COMPLETED, vms=("three",), targets={"three": "a"}),
            operation("announced", "shut", vms=("four",)),
        )
    )
    incoming = {"three": ("c", 3), "two": ("a", 2)}
    for world in (
        tx.worlds.load(vms=["three"], targets=True),
        tx.worlds.to_schedule(["one"], targets=True),
        tx.worlds.targets([]),
    ):
        assert (world.used, world.incoming) == ({"a": 1.5, "b": 3, "c": 0, "full": 1}, incoming)
    assert (tx.worlds.load(vms=["three"]).used, tx.worlds.load(vms=["three"]).incoming) == ({}, {})
    assert tx.worlds.hosts(["a", "open"]).incoming == {"two": ("a", 2)}
    assert tx.worlds.hosts(["open"]).incoming == {}
    used = {"a": 3.5, "c": 3, "open": 6, "shut": 4, "none": 0}
    assert (tx.hosts.used(list(used)), tx.hosts.used([])) == (used, {})


def test_each_scope_with_its_vms_and_live_events(tx: Transaction) -> None:
    tx.apply(changes(*FLEET))
    shown = [
        (each.key, [vm.name for vm in vms], [event.id for event in events]) for each, vms, events in tx.worlds.scopes()
    ]
    assert shown == [
        ("group:idle", [], []),
        ("group:pool", ["pool_0", "pool_1"], ["EC-POOL"]),
        ("group:web", ["web-0", "web-1"], ["EB-WEB", "EA-WEB"]),
        ("vm:db", ["db"], ["EA-DB"]),
    ]
    some = tx.worlds.scopes(["vm:gone", "vm:db", "group:ghost", "group:web", "vm:db"])
    assert [each.key for each, _, _ in some] == ["group:web", "vm:db"]
    assert list(tx.worlds.scopes([])) == []
    # More than are held at once.
    keys = [f"vm:vm-{place:04}" for place in range(4_500)]
    tx.apply(changes(*(scope(key) for key in keys), *(vm(key.removeprefix("vm:"), "a", key) for key in keys)))
    everything = [(each.key, len(vms)) for each, vms, _ in tx.worlds.scopes()]
    assert everything[-len(keys) :] == [(key, 1) for key in keys]
    assert [each.key for each, _, _ in tx.worlds.scopes(keys[::-1])] == keys


# The same rules written plainly, over a whole world in memory.


@dataclass(frozen=True)
class Wanted:
    hosts: frozenset[str]
    vms: frozenset[str]
    scopes: frozenset[str]
    operations: frozenset[str]
    events: frozenset[str]
    members: bool
    targets: bool


def closure(everything: World, wanted: Wanted) -> dict[str, Any]:
    vms, operations, events = everything.vms.values(), everything.operations.values(), everything.events.values()
    named = {each.name for each in vms if each.name in wanted.vms}
    chosen = {each.id for each in operations if each.id in wanted.operations}
    chosen |= {each.operation for each in events if each.id in wanted.events}
    hosts = set(wanted.hosts) | {each.host for each in vms if each.name in named}
    hosts |= {each.host for each in operations if each.id in chosen}
    hosts |= {target for each in operations if each.id in chosen for target in each.targets.values()}
    found = named | {each.name for each in vms if each.host in hosts}
    chosen |= {each.id for each in operations if each.host in hosts and each.status.live}
    scopes = set(wanted.scopes) | {each.scope for each in vms if each.name in found}
    scopes |= {each.scope for each in events if each.operation in chosen}
    chosen |= {each.operation for each in events if each.scope in scopes and each.status.live}
    scopes &= everything.scopes.keys()
    if wanted.members or wanted.targets:
        groups = {key for key in scopes if everything.scopes[key].kind is not ScopeKind.STANDALONE}
        found |= {each.name for each in vms if each.scope in groups}
    busy = {each.host for each in operations if each.status.live and each.kind.traits.keeps_others_away}
    free = {each.name for each in everything.hosts.values() if not each.cordoned} - busy if wanted.targets else set()
    return {
        "hosts": (hosts | free) & everything.hosts.keys(),
        "vms": found,
        "scopes": scopes,
        "operations": chosen,
        "events": {each.id for each in events if each.operation in chosen},
        "occupancy": {name: sum(each.host == name for each in vms) for name in free},
        "addresses": {},
    }


HOSTS = [f"host-{number}" for number in range(4)]
SCOPES = ["group:one", "group:two", "vm:vm-0", "vm:vm-1", "vm:vm-2"]
VMS = [f"vm-{number}" for number in range(7)]
OPERATIONS = [f"operation-{number}" for number in range(5)]
EVENTS = [f"E{number}" for number in range(8)]
STATUSES = st.sampled_from([Status.SCHEDULED, Status.STARTED, Status.COMPLETED, Status.CANCELED])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    def some(names: list[str]) -> list[str]:
        return draw(st.lists(st.sampled_from(names), unique=True))

    world = World()
    world.hosts = {name: host(name, cordoned=draw(st.booleans())) for name in some(HOSTS)}
    world.scopes = {key: scope(key) for key in some(SCOPES)}
    for name in some(VMS):
        world.vms[name] = vm(name, draw(st.sampled_from(HOSTS)), draw(st.sampled_from(SCOPES)))
    for name in some(OPERATIONS):
        world.operations[name] = operation(name, draw(st.sampled_from(HOSTS)), draw(STATUSES))
    if world.operations:
        for name in some(EVENTS):
            of, status = draw(st.sampled_from(sorted(world.operations))), draw(STATUSES)
            ended = None if status.live else NOW - draw(st.integers(0, 3)) * MINUTE
            world.events[name] = event(name, of, draw(st.sampled_from(SCOPES)), status, ended_at=ended)
    return world


def few(names: list[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(names), max_size=2)


WANTED = st.builds(
    Wanted,
    hosts=few(HOSTS),
    vms=few(VMS),
    scopes=few(SCOPES),
    operations=few(OPERATIONS),
    events=few(EVENTS),
    members=st.booleans(),
    targets=st.booleans(),
)


class _EnoughError(Exception):
    """Takes back what an example has kept."""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(everything=worlds(), wanted=WANTED)
def test_the_closure_is_the_plain_one(store: Store, everything: World, wanted: Wanted) -> None:
    parts = (everything.hosts, everything.scopes, everything.vms, everything.operations, everything.events)
    things: list[Thing] = [thing for part in parts for thing in part.values()]
    with contextlib.suppress(_EnoughError), store.write() as transaction:
        transaction.apply(changes(*things))
        world = transaction.worlds.load(**vars(wanted))
        raise _EnoughError
    assert names(world) == closure(everything, wanted)
    for kind in ("hosts", "scopes", "vms", "operations", "events"):
        loaded, known = getattr(world, kind), getattr(everything, kind)
        assert all(thing == known[name] for name, thing in loaded.items())


APPROVALS: list[tuple[list[str], dict[str, set[str]], set[str]]] = [
    (["group:web"], {"on-a": {"EA-WEB"}, "on-b": {"EB-WEB"}}, {"on-a"}),
    (["vm:db"], {"on-a": {"EA-DB"}}, {"on-a"}),
    (["group:web", "vm:db"], {"on-a": {"EA-WEB", "EA-DB"}, "on-b": {"EB-WEB"}}, set()),
    (["group:pool"], {"on-c": {"EC-POOL"}}, set()),
    (["group:ghost"], {}, set()),
    ([], {}, set()),
]


def test_what_an_approval_needs(tx: Transaction) -> None:
    tx.apply(changes(*FLEET))
    everything = tx.worlds.fleet()
    for scopes, found, awaited in APPROVALS:
        world = tx.worlds.to_approve(scopes, ["web-0", "ghost"])
        assert world.operations == {key: everything.operations[key] for key in found}
        assert world.events == {key: everything.events[key] for keys in found.values() for key in keys}
        assert world.awaited_elsewhere == awaited
        assert world.vms == {"web-0": everything.vms["web-0"]}
    assert "EO-WEB" in tx.worlds.to_approve(["group:web"], [], NOW - MINUTE).events
    assert "EO-DB" not in tx.worlds.to_approve(["vm:db"], [], NOW - MINUTE).events
    tx.apply(
        changes(
            operation("one"),
            event("MINE", "one", "group:own"),
            event("FINE", "one", "vm:f", approved_at=NOW, approved_by="ada"),
            event("OVER", "one", "vm:over", status=Status.CANCELED),
        )
    )
    assert tx.worlds.to_approve(["group:own"], []).awaited_elsewhere == set()
