"""Where VMs are, and what names them."""

import pytest
from tests.store.samples import MINUTE, NOW, event, host, keep, operation, scope, vm

from forenotice.core import selectors
from forenotice.core.operations import Status
from forenotice.store.database import Store


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


@pytest.mark.parametrize(
    ("after", "limit", "seen", "names"),
    [
        ("", 10, None, ["Zed", "a_1", "db"]),
        ("", 2, None, ["Zed", "a_1"]),
        ("a_1", 2, None, ["db"]),
        ("", 10, "vm:d*,web", ["db"]),
        ("", 10, "web", []),
    ],
)
def test_standalone_vms_come_page_by_page(
    full: Store, after: str, limit: int, seen: str | None, names: list[str]
) -> None:
    with full.read() as reader:
        found = reader.vms.standalone(after, limit, selectors.of_scopes(seen) if seen else None)
        assert [place.vm for place in found] == names


def test_what_is_live_names_vms(full: Store) -> None:
    with full.read() as reader:
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
        assert list(reader.events.on_host("b", 10).items()) == [
            ("E-now", "now"),
            ("E-soon", "soon"),
            ("E-late", "late"),
        ]
        assert list(reader.events.on_host("b", 1)) == ["E-now"]
        assert reader.events.on_host("c", 10) == {}
