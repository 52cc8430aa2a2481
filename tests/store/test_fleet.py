"""Hosts, scopes and VMs come back as they were kept; where VMs are, and what is going on there."""

from datetime import timedelta

import pytest
from tests.store.samples import MINUTE, NOW, changes, event, host, operation, scope, vm

from forenotice.core import selectors
from forenotice.core.fleet import Facts, Listening, Policy, ScopeKind
from forenotice.core.operations import Status
from forenotice.core.windows import parse_all
from forenotice.store.transaction import Transaction

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
        shutdown_timeout=timedelta(0),
        windows=parse_all(["mon-fri 22:00-04:00 Europe/Berlin", "daily 00:00-24:00 UTC"]),
    ),
    last_heard=NOW,
)
TAGS = {"team": 'Ünï "quoted" \\ 雪', "": "%s ? :x"}
FULL = vm(
    "web-0",
    "a",
    "group:web",
    update_domain=3,
    fault_domain=2,
    spot=True,
    addresses=("10.0.0.4", "fd00::4"),
    facts=Facts(location="north", zone="2", size="s1", tags=TAGS),
)
BARE = vm("db", "b", "vm:db", size=3)
HOST_A = host(
    "a", labels={"rack": "r1", "example.org/zone": "a"}, capacity=2.5, address="test://a", inventory="libvirt"
)
FLEET = (HOST_A, host("b", cordoned=True), WEB, scope("vm:db"), FULL, BARE)


def test_everything_comes_back_is_replaced_and_removed(tx: Transaction) -> None:
    tx.apply(changes(*FLEET))
    world = tx.worlds.fleet()
    assert world.hosts == {"a": HOST_A, "b": host("b", cordoned=True)}
    assert world.scopes == {"group:web": WEB, "vm:db": scope("vm:db")}
    assert world.vms == {"web-0": FULL, "db": BARE}
    assert world.addresses == {"10.0.0.4": "web-0", "fd00::4": "web-0", "id-web-0": "web-0", "id-db": "db"}
    assert (world.vms["db"].spot, world.scopes["vm:db"].policy.auto_approve_restart) == (False, False)
    assert [type(each) for each in (world.hosts["b"].cordoned, world.vms["db"].spot, world.vms["db"].size)] == [
        bool,
        bool,
        int,
    ]
    moved = vm("web-0", "b", "vm:web-0", addresses=("10.0.0.5",))
    tx.apply(changes(host("a", cordoned=True), scope("group:web", incarnation=8), moved))
    world = tx.worlds.fleet()
    assert (world.hosts["a"].cordoned, world.vms["web-0"]) == (True, moved)
    assert world.scopes["group:web"] == scope("group:web", incarnation=8)
    assert world.addresses == {"10.0.0.5": "web-0", "id-web-0": "web-0", "id-db": "db"}
    tx.apply(changes(without_hosts=["a", "ghost"], without_scopes=["group:web"], without_vms=["web-0"]))
    world = tx.worlds.fleet()
    assert (list(world.hosts), list(world.scopes), list(world.vms)) == (["b"], ["vm:db"], ["db"])
    assert world.addresses == {"id-db": "db"}


def test_an_address_passes_from_one_vm_to_another(tx: Transaction) -> None:
    for one, two in (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")):
        tx.apply(changes(vm("one", "a", "vm:one", addresses=(one,)), vm("two", "a", "vm:two", addresses=(two,))))
    assert tx.worlds.fleet().addresses == {"10.0.0.1": "two", "10.0.0.2": "one", "id-one": "one", "id-two": "two"}


@pytest.mark.parametrize("number", [9, 10, 6_000])
def test_few_and_many_rows_are_kept_alike(tx: Transaction, number: int) -> None:
    places = [f"10.1.{place >> 8}.{place & 255}" for place in range(number)]
    kept = [vm(f"vm-{place}", "a", "group:web", addresses=(place,)) for place in places]
    tx.apply(changes(WEB, *kept))
    named = tx.worlds.load(vms=[each.name for each in kept], addresses=places)
    assert tx.worlds.load(hosts=["a"]).vms == named.vms == {each.name: each for each in kept}
    assert len(named.addresses) == number


def test_when_a_scope_last_polled_never_goes_back(tx: Transaction) -> None:
    def heard() -> dict[str, object]:
        return {key: each.last_heard for key, each in tx.worlds.fleet().scopes.items()}

    tx.apply(changes(WEB, scope("vm:db"), scope("vm:silent")))
    tx.scopes.set_heard({"group:web": NOW - MINUTE, "vm:db": NOW, "vm:ghost": NOW})
    assert heard() == {"group:web": NOW, "vm:db": NOW, "vm:silent": None}
    tx.scopes.set_heard({"group:web": NOW + MINUTE})
    tx.scopes.set_heard({})
    tx.scopes.shift_heard(timedelta(hours=30))
    day = NOW + timedelta(hours=30)
    assert heard() == {"group:web": day + MINUTE, "vm:db": day, "vm:silent": None}
    with pytest.raises(ValueError, match="naive"):
        tx.apply(changes(scope("vm:db", last_heard=NOW.replace(tzinfo=None))))


def test_an_epoch_moves_tags_and_incarnations_on(tx: Transaction) -> None:
    db, web = scope("vm:db", tag="0a1b2c3d", incarnation=5), scope("vm:web", tag="4e5f6a7b", incarnation=90_000_000)
    tx.apply(changes(db, web))
    for epoch, expected in (
        (80_000_000, {"vm:db": ("0a1b2c3d.4c4b400", 80_000_000), "vm:web": ("4e5f6a7b.4c4b400", 90_065_536)}),
        (100_000_000, {"vm:db": ("0a1b2c3d.5f5e100", 100_000_000), "vm:web": ("4e5f6a7b.5f5e100", 100_000_000)}),
    ):
        tx.raise_epoch(epoch)
        assert tx.meta.epoch() == epoch
        found = tx.scopes.named(["vm:db", "vm:web"])
        assert {key: (each.tag, each.incarnation) for key, each in found.items()} == expected


def test_where_vms_are_and_what_is_going_on_there(tx: Transaction) -> None:
    tx.apply(
        changes(
            *(host(name) for name in "ab"),
            *(scope(key) for key in ("group:web", "group:webs", "vm:db", "vm:a_1", "vm:Zed")),
            vm("web-1", "b", "group:web", update_domain=1),
            vm("web-0", "a", "group:web"),
            vm("webs", "a", "group:webs", update_domain=7),
            *(vm(name, "a", f"vm:{name}") for name in ("db", "a_1", "Zed")),
            operation("late", host="b", not_before=NOW + 20 * MINUTE),
            operation("soon", host="b"),
            operation("now", host="b", status=Status.STARTED),
            operation("over", host="b", status=Status.COMPLETED),
            *(event(f"E-{name}", name, "group:web", resources=("web-1",)) for name in ("late", "soon", "now")),
            event("E-left", "now", "vm:db", Status.CANCELED),
            event("E-over", "over", "group:web", Status.COMPLETED),
            event("E-db", "soon", "vm:db", Status.STARTED, resources=("db",)),
        )
    )
    assert tx.vms.placed_on(["a", "b", "c"], 9) == [
        ("Zed", "a", "vm:Zed", 0),
        ("a_1", "a", "vm:a_1", 0),
        ("db", "a", "vm:db", 0),
        ("web-0", "a", "group:web", 0),
        ("webs", "a", "group:webs", 7),
        ("web-1", "b", "group:web", 1),
    ]
    assert [place.vm for place in tx.vms.placed_on(["b"], 9)] == ["web-1"]
    assert [place.vm for place in tx.vms.placed_on(["a", "b"], 2)] == ["Zed", "a_1"]
    assert [place.vm for place in tx.vms.placed_in(["group:web", "vm:db"], 9)] == ["web-0", "web-1", "db"]
    assert [place.vm for place in tx.vms.placed_in(["group:web", "vm:db"], 1)] == ["web-0"]
    for after, limit, seen, names in (
        ("", 10, None, ["Zed", "a_1", "db"]),
        ("", 2, None, ["Zed", "a_1"]),
        ("a_1", 2, None, ["db"]),
        ("", 10, "vm:d*,web", ["db"]),
        ("", 10, "web", []),
    ):
        found = tx.vms.standalone(after, limit, selectors.of_scopes(seen) if seen else None)
        assert [place.vm for place in found] == names
    assert sorted(tx.events.resources(["group:webs", "vm:db"])) == [(Status.STARTED, ("db",))]
    assert list(tx.events.on_host("b", 10)) == ["E-now", "E-db", "E-soon", "E-late"]
    assert list(tx.events.on_host("b", 1)) == ["E-now"]
    assert tx.events.on_host("c", 10) == {}
