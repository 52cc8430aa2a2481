"""Lists in either direction, page by page, and by every filter."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.store.samples import NOW, event, host, keep, operation, scope, vm

from forenotice.core import errors, selectors
from forenotice.core.operations import EventType, Kind, Status
from forenotice.store.database import Store
from forenotice.store.events import EventFilter
from forenotice.store.fleet import GroupFilter, HostFilter, VmFilter
from forenotice.store.operations import OperationFilter
from forenotice.store.tokens import Token
from forenotice.store.transaction import Reader

Page = Callable[[str | None, bool], list[str]]
NAMES = ["a", "a-1", "a-10", "a_2", "b"]
LISTS: dict[str, Callable[[Reader, str | None, bool], list[str]]] = {
    "hosts": lambda reader, after, down: [h.name for h, _ in reader.hosts.page(after, 2, descending=down)],
    "vms": lambda reader, after, down: [v.name for v in reader.vms.page(after, 2, descending=down)],
    "groups": lambda reader, after, down: [g.name for g, _ in reader.scopes.groups(after, 2, descending=down)],
    "operations": lambda reader, after, down: [o.id for o in reader.operations.page(after, 2, descending=down)],
    "events": lambda reader, after, down: [e.id for e in reader.events.page(after, 2, descending=down)],
    "tokens": lambda reader, after, down: [t.id for t in reader.tokens.page(after, 2, descending=down)],
}


@pytest.fixture
def full(store: Store) -> Store:
    keep(
        store,
        *(host(name, cordoned=name == "b") for name in NAMES),
        *(scope(f"group:{name}") for name in NAMES),
        scope("vm:z"),
        *(vm(name, "a", f"group:{name}", spot=name.startswith("a-")) for name in NAMES),
        # Two at each moment: the id decides.
        *(operation(name, created_at=NOW + timedelta(minutes=n // 2)) for n, name in enumerate(NAMES)),
        *(event(name.upper(), name, f"group:{name}", created_at=NOW) for name in NAMES),
    )
    with store.write() as transaction:
        for name in NAMES:
            transaction.tokens.put(Token(id=name, name="t", role="admin", digest=name, created_at=NOW))
    return store


@pytest.mark.parametrize("noun", LISTS)
def test_every_page_of_both_directions(full: Store, noun: str) -> None:
    wanted = [name.upper() for name in NAMES] if noun == "events" else NAMES
    for down in (False, True):
        seen: list[str] = []
        with full.read() as reader:
            while page := LISTS[noun](reader, seen[-1] if seen else None, down):
                seen += page
        assert seen == (wanted[::-1] if down else wanted)


@pytest.mark.parametrize("noun", ["operations", "events", "tokens"])
def test_nobody_goes_on_behind_what_is_gone(full: Store, noun: str) -> None:
    with full.read() as reader, pytest.raises(errors.RefusedError, match="continue after"):
        LISTS[noun](reader, "gone", False)


@pytest.mark.parametrize("noun", ["hosts", "vms", "groups"])
def test_what_goes_by_name_goes_on_all_the_same(full: Store, noun: str) -> None:
    with full.read() as reader:
        assert LISTS[noun](reader, "a-5", False) == ["a_2", "b"]


PATTERNS = {
    "a-1": ["a-1"],
    "a-*": ["a-1", "a-10"],
    "a?*": ["a-1", "a-10", "a_2"],
    "a_*": ["a_2"],
    "*0,b": ["a-10", "b"],
    "!a*": ["b"],
    "a*,!a-*": ["a", "a_2"],
    "c*": [],
}


@pytest.mark.parametrize(("text", "wanted"), PATTERNS.items())
def test_by_name(full: Store, text: str, wanted: list[str]) -> None:
    with full.read() as reader:
        assert [
            found.name for found, _ in reader.hosts.page(None, 9, HostFilter(name=selectors.of_hosts(text)))
        ] == wanted
        assert [found.name for found in reader.vms.page(None, 9, VmFilter(name=selectors.of_names(text)))] == wanted
        assert [
            found.name for found, _ in reader.scopes.groups(None, 9, GroupFilter(name=selectors.of_scopes(text)))
        ] == wanted


LABELS = {
    "label:rack=r1": ["a", "a-1"],
    "label:rack=r?": ["a", "a-1", "a-10"],
    "label:rack=r_": [],
    "label:a.b/c=x_y": ["a-10"],
    "label:a.b/c=x?y,label:rack=r1": ["a", "a-1", "a-10"],
    "b,label:rack=r1,!a": ["a-1", "b"],
    "!label:rack=*": ["a_2", "b"],
    "a*,!label:rack=r1": ["a-10", "a_2"],
    "label:rack=r1,!label:disk=old": ["a"],
}


@pytest.mark.parametrize(("text", "wanted"), LABELS.items())
def test_by_label(full: Store, text: str, wanted: list[str]) -> None:
    keep(
        full,
        host("a", labels={"rack": "r1"}),
        host("a-1", labels={"rack": "r1", "disk": "old"}),
        host("a-10", labels={"rack": "r2", "a.b/c": "x_y"}),
    )
    selector = selectors.of_hosts(text)
    with full.read() as reader:
        found = [found for found, _ in reader.hosts.page(None, 9, HostFilter(name=selector))]
        assert [found.name for found in found] == wanted
        everybody = [found for found, _ in reader.hosts.page(None, 9)]
    assert [host.name for host in everybody if selector.selects(host)] == wanted, "core agrees"


def test_by_name_among_what_is_seen(full: Store) -> None:
    seen = selectors.of_scopes("a,a-*")
    with full.read() as reader:
        found = reader.vms.page(None, 9, VmFilter(name=selectors.of_hosts("a*,!a-1"), seen=seen), descending=True)
    assert [vm.name for vm in found] == ["a-10", "a"]


def test_by_what_they_are(full: Store) -> None:
    def operations(**how: Any) -> list[str]:
        with full.read() as reader:
            return [found.id for found in reader.operations.page(None, 9, OperationFilter(**how))]

    def events(**how: Any) -> list[str]:
        with full.read() as reader:
            return [found.id for found in reader.events.page(None, 9, EventFilter(**how))]

    keep(
        full,
        operation("over", status=Status.FAILED, rollout="r"),
        event("OVER", "over", "group:b", status=Status.FAILED, type=EventType.REBOOT),
    )
    with full.read() as reader:
        assert [found.name for found, _ in reader.hosts.page(None, 9, HostFilter(cordoned=True))] == ["b"]
        assert len(reader.hosts.page(None, 9, HostFilter(cordoned=False))) == 4
        assert reader.scopes.groups(None, 1) == [(scope("group:a"), 1)]
        assert reader.scopes.named(["group:a", "group:ghost"]) == {"group:a": scope("group:a")}
        assert reader.vms.page(None, 9, VmFilter(host="b")) == []
        assert [found.name for found in reader.vms.page(None, 9, VmFilter(host="a", scope="group:b"))] == ["b"]
        assert [found.name for found in reader.vms.page(None, 9, VmFilter(spot=True))] == ["a-1", "a-10"]
        assert [found.name for found in reader.vms.page(None, 9, VmFilter(spot=False))] == ["a", "a_2", "b"]
    assert operations(status=Status.FAILED) == operations(rollout="r") == ["over"]
    assert operations(live=False) == operations(live=False, host="a", kind=Kind.HOST_UPDATE) == ["over"]
    assert (len(operations(live=True)), len(operations(host="a"))) == (len(NAMES), len(NAMES) + 1)
    assert operations(status=Status.STARTED) == operations(rollout="other") == operations(kind=Kind.RESTART) == []
    assert operations(host="b") == operations(live=True, rollout="r") == []
    assert events(status=Status.FAILED) == events(type=EventType.REBOOT) == ["OVER"]
    assert events(type=EventType.FREEZE, scope="group:b") == ["B"]
