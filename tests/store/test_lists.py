"""Lists page by page in either direction, by every filter, and for those who see some scopes alone."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, Thing, changes, entry, event, host, operation, positions, scope, vm

from forenotice.core import errors, selectors
from forenotice.core.draft import Changes
from forenotice.core.operations import EventType, Kind, Status
from forenotice.core.selectors import of_scopes
from forenotice.store.events import EventFilter, EventSummary
from forenotice.store.fleet import GroupFilter, HostFilter, VmFilter
from forenotice.store.journal import JournalFilter
from forenotice.store.operations import OperationFilter
from forenotice.store.queries import translated
from forenotice.store.tokens import Token
from forenotice.store.transaction import Transaction

NAMES = ["B", "a", "a-1", "a-10", "a_2", "b", "é"]
LISTS: dict[str, Callable[[Transaction, str | None, bool], list[str]]] = {
    "hosts": lambda tx, after, down: [h.name for h, _ in tx.hosts.page(after, 2, descending=down)],
    "vms": lambda tx, after, down: [v.name for v in tx.vms.page(after, 2, descending=down)],
    "groups": lambda tx, after, down: [g.name for g, _ in tx.scopes.groups(after, 2, descending=down)],
    "operations": lambda tx, after, down: [o.id for o in tx.operations.page(after, 2, descending=down)],
    "events": lambda tx, after, down: [e.id for e in tx.events.page(after, 2, descending=down)],
    "tokens": lambda tx, after, down: [t.id for t in tx.tokens.page(after, 2, descending=down)],
}


@pytest.fixture
def full(tx: Transaction) -> Transaction:
    tx.apply(
        changes(
            *(host(name, cordoned=name == "b") for name in NAMES),
            *(scope(f"group:{name}") for name in NAMES),
            scope("vm:z"),
            *(vm(name, "a", f"group:{name}", spot=name.startswith("a-")) for name in NAMES),
            # Two at each moment: the id decides.
            *(operation(name, created_at=NOW + timedelta(minutes=n // 2)) for n, name in enumerate(NAMES)),
            *(event(f"E{name}".upper(), name, f"group:{name}", created_at=NOW) for name in NAMES if name != "B"),
        )
    )
    for name in NAMES:
        tx.tokens.put(Token(id=name, name="t", role="admin", digest=name, created_at=NOW))
    return tx


@pytest.mark.parametrize("noun", LISTS)
def test_every_page_of_both_directions(full: Transaction, noun: str) -> None:
    wanted = [f"E{name}".upper() for name in NAMES[1:]] if noun == "events" else NAMES
    for down in (False, True):
        found: list[str] = []
        while page := LISTS[noun](full, found[-1] if found else None, down):
            found += page
        assert found == (wanted[::-1] if down else wanted)
    if noun in ("hosts", "vms", "groups"):
        assert LISTS[noun](full, "a-5", False) == ["a_2", "b"]
    else:
        with pytest.raises(errors.RefusedError, match="continue after"):
            LISTS[noun](full, "gone", False)


PATTERNS = {
    "a-1": ["a-1"],
    "a-*": ["a-1", "a-10"],
    "a?*": ["a-1", "a-10", "a_2"],
    "a_*": ["a_2"],
    "*0,b": ["a-10", "b"],
    "!a*,!B": ["b", "é"],
    "a*,!a-*": ["a", "a_2"],
    "c*": [],
}
LABELS = {
    "label:rack=r1": ["a", "a-1"],
    "label:rack=r?": ["a", "a-1", "a-10"],
    "label:rack=r_": [],
    "label:a.b/c=x_y": ["a-10"],
    "label:a.b/c=x?y,label:rack=r1": ["a", "a-1", "a-10"],
    "b,label:rack=r1,!a": ["a-1", "b"],
    "!label:rack=*": ["B", "a_2", "b", "é"],
    "a*,!label:rack=r1": ["a-10", "a_2"],
    "label:rack=r1,!label:disk=old": ["a"],
}


def test_by_name_and_by_label(full: Transaction) -> None:
    full.apply(
        changes(
            host("a", labels={"rack": "r1"}),
            host("a-1", labels={"rack": "r1", "disk": "old"}),
            host("a-10", labels={"rack": "r2", "a.b/c": "x_y"}),
        )
    )
    hosts = [found for found, _ in full.hosts.page(None, 9)]
    for text, wanted in (PATTERNS | LABELS).items():
        selector = selectors.of_hosts(text)
        assert [found.name for found, _ in full.hosts.page(None, 9, HostFilter(name=selector))] == wanted, text
        assert [host.name for host in hosts if selector.selects(host)] == wanted, "core agrees"
    for text, wanted in PATTERNS.items():
        found = full.vms.page(None, 9, VmFilter(name=selectors.of_names(text)))
        groups = full.scopes.groups(None, 9, GroupFilter(name=of_scopes(text)))
        assert [vm.name for vm in found] == [group.name for group, _ in groups] == wanted, text
    seen = VmFilter(name=selectors.of_hosts("a*,!a-1"), seen=of_scopes("a,a-*"))
    assert [vm.name for vm in full.vms.page(None, 9, seen, descending=True)] == ["a-10", "a"]


def test_by_what_they_are(full: Transaction) -> None:
    def operations(**how: Any) -> list[str]:
        return [found.id for found in full.operations.page(None, 99, OperationFilter(**how))]

    def events(**how: Any) -> list[str]:
        return [found.id for found in full.events.page(None, 99, EventFilter(**how))]

    full.apply(
        changes(
            operation("over", status=Status.FAILED, rollout="r"),
            event("OVER", "over", "group:b", Status.FAILED, type=EventType.REBOOT, resources=("web-0", "web-1")),
            operation("ten", host="x"),
            event("TEN", "ten", "group:x", resources=("web-10",)),
        )
    )
    assert [found.name for found, _ in full.hosts.page(None, 9, HostFilter(cordoned=True))] == ["b"]
    assert len(full.hosts.page(None, 9, HostFilter(cordoned=False))) == len(NAMES) - 1
    assert full.hosts.page(None, 2)[1] == (host("a"), len(NAMES))
    assert full.scopes.groups(None, 1) == [(scope("group:B"), 1)]
    assert full.scopes.named(["group:a", "group:ghost"]) == {"group:a": scope("group:a")}
    assert full.vms.page(None, 9, VmFilter(host="b")) == []
    assert [found.name for found in full.vms.page(None, 9, VmFilter(host="a", scope="group:b"))] == ["b"]
    assert [found.name for found in full.vms.page(None, 9, VmFilter(spot=True))] == ["a-1", "a-10"]
    assert len(full.vms.page(None, 9, VmFilter(spot=False))) == len(NAMES) - 2
    assert operations(status=Status.FAILED) == operations(rollout="r") == ["over"]
    assert operations(live=False) == operations(live=False, host="a", kind=Kind.HOST_UPDATE) == ["over"]
    assert (len(operations(live=True)), len(operations(host="a"))) == (len(NAMES) + 1, len(NAMES) + 1)
    assert operations(status=Status.STARTED) == operations(rollout="other") == operations(kind=Kind.RESTART) == []
    assert operations(host="b") == operations(live=True, rollout="r") == []
    assert events(status=Status.FAILED) == events(type=EventType.REBOOT) == events(live=False) == ["OVER"]
    assert events(type=EventType.FREEZE, scope="group:b") == ["EB"]
    assert (events(vm="web-1"), events(vm="web-10", live=True), events(vm="eb-1")) == (["OVER"], ["TEN"], [])
    assert full.events.counts_by_type() == {("Freeze", "Scheduled"): len(NAMES)}


SEEN = ("web", "web-1", "web-10", "web_1", "Web-1", "w.b", "db", "a-1", "a-2")
KEYS = tuple(sorted(f"{noun}:{name}" for noun in ("group", "vm") for name in SEEN))


@pytest.fixture
def many(tx: Transaction) -> Transaction:
    """One VM, event, operation and entry for each key, and what belongs to no scope or to two."""
    things: list[Thing] = [operation("alone"), operation("two")]
    things += [event("T1", "two", "group:web"), event("T2", "two", "group:db")]
    for number, key in enumerate(KEYS):
        at = NOW.replace(microsecond=number)
        things += [scope(key), vm(f"vm{number:02}", "a", key), entry("event.scheduled", scope=key)]
        things += [operation(f"o{number:02}", created_at=at), event(f"E{number:02}", f"o{number:02}", key)]
    tx.apply(changes(*things, entry("host.added", host="a")))
    return tx


def test_patterns_mean_what_they_mean_in_core(many: Transaction) -> None:
    for text in ("web", "web-*", "web_?", "*,vm:*", "w.b", "!web-1", "vm:*,!vm:web*", "a-?,vm:db", "none", "WEB*"):
        seen = of_scopes(text)
        mine = [key for key in KEYS if key in seen]
        assert [vm.scope for vm in many.vms.page(None, 100, VmFilter(seen=seen))] == mine, text
        groups = [group.key for group, _ in many.scopes.groups(None, 100, GroupFilter(seen=seen))]
        assert groups == [key for key in mine if key.startswith("group:")], text
        assert {each.scope for each in many.events.page(None, 100, EventFilter(seen=seen))} == set(mine), text
        assert [each.scope for _, each in many.journal.page(JournalFilter(seen=seen))] == mine, text
        found = {each.id for each in many.operations.page(None, 100, OperationFilter(seen=seen))}
        both = {"two"} if {"group:web", "group:db"} & set(mine) else set()
        assert found == {f"o{number:02}" for number, key in enumerate(KEYS) if key in seen} | both, text


def test_pages_of_what_is_seen_are_full_and_do_not_continue_after_what_is_not(many: Transaction) -> None:
    seen = of_scopes("vm:*")
    pages: list[list[str]] = []
    while page := many.events.page(pages[-1][-1] if pages else None, 4, EventFilter(seen=seen)):
        pages.append([each.id for each in page])
    wanted = [f"E{number:02}" for number, key in enumerate(KEYS) if key in seen]
    assert pages == [wanted[start : start + 4] for start in range(0, len(wanted), 4)]
    for unseen in ("E00", "NONE"):
        with pytest.raises(errors.RefusedError, match=unseen):
            many.events.page(unseen, 100, EventFilter(seen=seen))
    for unseen in ("o00", "none"):
        with pytest.raises(errors.RefusedError, match=unseen):
            many.operations.page(unseen, 100, OperationFilter(seen=seen))
    assert many.operations.page("o09", 100, OperationFilter(seen=seen)) != []


def test_history_of_scopes_that_are_named_is_in_order_and_in_full_pages(tx: Transaction) -> None:
    keys = ("group:web", "group:db", "vm:a", "group:other", "group:web", None)
    tx.apply(changes(*(entry("event.scheduled", scope=keys[number % len(keys)], vm="a") for number in range(60))))
    for text, newest_first in product(("web,vm:a", "web,vm:a,!db", "web,web,vm:?", "db,!db"), (False, True)):
        seen = of_scopes(text)
        everything = tx.journal.page(limit=1000, newest_first=newest_first)
        wanted = [position for position, each in everything if each.scope in seen]
        assert positions(tx, seen=seen, limit=1000, newest_first=newest_first) == wanted
        assert positions(tx, seen=seen, limit=7, newest_first=newest_first) == wanted[:7]
        mine = [position for position, each in everything if each.scope == "group:web" and each.scope in seen]
        assert positions(tx, scope="group:web", seen=seen, limit=99, newest_first=newest_first) == mine
        assert positions(tx, scope="group:other", seen=seen) == []


BUSY = ("group:web", "group:web-1", "group:db", "vm:web")


def test_events_at_a_glance(tx: Transaction) -> None:
    """Of each scope one event that is announced, one that has started and three that are over."""

    def put(name: str, scope: str, status: Status = Status.SCHEDULED, **fields: Any) -> None:
        started = NOW if status is Status.STARTED else None
        kept = operation(name.lower(), "b", status, kind=Kind.LIVE_MIGRATION, started_at=started)
        tx.apply(changes(kept, event(name, name.lower(), scope, status, **fields)))

    def ids(found: list[EventSummary]) -> list[str]:
        return [each.id for each in found]

    for place, key in enumerate(BUSY):
        put(f"LATER-{place}", key, not_before=NOW + (10 - place) * MINUTE)
        put(f"OUT-{place}", key, Status.STARTED, not_before=NOW + (20 - place) * MINUTE)
        for ago in range(3):
            put(f"OVER-{ago}-{place}", key, Status.COMPLETED, ended_at=NOW - (10 * ago + place) * MINUTE)
    since = NOW - timedelta(hours=1)
    urgent = ["OUT-3", "OUT-2", "OUT-1", "OUT-0", "LATER-3", "LATER-2", "LATER-1", "LATER-0"]
    assert ids(tx.events.live(100)) == urgent
    assert [ids(tx.events.live(3, offset=offset)) for offset in (0, 3, 6, 9)] == [
        urgent[:3],
        urgent[3:6],
        urgent[6:],
        [],
    ]
    assert tx.events.counts() == {Status.SCHEDULED: 4, Status.STARTED: 4}
    last = [f"OVER-{ago}-{place}" for ago in range(3) for place in range(4)]
    assert ids(tx.events.ended(since, 100)) == last
    assert (ids(tx.events.ended(since, 5)), ids(tx.events.ended(NOW - 11 * MINUTE, 100))) == (last[:5], last[:6])
    assert tx.events.ended(NOW + MINUTE, 100) == []
    first, world = tx.events.live(1)[0], tx.worlds.load(events=["OUT-3"])
    for field in first._fields:
        whole: Any = world.operations["out-3"] if field in ("kind", "started_at") else world.events["OUT-3"]
        assert getattr(first, field) == getattr(whole, field), field
    everything = tx.events.live(100) + tx.events.ended(since, 100)
    for one, text in product(
        (None, "group:web", "vm:web", "group:none"),
        (None, "web", "web*", "*,vm:*", "web,vm:web,!web", "*,!web", "none"),
    ):
        seen = None if text is None else of_scopes(text)
        mine = [key for key in BUSY if (seen is None or key in seen) and one in (None, key)]
        found = tx.events.live(100, scope=one, seen=seen) + tx.events.ended(since, 100, scope=one, seen=seen)
        assert found == [each for each in everything if each.scope in mine], (one, text)
        counts = {Status.SCHEDULED: len(mine), Status.STARTED: len(mine)} if mine else {}
        assert tx.events.counts(scope=one, seen=seen) == counts


HOSTILE = ("x'; DROP TABLE hosts; --", '" OR 1=1', "%s %(a)s ? :limit ::text {0} {name} $1 \\", "[a-z]_%*?")


def use(tx: Transaction, text: str) -> None:
    """Keeps and reads things that are named so."""
    labelled = host(text, labels={text: text}, address=text)
    things = (labelled, scope(text), vm(text, text, text), operation(text, text), event(text, text, text))
    tx.apply(changes(*things, entry(text, host=text, reason=text, data={text: text})))
    tx.meta.put(text, text)
    assert tx.meta.get(text) == text
    assert tx.hosts.page(None, 1, HostFilter(cordoned=False)) == [(labelled, 1)]
    assert tx.vms.page(None, 9, VmFilter(host=text, scope=text)) == [vm(text, text, text)]
    assert tx.events.page(None, 9, EventFilter(scope=text, vm=text)) == []
    assert tx.operations.page(None, 9, OperationFilter(host=text)) == [operation(text, text)]
    assert tx.worlds.load(hosts=[text], addresses=[text], events=[text]).vms.keys() == {text}
    for key in ("action", "without", "scope", "event", "operation", "host", "vm", "rollout", "by"):
        wanted: dict[str, Any] = {key: text}
        actions = {each.action for _, each in tx.journal.page(JournalFilter(**wanted))}
        assert (text in actions) == (key in ("action", "host"))
    tx.journal.page(JournalFilter(action=f"{text}.", by=text, seen=of_scopes("a-*")))
    by_name: list[Any] = [tx.hosts, tx.vms, tx.subscriptions]
    for listed in by_name:
        listed.page(text, 9)
    by_age: list[Any] = [tx.events, tx.rollouts, tx.tokens]
    for listed in by_age:
        with pytest.raises(errors.RefusedError, match="to continue after"):
            listed.page(f"no {text}", 9)
    assert (tx.rollouts.hosts(text, text, 9, None), tx.operations.moving_to(text)) == ([], [])
    found: list[Any] = [tx.tokens.by_digest(text), tx.sessions.find(text), tx.subscriptions.named(text)]
    assert found == [None] * 3
    tx.apply(Changes(hosts={text: None}, scopes={text: None}, vms={text: None}))


def test_what_callers_give_never_becomes_a_part_of_a_statement(tx: Transaction) -> None:
    for text in ("plain", "role:name", "ID"):
        use(tx, text)
    statements = translated.cache_info().misses
    for text in HOSTILE:
        use(tx, text)
    assert translated.cache_info().misses == statements
