"""Lists for those who see some scopes alone: the store's patterns are those of core, and pages are full."""

import pytest
from tests.store.samples import NOW, Thing, entry, event, keep, operation, positions, scope, vm

from forenotice.core import errors
from forenotice.core.selectors import of_scopes
from forenotice.store.database import Store
from forenotice.store.events import EventFilter
from forenotice.store.fleet import GroupFilter, VmFilter
from forenotice.store.journal import JournalFilter
from forenotice.store.operations import OperationFilter

NAMES = ("web", "web-1", "web-10", "web_1", "Web-1", "w.b", "db", "a-1", "a-2")
KEYS = tuple(sorted(f"{noun}:{name}" for noun in ("group", "vm") for name in NAMES))


@pytest.fixture
def many(store: Store) -> Store:
    """One VM, event, operation and entry for each key, and what belongs to nobody or to two."""
    things: list[Thing] = []
    for number, key in enumerate(KEYS):
        at = NOW.replace(microsecond=number)
        things += [scope(key), vm(f"vm{number:02}", "a", key), entry("event.scheduled", scope=key)]
        things += [operation(f"o{number:02}", created_at=at), event(f"E{number:02}", f"o{number:02}", key)]
    keep(store, *things, entry("host.added", host="a"), operation("nobodys"))
    keep(store, operation("two"), event("T1", "two", "group:web"), event("T2", "two", "group:db"))
    return store


TEXTS = ("web", "web-*", "web_?", "*,vm:*", "w.b", "!web-1", "vm:*,!vm:web*", "a-?,vm:db", "none", "WEB*", "web?1")


def test_patterns_mean_what_they_mean_in_core(many: Store) -> None:
    with many.read() as reader:
        for text in TEXTS:
            seen = of_scopes(text)
            mine = [key for key in KEYS if key in seen]
            assert [vm.scope for vm in reader.vms.page(None, 100, VmFilter(seen=seen))] == mine, text
            groups = [group.key for group, _ in reader.scopes.groups(None, 100, GroupFilter(seen=seen))]
            assert groups == [key for key in mine if key.startswith("group:")], text
            assert {each.scope for each in reader.events.page(None, 100, EventFilter(seen=seen))} == set(mine), text
            assert [each.scope for _, each in reader.journal.page(JournalFilter(seen=seen))] == mine, text
            told = {each.id for each in reader.operations.page(None, 100, OperationFilter(seen=seen))}
            both = {"two"} if {"group:web", "group:db"} & set(mine) else set()
            assert told == {f"o{number:02}" for number, key in enumerate(KEYS) if key in seen} | both, text


def test_pages_are_full_and_follow_each_other(many: Store) -> None:
    seen = of_scopes("vm:*")
    pages: list[list[str]] = []
    with many.read() as reader:
        while page := reader.events.page(pages[-1][-1] if pages else None, 4, EventFilter(seen=seen)):
            pages.append([each.id for each in page])
    wanted = [f"E{number:02}" for number, key in enumerate(KEYS) if key in seen]
    assert pages == [wanted[start : start + 4] for start in range(0, len(wanted), 4)]


def test_where_somebody_elses_thing_stands_cannot_be_asked(many: Store) -> None:
    seen = of_scopes("vm:*")
    with many.read() as reader:
        for event in ("E00", "NONE"):
            with pytest.raises(errors.RefusedError, match=event):
                reader.events.page(event, 100, EventFilter(seen=seen))
        for operation in ("o00", "none"):
            with pytest.raises(errors.RefusedError, match=operation):
                reader.operations.page(operation, 100, OperationFilter(seen=seen))
        assert reader.operations.page("o09", 100, OperationFilter(seen=seen)) != []


def test_history_of_scopes_that_are_named_is_in_order_and_in_full_pages(store: Store) -> None:
    keys = ("group:web", "group:db", "vm:a", "group:other", "group:web", None)
    keep(store, *(entry("event.scheduled", scope=keys[number % len(keys)], vm="a") for number in range(60)))
    for text in ("web,vm:a", "web,vm:a,!db", "web,web,vm:?", "db,!db"):
        seen = of_scopes(text)
        for newest_first in (False, True):
            with store.read() as reader:
                everything = reader.journal.page(limit=1000, newest_first=newest_first)
                wanted = [seq for seq, each in everything if each.scope in seen]
                assert positions(reader, seen=seen, limit=1000, newest_first=newest_first) == wanted
                assert positions(reader, seen=seen, limit=7, newest_first=newest_first) == wanted[:7]
                mine = [seq for seq, each in everything if each.scope == "group:web" and each.scope in seen]
                assert positions(reader, scope="group:web", seen=seen, limit=99, newest_first=newest_first) == mine
                assert positions(reader, scope="group:other", seen=seen) == []
