"""/edges: which hosts have an edge, how each is, and which are to be forgotten."""

from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core.edges import EdgeState
from forenotice.core.fleet import NAME
from forenotice.core.roles import Need
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import fleet, queries

SHOWN = 50
REFUSED = "refused"
FILTERS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    **{state.value: {"state": state} for state in (EdgeState.LOST, EdgeState.BEHIND, EdgeState.UNHEARD)},
    REFUSED: {REFUSED: True},
}
TITLES: Mapping[str, str] = {
    "": "all",
    EdgeState.LOST: "lost",
    EdgeState.BEHIND: "behind",
    EdgeState.UNHEARD: "not heard yet",
    REFUSED: "refused states",
}
"""Of the filters, in their order."""
LOOKS: Mapping[str, tuple[str, str]] = {
    EdgeState.CURRENT: ("fine", "✓"),
    EdgeState.BEHIND: ("scheduled", "◷"),
    EdgeState.LOST: ("missing", "?"),
    EdgeState.UNHEARD: ("not-listening", "⊘"),
}
"""As states of VMs look, also for readers who cannot tell the colours apart."""

pages = Pages()


@pages.get("/edges", needs=Need.OVERSEE)
def show(visit: PageRequest) -> Response:
    only, given = visit.query.get("only", ""), visit.query.get("after", "")
    only = only if only in FILTERS else ""
    after = given if NAME.fullmatch(given) else None
    found = queries.edges(visit.service, after=after, limit=SHOWN, **FILTERS[only])
    edges = visit.service.edges.all()
    counts = Counter[str](edge.state for edge in edges)
    counts |= {"": len(edges), REFUSED: sum(bool(edge.refused) for edge in edges)}
    here = {"only": only} if only else {}
    return visit.page(
        "edges.html",
        edges=found.items,
        only=only,
        titles=TITLES,
        counts=counts,
        looks=LOOKS,
        first=after is None,
        place=f"/edges?{urlencode(here)}" if here else "/edges",
        next_url=f"/edges?{urlencode({**here, 'after': found.next})}" if found.next else None,
    )


@pages.post("/edges/{host}/forget", needs=Need.MANAGE)
def forget(visit: PageRequest) -> Response:
    gone = fleet.forget_edge(visit.service, visit.call(), visit.path["host"])
    return visit.go(
        "/edges", message=f"The edge of host {gone.removed} is forgotten; the service no longer waits for it."
    )
