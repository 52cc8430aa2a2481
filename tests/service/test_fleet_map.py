"""The fleet as a grid, and finding something in it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.service.rig import OPERATOR, Rig

from forenotice.core import errors, selectors
from forenotice.core.fleet import Listening, ScopeKind, natural_key
from forenotice.core.operations import Kind
from forenotice.service import fleet_map, maintenance, queries

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
    assert found.states == {"started": 1, "scheduled": 1, "not listening": 1, "fine": 7}
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
