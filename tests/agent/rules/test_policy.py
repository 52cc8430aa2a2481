"""Whether this agent approves, or whom it waits for."""

from datetime import datetime, timedelta

import pytest
from tests.agent.rules.builders import ME, T0, after, event

from forenotice.agent.rules.policy import NOT_SENT, Match, Policy, blocker

PEERS = Policy(peer_timeout=timedelta(seconds=30))


@pytest.mark.parametrize(
    ("policy", "resources", "peers", "now", "said"),
    [
        (Policy(), ("web-0",), {}, T0, ""),
        (Policy(), ("WEB-0",), {}, T0, ""),
        (Policy(approves=False), ("web-0",), {}, T0, "ready; agent.toml says never to approve"),
        (
            Policy(),
            ("web-0", "b"),
            {"b": T0},
            T0,
            "ready; not approved, because the event also names b and [peers] is not set",
        ),
        (PEERS, ("web-0", "b"), {}, T0, "ready; waits until b is ready too"),
        (PEERS, ("b", "web-0", "c"), {"d": T0}, after(900), "ready; waits until b, c are ready too"),
        (PEERS, ("web-0", "B"), {"b": T0}, T0, ""),
        (PEERS, ("b", "web-0"), {"b": T0}, after(29), "all are ready; b approves first"),
        (PEERS, ("b", "web-0"), {"b": T0}, after(30), ""),
        (PEERS, ("b", "web-0"), {"b": after(5)}, after(34), "all are ready; b approves first"),
        (PEERS, ("b", "c", "web-0"), {"b": T0, "c": T0}, after(59), "all are ready; b approves first"),
        (PEERS, ("b", "c", "web-0"), {"b": T0, "c": T0}, after(60), ""),
    ],
)
def test_obstacles(
    policy: Policy, resources: tuple[str, ...], peers: dict[str, datetime], now: datetime, said: str
) -> None:
    assert blocker(policy, event(resources=resources), (ME,), T0, peers, {}, now) == said


def test_what_nobody_knows_is_not_approved() -> None:
    said = blocker(Policy(), event(type="Vanish"), (ME,), T0, {}, {}, T0)
    assert said == "not approved, because the event type 'Vanish' is unknown"


def test_a_clock_that_was_ahead_makes_nobody_wait() -> None:
    assert blocker(PEERS, event(resources=("web-0", "b")), (ME,), after(7200), {"b": after(7200)}, {}, T0) == ""


def test_it_says_who_could_not_be_told_and_why() -> None:
    shared = event(resources=("b", "web-0", "c"))
    unacknowledged = {"b": "unreachable: Connection refused", "c": NOT_SENT}
    said = blocker(PEERS, shared, (ME,), T0, {}, unacknowledged, T0)
    assert said == "ready; waits until b (unreachable: Connection refused), c are ready too"
    said = blocker(PEERS, shared, (ME,), T0, {"b": T0, "c": T0}, unacknowledged, T0)
    assert said == "all are ready; b (unreachable: Connection refused) approves first"


def test_one_who_acts_for_all_of_them_needs_no_peer() -> None:
    assert blocker(Policy(), event(resources=("b", "web-0")), (ME, "B"), T0, {}, {}, T0) == ""


@pytest.mark.parametrize(
    ("match", "changes", "fits"),
    [
        (Match(), {}, True),
        (Match(types=frozenset({"Freeze"})), {}, False),
        (Match(types=frozenset({"Freeze", "Reboot"})), {}, True),
        (Match(sources=frozenset({"Platform"})), {}, False),
        (Match(sources=frozenset({"User"})), {}, True),
        (Match(shorter_than=timedelta(seconds=10)), {"duration_seconds": 9}, True),
        (Match(shorter_than=timedelta(seconds=10)), {"duration_seconds": 10}, False),
        (Match(shorter_than=timedelta(seconds=10)), {"duration_seconds": -1}, False),
        (Match(longer_than=timedelta(seconds=10)), {"duration_seconds": 11}, True),
        (Match(longer_than=timedelta(seconds=10)), {"duration_seconds": 10}, False),
        (Match(longer_than=timedelta(seconds=10)), {"duration_seconds": -1}, True),
        (Match(shorter_than=timedelta(seconds=10)), {"duration_seconds": None}, False),
        (Match(longer_than=timedelta(seconds=10)), {"duration_seconds": None}, True),
        (Match(sources=frozenset({"User", "Platform"})), {"source": None}, False),
        (Match(), {"source": None}, True),
    ],
)
def test_which_events_are_meant(match: Match, changes: dict[str, int | None], fits: bool) -> None:
    assert match.fits(event(**changes)) is fits
