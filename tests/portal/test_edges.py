"""The page of edges, and what the pages of the fleet say of them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.portal.running import Portal

from forenotice.cluster.messages import Beat, Fence
from forenotice.core.journal import Entry
from forenotice.portal.pages import edges as page_module

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def heard(portal: Portal, host: str, **fields: Any) -> None:
    portal.service.edges.beat(host, Beat(**{"version": "1.0", "position": 40, "at": AT, **fields}))
    portal.service.edges.watch(True)


def lose(portal: Portal, host: str) -> None:
    """As if another process had written it."""
    portal.service.edges.follow([Entry(at=AT, action="edge.lost", host=host, data={"since": AT})])


def test_nobody_has_an_edge(portal: Portal) -> None:
    visitor = portal.visitor()
    visitor.get("/edges").shows("No host has an edge.")
    visitor.get("/fleet").lacks('href="/edges"', "edge lost")
    visitor.get("/hosts/host-a").lacks('href="/edges"', "Its edge")


def test_edges_with_their_states(portal: Portal) -> None:
    for host in ("host-a", "host-b", "host-c"):
        heard(portal, host)
    heard(portal, "host-a", age=90)
    heard(portal, "host-b", refused=2, refusal="the state is cut off")
    portal.service.edges.published["host-a"] = Fence(0, 44)
    lose(portal, "host-c")
    visitor = portal.visitor()
    page = visitor.get("/edges")
    page.shows("all 3 lost 1 behind 1 not heard yet 0 refused states 1")
    page.shows("Confirmed", "1 min 30 s ago")
    page.shows("2: the state is cut off", "◷ behind", "? lost", "✓ current", '<a href="/hosts/host-a">host-a</a>')
    for only, hosts in (("lost", "c"), ("behind", "a"), ("refused", "b"), ("unheard", ""), ("odd", "abc")):
        html = visitor.get(f"/edges?only={only}").html
        assert [each for each in "abc" if f'id="edge-host-{each}"' in html] == list(hosts)
    visitor.get("/edges?only=unheard").shows("No edge matches this filter. Show all 3")
    visitor.get("/fleet").shows('<a href="/edges">edges</a>', "host-c edge lost")
    visitor.get("/hosts/host-a").shows("Its edge answers its guests: version 1.0, last heard", "behind by 4 positions.")
    visitor.get("/hosts/host-b").shows("; it could not read 2 states (the state is cut off).")
    visitor.get("/hosts/host-c").shows("Its edge is lost. It was last heard", "Lost edges")


def test_an_edge_that_this_process_has_not_heard(portal: Portal) -> None:
    portal.service.edges.follow([Entry(at=AT, action="edge.registered", host="host-a")])
    portal.visitor().get("/hosts/host-a").shows("Its edge answers its guests; this process has not heard it yet.")
    portal.visitor().get("/edges").shows("⊘ not heard yet")


def test_pages_follow_each_other(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "SHOWN", 2)
    for host in ("host-a", "host-b", "host-c"):
        heard(portal, host)
    visitor = portal.visitor()
    visitor.get("/edges").shows('href="/edges?after=host-b"')
    visitor.get("/edges?after=host-b").shows("host-c", "To the first page")
    visitor.get("/edges?after=zzz").shows("There are no more. To the first page")


def test_a_lost_edge_is_forgotten_by_those_who_may(portal: Portal) -> None:
    heard(portal, "host-a")
    portal.visitor().get("/edges").lacks("Forget")
    lose(portal, "host-a")
    portal.visitor_as("viewer").get("/edges").lacks("Forget")
    visitor = portal.visitor()
    visitor.get("/edges").shows("Forget the edge of host-a")
    assert visitor.post("/edges/host-a/forget", on="/edges").location == "/edges"
    visitor.get("/edges").shows("The edge of host host-a is forgotten", "No host has an edge.")


def test_tenants_do_not_see_edges(portal: Portal) -> None:
    heard(portal, "host-a")
    tenant = portal.visitor_as("tenant", "web")
    tenant.get("/edges", 403)
    tenant.get("/fleet").lacks('href="/edges"')
