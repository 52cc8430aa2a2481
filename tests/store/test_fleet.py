"""Hosts, scopes and VMs come back as they were kept."""

from datetime import timedelta

import pytest
from tests.store.samples import MINUTE, NOW, changes, event, host, keep, operation, scope, vm

from forenotice.core import selectors
from forenotice.core.fleet import Facts, Listening, Policy, ScopeKind
from forenotice.core.operations import Status
from forenotice.core.windows import parse_all
from forenotice.store.database import Store

WEB = scope(
    "group:web",
    kind=ScopeKind.PLACEMENT_GROUP,
    incarnation=7_000_000_000,
    policy=Policy(
        listening=Listening.NEVER,
        auto_approve_restart=True,
        terminate_notice=timedelta(minutes=5, microseconds=1),
        max_user_operations=3,
        max_unavailable="25%",
        min_available=2,
        windows=parse_all(["mon-fri 22:00-04:00 Europe/Berlin", "daily 00:00-24:00 UTC"]),
    ),
    last_heard=NOW,
)
FULL = vm(
    "web-0",
    "a",
    "group:web",
    update_domain=3,
    fault_domain=2,
    spot=True,
    addresses=("10.0.0.4", "fd00::4"),
    facts=Facts(location="north", zone="2", size="s1", tags={"team": 'Ünï "quoted" \\ 雪', "": "%s ? :x"}),
)
BARE = vm("db", "b", "vm:db", size=3)
LABELS = {"rack": "r1", "example.org/zone": "a"}
HOST_A = host("a", labels=LABELS, capacity=2.5, address="10.0.0.1")
FLEET = (HOST_A, host("b", cordoned=True), WEB, scope("vm:db"), FULL, BARE)


def test_everything_comes_back(store: Store) -> None:
    keep(store, *FLEET)
    with store.read() as reader:
        world = reader.worlds.fleet()
    assert world.hosts == {"a": HOST_A, "b": host("b", cordoned=True)}
    assert world.scopes == {"group:web": WEB, "vm:db": scope("vm:db")}
    assert world.vms == {"web-0": FULL, "db": BARE}
    assert world.addresses == {"10.0.0.4": "web-0", "fd00::4": "web-0", "id-web-0": "web-0", "id-db": "db"}
    assert isinstance(world.vms["db"].spot, bool)
    assert isinstance(world.hosts["b"].cordoned, bool)
    assert isinstance(world.vms["db"].size, int), "as it was given"
    assert world.scopes["vm:db"].policy.auto_approve_restart is False


def test_keeping_again_replaces(store: Store) -> None:
    keep(store, *FLEET)
    moved = vm("web-0", "b", "vm:web-0", addresses=("10.0.0.5",))
    keep(store, host("a", cordoned=True), scope("group:web", incarnation=8), moved)
    with store.read() as reader:
        world = reader.worlds.fleet()
    assert world.hosts["a"].cordoned
    assert world.scopes["group:web"] == scope("group:web", incarnation=8)
    assert world.vms["web-0"] == moved
    assert world.addresses == {"10.0.0.5": "web-0", "id-web-0": "web-0", "id-db": "db"}


def test_removal(store: Store) -> None:
    keep(store, *FLEET)
    with store.write() as transaction:
        transaction.apply(changes(without_hosts=["a", "ghost"], without_scopes=["group:web"], without_vms=["web-0"]))
    with store.read() as reader:
        world = reader.worlds.fleet()
    assert (list(world.hosts), list(world.scopes), list(world.vms)) == (["b"], ["vm:db"], ["db"])
    assert world.addresses == {"id-db": "db"}


def test_an_address_passes_from_one_vm_to_another(store: Store) -> None:
    keep(store, vm("one", "a", "vm:one", addresses=("10.0.0.1",)), vm("two", "a", "vm:two", addresses=("10.0.0.2",)))
    keep(store, vm("one", "a", "vm:one", addresses=("10.0.0.2",)), vm("two", "a", "vm:two", addresses=("10.0.0.1",)))
    with store.read() as reader:
        found = reader.worlds.fleet().addresses
    assert found == {"10.0.0.1": "two", "10.0.0.2": "one", "id-one": "one", "id-two": "two"}


@pytest.mark.parametrize("number", [9, 10, 6_000])
def test_few_and_many_rows_are_kept_alike(store: Store, number: int) -> None:
    kept = [
        vm(f"vm-{place}", "a", "group:web", addresses=(f"10.1.{place >> 8}.{place & 255}",)) for place in range(number)
    ]
    keep(store, WEB, *kept)
    with store.read() as reader:
        world = reader.worlds.load(hosts=["a"])
        named = reader.worlds.load(vms=[each.name for each in kept], addresses=[each.addresses[0] for each in kept])
    assert world.vms == named.vms == {each.name: each for each in kept}
    assert len(named.addresses) == number


def test_pages_of_hosts(store: Store) -> None:
    keep(store, *(host(name) for name in ("b", "B", "a-2", "a_1", "é")), vm("x", "b", "vm:x"), vm("y", "b", "vm:y"))
    with store.read() as reader:
        first = reader.hosts.page(None, 3)
        rest = reader.hosts.page(first[-1][0].name, 3)
    assert [(each.name, number) for each, number in first] == [("B", 0), ("a-2", 0), ("a_1", 0)]
    assert [(each.name, number) for each, number in rest] == [("b", 2), ("é", 0)]


def test_heard_never_goes_back(store: Store) -> None:
    keep(store, WEB, scope("vm:db"))
    with store.write() as transaction:
        transaction.scopes.set_heard({"group:web": NOW - MINUTE, "vm:db": NOW, "vm:ghost": NOW})
    with store.read() as reader:
        heard = {key: each.last_heard for key, each in reader.worlds.fleet().scopes.items()}
    assert heard == {"group:web": NOW, "vm:db": NOW}
    with store.write() as transaction:
        transaction.scopes.set_heard({"group:web": NOW + MINUTE})
        transaction.scopes.set_heard({})
        assert transaction.scopes.named(["group:web"])["group:web"].last_heard == NOW + MINUTE
    keep(store, scope("vm:silent"))
    with store.write() as transaction:
        transaction.scopes.shift_heard(timedelta(hours=30))
        heard = {key: each.last_heard for key, each in transaction.worlds.fleet().scopes.items()}
    day = NOW + timedelta(hours=30)
    assert heard == {"group:web": day + MINUTE, "vm:db": day, "vm:silent": None}


def test_a_naive_time_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="naive"):
        keep(store, scope("vm:db", last_heard=NOW.replace(tzinfo=None)))


def test_an_epoch_moves_tags_and_incarnations_on(store: Store) -> None:
    keep(store, scope("vm:db", tag="0a1b2c3d", incarnation=5), scope("vm:web", tag="4e5f6a7b", incarnation=90_000_000))
    for epoch, expected in (
        (80_000_000, {"vm:db": ("0a1b2c3d.4c4b400", 80_000_000), "vm:web": ("4e5f6a7b.4c4b400", 90_065_536)}),
        (100_000_000, {"vm:db": ("0a1b2c3d.5f5e100", 100_000_000), "vm:web": ("4e5f6a7b.5f5e100", 100_000_000)}),
    ):
        with store.write() as transaction:
            transaction.raise_epoch(epoch)
        with store.read() as reader:
            assert reader.meta.epoch() == epoch
            found = reader.scopes.named(["vm:db", "vm:web"])
            assert {key: (each.tag, each.incarnation) for key, each in found.items()} == expected


@pytest.fixture
def full(store: Store) -> Store:
    keep(
        store,
        *(host(name) for name in "ab"),
        *(scope(key) for key in ("group:web", "group:webs", "vm:db", "vm:a_1", "vm:Zed")),
        vm("web-1", "b", "group:web", update_domain=1),
        vm("web-0", "a", "group:web"),
        vm("webs", "a", "group:webs", update_domain=7),
        *(vm(name, "a", f"vm:{name}") for name in ("db", "a_1", "Zed")),
        operation("o"),
        event("E1", "o", "group:web", Status.STARTED, resources=("web-0",)),
        event("E2", "o", "group:web", resources=("web-0", "web-1")),
        event("E3", "o", "group:web", Status.COMPLETED, resources=("web-1",)),
        event("E4", "o", "vm:db", resources=("db",)),
    )
    return store


def test_by_host_and_by_scope(full: Store) -> None:
    with full.read() as reader:
        assert reader.vms.placed_on(["a", "b", "c"], 9) == [
            ("Zed", "a", "vm:Zed", 0),
            ("a_1", "a", "vm:a_1", 0),
            ("db", "a", "vm:db", 0),
            ("web-0", "a", "group:web", 0),
            ("webs", "a", "group:webs", 7),
            ("web-1", "b", "group:web", 1),
        ]
        assert [place.vm for place in reader.vms.placed_on(["b"], 9)] == ["web-1"]
        assert [place.vm for place in reader.vms.placed_on(["a", "b"], 2)] == ["Zed", "a_1"]
        assert [place.vm for place in reader.vms.placed_in(["group:web", "vm:db"], 9)] == ["web-0", "web-1", "db"]
        assert [place.vm for place in reader.vms.placed_in(["group:web", "vm:db"], 1)] == ["web-0"]


def test_standalone_vms_come_page_by_page_and_live_events_name_vms(full: Store) -> None:
    with full.read() as reader:
        for after, limit, seen, names in (
            ("", 10, None, ["Zed", "a_1", "db"]),
            ("", 2, None, ["Zed", "a_1"]),
            ("a_1", 2, None, ["db"]),
            ("", 10, "vm:d*,web", ["db"]),
            ("", 10, "web", []),
        ):
            found = reader.vms.standalone(after, limit, selectors.of_scopes(seen) if seen else None)
            assert [place.vm for place in found] == names
        assert sorted(reader.events.resources(["group:web", "group:webs"])) == [
            (Status.SCHEDULED, ("web-0", "web-1")),
            (Status.STARTED, ("web-0",)),
        ]


def test_what_is_live_on_a_host_comes_with_what_has_started_first(full: Store) -> None:
    keep(
        full,
        operation("late", host="b", not_before=NOW + 20 * MINUTE),
        operation("soon", host="b"),
        operation("now", host="b", status=Status.STARTED),
        operation("over", host="b", status=Status.COMPLETED),
        *(event(f"E-{name}", name, "group:web") for name in ("late", "soon", "now")),
        event("E-left", "now", "vm:db", Status.CANCELED),
        event("E-over", "over", "group:web", Status.COMPLETED),
    )
    with full.read() as reader:
        assert list(reader.events.on_host("b", 10)) == ["E-now", "E-soon", "E-late"]
        assert list(reader.events.on_host("b", 1)) == ["E-now"]
        assert reader.events.on_host("c", 10) == {}
