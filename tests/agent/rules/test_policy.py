"""Whether this agent approves, or what it waits for."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.agent.rules.builders import ME, T0, after, event

from forenotice.agent.rules.policy import NOT_SENT, Match, Policy, blocker

PEERS = Policy(peer_timeout=timedelta(seconds=30))
TWO, THREE = {"b": T0}, {"b": T0, "c": T0}
NO_PEERS = "ready; not approved, because the event also names b and [peers] is not set"


@pytest.mark.parametrize(
    ("policy", "resources", "peers", "now", "why"),
    [
        (Policy(), ("web-0",), {}, T0, ""),
        (Policy(), ("WEB-0",), {}, T0, ""),
        (Policy(approves=False), ("web-0",), {}, T0, "ready; agent.toml says never to approve"),
        (Policy(), ("web-0", "b"), TWO, T0, NO_PEERS),
        (PEERS, ("web-0", "b"), {}, T0, "ready; waits until b is ready too"),
        (PEERS, ("b", "web-0", "c"), {"d": T0}, after(900), "ready; waits until b, c are ready too"),
        (PEERS, ("web-0", "B"), TWO, T0, ""),
        (PEERS, ("b", "web-0"), TWO, after(29), "all are ready; b approves first"),
        (PEERS, ("b", "web-0"), TWO, after(30), ""),
        (PEERS, ("b", "web-0"), {"b": after(5)}, after(34), "all are ready; b approves first"),
        (PEERS, ("b", "c", "web-0"), THREE, after(59), "all are ready; b approves first"),
        (PEERS, ("b", "c", "web-0"), THREE, after(60), ""),
    ],
)
def test_blockers(
    policy: Policy, resources: tuple[str, ...], peers: dict[str, datetime], now: datetime, why: str
) -> None:
    assert blocker(policy, event(resources=resources), (ME,), T0, peers, {}, now) == why


def test_further_blockers() -> None:
    why = blocker(Policy(), event(type="Vanish"), (ME,), T0, {}, {}, T0)
    assert why == "not approved, because the event type 'Vanish' is unknown"
    ahead = after(7200)
    assert blocker(PEERS, event(resources=("web-0", "b")), (ME,), ahead, {"b": ahead}, {}, T0) == "", "a wrong clock"
    assert blocker(Policy(), event(resources=("b", "web-0")), (ME, "B"), T0, {}, {}, T0) == "", "it acts for both"
    shared, unreachable = event(resources=("b", "web-0", "c")), "unreachable: Connection refused"
    unacknowledged = {"b": unreachable, "c": NOT_SENT}
    why = blocker(PEERS, shared, (ME,), T0, {}, unacknowledged, T0)
    assert why == f"ready; waits until b ({unreachable}), c are ready too"
    why = blocker(PEERS, shared, (ME,), T0, THREE, unacknowledged, T0)
    assert why == f"all are ready; b ({unreachable}) approves first"


SHORTER, LONGER = Match(shorter_than=timedelta(seconds=10)), Match(longer_than=timedelta(seconds=10))


@pytest.mark.parametrize(
    ("match", "changes", "fits"),
    [
        (Match(), {}, True),
        (Match(), {"source": None}, True),
        (Match(types=frozenset({"Freeze"})), {}, False),
        (Match(types=frozenset({"Freeze", "Reboot"})), {}, True),
        (Match(sources=frozenset({"Platform"})), {}, False),
        (Match(sources=frozenset({"User"})), {}, True),
        (Match(sources=frozenset({"User", "Platform"})), {"source": None}, False),
        *((SHORTER, {"duration_seconds": seconds}, seconds == 9) for seconds in (9, 10, -1, None)),
        *((LONGER, {"duration_seconds": seconds}, seconds != 10) for seconds in (11, 10, -1, None)),
    ],
)
def test_which_events_are_meant(match: Match, changes: dict[str, Any], fits: bool) -> None:
    assert match.fits(event(**changes)) is fits
