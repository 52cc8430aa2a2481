"""`forenotice edge list|show|forget`, against a control plane that really runs."""

from datetime import UTC, datetime

from tests.cli.conftest import Run
from tests.control.running import Control

from forenotice.cluster.messages import Beat, Fence

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_edges_are_listed_shown_and_forgotten(fleet: Run, module_control: Control) -> None:
    assert fleet("edge", "list").out == "No host has an edge; see `forenotice edge run -h`.\n"
    edges = module_control.service.edges
    edges.beat("host-a", Beat(version="1.0", position=40, at=AT, age=90))
    edges.beat("host-b", Beat(version="1.0", position=44, at=AT, refused=2, refusal="the state is cut off"))
    edges.watch(True)
    edges.published["host-a"] = Fence(0, 44)
    fleet("edge", "list").shows(
        "host +state +version +last beat +confirmed +position +behind +refused states",
        r"host-a +behind +1\.0 +\d+ s ago +1 min 3\d s ago +40 +4",
        r"host-b +current +1\.0 +\d+ s ago +44 +2",
    )
    assert [each["host"] for each in fleet("edge", "list", "--state", "behind", "--json").json] == ["host-a"]
    assert [each["host"] for each in fleet("edge", "list", "--refused", "--json").json] == ["host-b"]
    assert fleet("edge", "list", "--state", "lost").out == "There are no matching edges.\n"
    fleet("edge", "show", "host-b").shows(
        "host +host-b",
        "state +current",
        "position +44",
        r"last beat +\d+ s ago",
        "refused states +2",
        "refusal +the state is cut off",
    )
    assert fleet("edge", "show", "host-a", "--json").json["behind"] == 4
    assert (
        fleet("edge", "forget", "host-b").out
        == "The edge of host host-b is forgotten; the service no longer waits for it.\n"
    )
    assert "host 'host-b' has no edge: see `forenotice edge list`" in fleet("edge", "show", "host-b").err
