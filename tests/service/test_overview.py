"""The start page's data: all that is live with why it waits, in the words of the single explanations."""

import random
from datetime import timedelta
from typing import Any

import pytest
from tests.service import whole
from tests.service.rig import OPERATOR, START, Rig
from tests.service.rolling import Failing, Rolling

from forenotice.core import errors, roles
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.core.roles import Access
from forenotice.core.timing import Timing
from forenotice.service import fleet, maintenance, overview, queries
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
                patched.setattr(Worlds, "to_explain", whole.load)
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
