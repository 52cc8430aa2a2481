"""Edges over HTTP: what operators see of them, and how one is forgotten."""

from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.control.running import Control

from forenotice.cluster.messages import Beat, Fence
from forenotice.control.metrics import Metrics

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def edges(fleet: Control) -> Control:
    """Of host-a, which is behind, and of host-b, which has refused states."""
    known = fleet.service.edges
    known.beat("host-a", Beat(version="1.0", epoch=1, position=40, at=AT))
    known.beat("host-b", Beat(version="1.1", epoch=1, position=44, at=AT, refused=2, refusal="the state is cut off"))
    known.watch(True)
    known.published |= {"host-a": Fence(1, 44), "host-b": Fence(1, 44)}
    return fleet


def test_edges_are_listed_and_filtered(edges: Control) -> None:
    a, b = edges.get("/v1/edges")["items"]
    assert (a["host"], a["state"], a["behind"], a["version"]) == ("host-a", "behind", 4, "1.0")
    assert (b["state"], b["refused"], b["refusal"], b["shown_until"]) == (
        "current",
        2,
        "the state is cut off",
        "2026-01-31T12:00:00Z",
    )
    for query, hosts in (
        ("state=behind", ["host-a"]),
        ("state=lost", []),
        ("refused=true", ["host-b"]),
        ("after=host-a", ["host-b"]),
    ):
        assert [each["host"] for each in edges.get(f"/v1/edges?{query}")["items"]] == hosts
    page = edges.get("/v1/edges?limit=1")
    assert ([each["host"] for each in page["items"]], page["next"]) == (["host-a"], "host-a")
    assert edges.ask("GET", "/v1/edges?state=odd").status == 400


def test_one_edge_is_shown_and_forgotten(edges: Control) -> None:
    assert edges.get("/v1/edges/host-b")["host"] == "host-b"
    assert edges.ask("DELETE", "/v1/edges/host-b").json == {"removed": "host-b"}
    for method in ("GET", "DELETE"):
        gone = edges.ask(method, "/v1/edges/host-b")
        assert (gone.status, gone.message) == (404, "host 'host-b' has no edge")


def test_metrics_tell_of_edges_without_naming_hosts(edges: Control) -> None:
    metrics = Metrics(events=dict, guests=dict, edges=edges.service.edges.all)
    text = metrics.render().decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith("forenotice_edge")
    }
    oldest = found.pop(("forenotice_edge_oldest_beat_seconds",))
    assert 0 <= oldest < 30
    assert found == {
        ("forenotice_edges", "current"): 1,
        ("forenotice_edges", "behind"): 1,
        ("forenotice_edges", "lost"): 0,
        ("forenotice_edges", "unheard"): 0,
        ("forenotice_edge_positions_behind",): 4,
        ("forenotice_edge_refused_states",): 2,
    }
    assert "host-a" not in text
