"""What the portal shows: all that is live with why it waits, the fleet as a map, and what a search finds."""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.service.rig import OPERATOR, START, Rig, load_whole_fleet
from tests.service.rolling import Failing, Rolling

from forenotice.core import errors, roles, selectors
from forenotice.core.fleet import Listening, ScopeKind, natural_key
from forenotice.core.operations import Kind
from forenotice.core.roles import Access
from forenotice.core.timing import Timing
from forenotice.service import fleet, fleet_map, maintenance, overview, queries
from forenotice.service.calls import Call
from forenotice.store.database import Store
from forenotice.store.worlds import Worlds
from forenotice.views.fleet import HostChange
from forenotice.views.maintenance import More

DAY = timedelta(days=1)
HOSTS = [f"h{number}" for number in range(6)]
GROUPS = ("web", "pool", "db")
ALL = roles.EVERYTHING
TENANT = roles.access("tenant", "web,vm:solo-0")
ACCESSES = (ALL, TENANT, roles.access("viewer", "*,!web"), roles.access("viewer", None), roles.access("platform", None))


def now(rig: Rig, access: Access = ALL, **asked: Any) -> Any:
    return overview.now(rig.service, access, since=rig.clock.now() - DAY, **{"most": 500} | asked)


@pytest.mark.parametrize("seed", [2, 5])
def test_the_same_as_one_by_one(sqlite_store: Store, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    rig = Rolling(sqlite_store, driver=Failing(Timing())).settle(_fleet(chance))
    kinds: set[str] = set()
    for _ in range(25):
        _do_something(rig, chance)
        for access in ACCESSES:
            found = now(rig, access)
            _require_same(rig, found, access)
            kinds |= {facts["kind"] for item in found.listed for facts in item.why.waiting_for}
            with monkeypatch.context() as patched:
                patched.setattr(Worlds, "to_explain", load_whole_fleet)
                assert now(rig, access) == found
    assert {"approval"} < kinds


def _require_same(rig: Rig, found: Any, access: Access) -> None:
    seen = access.scopes
    live = queries.events(rig.service, live=True, limit=1000, seen=seen).items
    # Each on a page of its own order; of all of them together the same.
    listed = [item for page in range(1, found.pages + 1) for item in now(rig, access, page=page).listed]
    assert sorted(item.id for item in listed) == sorted(event.id for event in live)
    by_id = {event.id: event for event in live}
    for item in listed:
        assert all(getattr(item, name) == getattr(by_id[item.id], name) for name in by_id[item.id].__struct_fields__)
        assert item.why == queries.explain_event(rig.service, item.id, seen)
    urgency = [(item.status == "Scheduled", item.not_before) for item in listed]
    assert urgency == sorted(urgency)
    bars = {bar.id: bar for bar in found.bars}
    assert bars.keys() == {event.id for event in queries.events(rig.service, limit=1000, seen=seen).items}
    assert found.live == sum(found.counts.values()) == len(live)


def _fleet(chance: random.Random) -> dict[str, Any]:
    policies: list[dict[str, Any]] = [{}, {"max_unavailable": 1}, {"windows": ["daily 13:00-14:00 UTC"]}]
    vms: dict[str, Any] = {f"solo-{number}": {"host": chance.choice(HOSTS[:4])} for number in range(3)}
    for group in GROUPS:
        for number, host in enumerate(chance.sample(HOSTS[:5], 3)):
            place = {"host": host, "group": group, "update_domain": number, "fault_domain": number}
            vms[f"{group}-{number}"] = place
    groups = {
        group: {"kind": "availability-set", "policy": {"listening": "always", **chance.choice(policies)}}
        for group in GROUPS
    }
    return {"hosts": {host: {} for host in HOSTS}, "groups": groups, "vms": vms}


def _do_something(rig: Rolling, chance: random.Random) -> None:
    vms = [vm.name for vm in queries.vms(rig.service).items]
    assert isinstance(rig.driver, Failing)
    rig.driver.hosts = frozenset(chance.sample(HOSTS, 2))
    kind = chance.choice([kind for kind in Kind if kind is not Kind.EVICTION])
    name = chance.choice(HOSTS[:5] if kind.traits.of_host else vms)
    call = Call(actor=chance.choice(["operator:ada", "tenant:shop"]), token_id="t")
    try:
        match chance.randrange(6):
            case 0:
                live = rig.live_events()
                maintenance.approve(rig.service, call, chance.choice([event.id for event in live] or ["none"]))
            case 1:
                rig.pass_time(minutes=chance.choice([1, 20]))
            case 2:
                fleet.set_host(rig.service, call, chance.choice(HOSTS), HostChange(cordoned=chance.random() < 0.7))
            case _:
                rig.schedule(kind, name, call=call)
    except errors.ForenoticeError:
        # Such as another deletion of the same VM.
        rig.pass_time(seconds=5)


def test_a_bar_from_its_appearance_to_its_end(rig: Rig) -> None:
    [update] = rig.schedule(Kind.HOST_UPDATE, "host-a")
    [restart] = rig.schedule(Kind.RESTART, "db")
    bars = {bar.scope: bar for bar in now(rig).bars}
    assert bars.keys() == {"group:web", "group:pool", "vm:db"}
    web = bars["group:web"]
    assert (web.created_at, web.started_at, web.ended_at) == (START, None, None)
    assert web.expected_end == web.not_before + timedelta(seconds=9)
    assert bars["vm:db"].expected_end is None
    rig.cancel(restart)
    rig.approve_all(update)
    rig.tick()
    found = now(rig)
    web = next(bar for bar in found.bars if bar.scope == "group:web")
    assert (web.status, web.started_at, web.expected_end) == ("Started", START, START + timedelta(seconds=9))
    assert found.counts == {"Started": 2, "Scheduled": 0}
    rig.run(20)
    found = now(rig)
    assert (found.live, found.listed, found.more) == (0, [], More(live=False, ended=False))
    assert {bar.status for bar in found.bars} == {"Completed", "Canceled"}
    assert all(bar.expected_end is None for bar in found.bars)
    canceled = next(bar for bar in found.bars if bar.scope == "vm:db")
    assert (canceled.started_at, canceled.ended_at) == (None, START)
    rig.clock.advance(days=1)
    assert now(rig).bars == []


def test_pages_and_how_much_is_drawn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "PAGE", 2)
    for name in ("web-0", "web-1", "web-2", "db", "batch"):
        rig.schedule(Kind.RESTART, name)
    pages = [now(rig, page=page, most=3) for page in (1, 2, 3)]
    assert [len(page.listed) for page in pages] == [2, 2, 1]
    assert len({item.id for page in pages for item in page.listed}) == 5
    assert [(page.page, page.pages) for page in pages] == [(1, 3), (2, 3), (3, 3)]
    assert now(rig, page=99) == now(rig, page=3)
    assert now(rig, page=-1) == now(rig, page=1)
    assert (len(pages[0].bars), pages[0].more) == (3, More(live=True, ended=False))
    for name in ("pool_0", "pool_1"):
        [made] = rig.schedule(Kind.RESTART, name)
        rig.cancel(made)
    found = now(rig, most=4)
    assert [bar.status for bar in found.bars] == ["Scheduled"] * 4 + ["Canceled"]
    assert found.more == More(live=True, ended=True)
    assert len(now(rig, most=7).bars) == 7
    for item in rig.live_events():
        maintenance.cancel_event(rig.service, Call(actor="operator:ada"), item.id)
    found = now(rig, most=3)
    assert (len(found.bars), found.more) == (3, More(live=False, ended=True))


def test_of_one_scope(rig: Rig) -> None:
    rig.schedule(Kind.HOST_UPDATE, "host-a")
    found = now(rig, scope="group:web")
    assert {bar.scope for bar in found.bars} == {item.scope for item in found.listed} == {"group:web"}
    assert found.live == 1
    other = now(rig, TENANT, scope="group:pool")
    assert (other.bars, other.listed, other.live) == ([], [], 0)


def test_what_the_caller_may_do(rig: Rig) -> None:
    tenant = Call(actor="tenant:shop", token_id="t", access=TENANT)
    rig.schedule(Kind.HOST_UPDATE, "host-a")
    rig.schedule(Kind.RESTART, "web-1", call=tenant)
    may = {
        str(access.role): [
            (item.kind, item.may_approve, item.may_cancel)
            for item in sorted(now(rig, access, scope="group:web").listed, key=lambda item: str(item.kind))
        ]
        for access in (ALL, TENANT, roles.access("viewer", "web"))
    }
    assert may == {
        "admin": [("host-update", True, True), ("restart", True, True)],
        "tenant": [("host-update", True, False), ("restart", True, True)],
        "viewer": [("host-update", False, False), ("restart", False, False)],
    }
    for item in now(rig).listed:
        maintenance.approve(rig.service, Call(actor="operator:ada"), item.id)
    found = now(rig).listed
    assert [(item.approved_by, item.may_approve, item.may_cancel) for item in found] == [
        ("operator:ada", False, True)
    ] * 3
    rig.tick()
    started = [item for item in now(rig).listed if item.status == "Started"]
    assert started
    assert not any(item.may_approve or item.may_cancel for item in started)


def test_of_a_group_a_host_and_a_vm(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has the longest notice is announced first, and comes last in the lists; what has started comes first."""
    monkeypatch.setattr(overview, "MOST", 2)
    rig.add_group("new", listening=Listening.ALWAYS)
    for number in range(4):
        rig.add_vm(f"new-{number}", "host-d", group="new")
        rig.schedule(Kind.RESTART, f"new-{number}", notice=timedelta(minutes=100 - 10 * number))
        rig.clock.advance(seconds=1)

    def of_group() -> Any:
        return overview.of_group(rig.service, "new", ALL)

    for found in (of_group(), overview.of_host(rig.service, "host-d", ALL)):
        assert ([item.resources for item in found.items], found.more) == ([["new-3"], ["new-2"]], True)
    maintenance.approve(rig.service, OPERATOR, of_group().items[1].id)
    rig.tick()
    assert [item.resources for item in of_group().items] == [["new-2"], ["new-3"]]
    rig.schedule(Kind.RESTART, "db", notice=timedelta(minutes=60))
    rig.schedule(Kind.REDEPLOY, "db", notice=timedelta(minutes=30))
    found = overview.of_vm(rig.service, "db", ALL)
    assert ([item.type for item in found.items], found.more) == (["Redeploy", "Reboot"], False)


WEB = selectors.of_scopes("web,vm:db")


def told(found: Any) -> Any:
    """By row, the VMs of each cell with their states."""
    return {
        row.name or row.noun: [[(vm.name, vm.state) for vm in cell.vms] for cell in row.cells] for row in found.rows
    }


@pytest.fixture
def busy(rig: Rig) -> Rig:
    """Of each state one: web-0 restarts, web-1 will, db does not listen."""
    (first, _) = rig.schedule(Kind.RESTART, "web-0", "web-1")
    maintenance.approve(rig.service, OPERATOR, first.events[0].id)
    rig.set_policy("vm:db", listening=Listening.NEVER)
    rig.tick()
    return rig


def test_hosts_and_groups_by_update_domain(busy: Rig) -> None:
    found = fleet_map.by_host(busy.service)
    assert found.domains == [0, 1, 2]
    assert told(found) == {
        "host-a": [[("pool_0", "fine"), ("pool_1", "fine"), ("web-0", "started")], [], []],
        "host-b": [[("db", "not listening")], [("pool_2", "fine"), ("pool_3", "fine"), ("web-1", "scheduled")], []],
        "host-c": [[("batch", "fine")], [], [("pool_4", "fine"), ("web-2", "fine")]],
        "host-d": [[], [], []],
    }
    assert found.states == {"started": 1, "scheduled": 1, "not listening": 1, "missing": 0, "fine": 7}
    assert (found.next, found.folded) == (None, False)
    assert [row.vms for row in found.rows] == [3, 4, 3, 0]
    assert told(fleet_map.by_group(busy.service)) == {
        "pool": [
            [("pool_0", "fine"), ("pool_1", "fine")],
            [("pool_2", "fine"), ("pool_3", "fine")],
            [("pool_4", "fine")],
        ],
        "web": [[("web-0", "started")], [("web-1", "scheduled")], [("web-2", "fine")]],
        "standalone": [[("batch", "fine"), ("db", "not listening")], [], []],
    }
    vms = fleet_map.with_states(busy.service, queries.vms(busy.service).items)
    assert {vm.name: vm.state for vm in vms if vm.state != "fine"} == {
        "web-0": "started",
        "web-1": "scheduled",
        "db": "not listening",
    }


def test_limited_scopes_have_no_more_in_the_map(busy: Rig) -> None:
    found = fleet_map.by_group(busy.service, seen=WEB)
    assert list(told(found)) == ["web", "standalone"]
    assert told(found)["standalone"] == [[("db", "not listening")], [], []]
    assert sum(found.states.values()) == 4
    assert fleet_map.by_group(busy.service, seen=selectors.of_scopes("nobody")).rows == []


def test_pages_follow_each_other(rig: Rig) -> None:
    def pages(ask: Callable[..., Any], **most: int) -> Iterator[list[str]]:
        found = ask(rig.service, **most)
        yield [vm.name for row in found.rows for cell in row.cells for vm in cell.vms]
        while found.next is not None:
            found = ask(rig.service, after=found.next, **most)
            yield [vm.name for row in found.rows for cell in row.cells for vm in cell.vms]

    assert [len(page) for page in pages(fleet_map.by_host, rows=3)] == [10, 0]
    # The last group leaves room for what follows.
    assert list(pages(fleet_map.by_group, rows=1, alone=1)) == [
        ["pool_0", "pool_1", "pool_2", "pool_3", "pool_4"],
        ["web-0", "web-1", "web-2", "batch"],
        ["db"],
    ]


def test_a_full_page_of_vms_ends_it_earlier(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_map, "MOST_VMS", 3)
    found = fleet_map.by_host(rig.service)
    assert (list(told(found)), found.next) == (["host-a"], "host-a")
    # Of one that is larger than a page, the first are shown, and the others counted.
    for found in (fleet_map.by_host(rig.service, after="host-a"), fleet_map.by_group(rig.service)):
        (row,) = found.rows
        assert found.next in ("host-b", "group:pool")
        assert (sum(len(cell.vms) for cell in row.cells), row.vms - row.left_out) == (3, 3)
        assert row.left_out == {"host-b": 1, "pool": 2}[row.name]


def test_a_crowded_cell_shows_what_is_urgent_and_counts_the_others(rig: Rig) -> None:
    rig.add_group("many", ScopeKind.PLACEMENT_GROUP, listening=Listening.ALWAYS)
    for number in range(fleet_map.MOST_SHOWN + 3):
        rig.add_vm(f"many-{number}", "host-d", group="many", update_domain=4)
    last = f"many-{fleet_map.MOST_SHOWN + 2}"
    rig.schedule(Kind.RESTART, last)
    (row,) = [row for row in fleet_map.by_host(rig.service).rows if row.name == "host-d"]
    cell = row.cells[-1]
    shown = [vm.name for vm in cell.vms]
    assert shown == sorted(shown, key=natural_key)
    assert (len(shown), cell.more, row.vms) == (fleet_map.MOST_SHOWN, 3, fleet_map.MOST_SHOWN + 3)
    assert (shown[:3], shown[-1]) == (["many-0", "many-1", "many-2"], last)


def test_beyond_the_last_column_domains_share_it(rig: Rig) -> None:
    for number in range(3, fleet_map.MOST_DOMAINS + 2):
        rig.add_vm(f"lone-{number}", "host-d", update_domain=number)
    found = fleet_map.by_host(rig.service)
    assert found.folded
    assert found.domains == list(range(fleet_map.MOST_DOMAINS))
    assert [vm.name for vm in found.rows[-1].cells[-1].vms] == ["lone-19", "lone-20", "lone-21"]


def names(found: Any | None) -> list[str]:
    return [] if found is None else [each.name for each in found.items]


@pytest.mark.parametrize(
    ("text", "vms", "groups", "hosts"),
    [
        ("web", ["web-0", "web-1", "web-2"], ["web"], []),
        (" b ", ["batch", "db", "web-0", "web-1", "web-2"], ["web"], ["host-b"]),
        ("ol_4", ["pool_4"], [], []),
        ("web-?,!web-1", ["web-0", "web-2"], [], []),
        ("*-[abc]*", None, [], []),
        ("host", [], [], ["host-a", "host-b", "host-c", "host-d"]),
        ("x" * 64, [], [], []),
        ("x" * 65, None, [], []),
        ("ö", None, [], []),
    ],
)
def test_finding_by_a_part_of_a_name(
    rig: Rig, text: str, vms: list[str] | None, groups: list[str], hosts: list[str]
) -> None:
    if vms is None:
        with pytest.raises(errors.RefusedError, match="is not a name or pattern"):
            queries.search(rig.service, text, see_hosts=True)
        return
    found = queries.search(rig.service, text, see_hosts=True)
    assert [names(getattr(found, noun)) for noun in ("vms", "groups", "hosts")] == [vms, groups, hosts]


def test_what_is_found_has_its_state_and_is_ones_own(busy: Rig) -> None:
    found = queries.search(busy.service, "o", see_hosts=False, seen=WEB)
    assert (names(found.vms), names(found.groups), found.hosts) == ([], [], None)
    found = queries.search(busy.service, "db", see_hosts=False, seen=WEB)
    assert found.vms.items[0].state == "not listening"


def test_of_many_the_first_are_found_and_that_there_are_more(rig: Rig) -> None:
    for number in range(queries.MOST + 1):
        rig.add_host(f"rack-{number:02}")
    rig.add_host("a-rack")
    found = queries.search(rig.service, "rack", see_hosts=True).hosts
    assert found is not None
    assert (len(found.items), found.items[0].name, found.more) == (queries.MOST, "rack-00", True)
