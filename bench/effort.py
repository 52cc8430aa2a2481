"""How much is measured, and how often."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    runs: int = 5
    """Of each side, in turn; the median counts."""
    seconds: int = 5
    """Of one run of wrk."""
    vms: int = 100_000
    sources: int = 10_000
    polls: int = 100_000
    """Of one run of our own generator."""
    approvals: int = 10_000
    """Of each kind."""
    waiters: int = 10_000
    waiting_seconds: int = 10
    hosts: int = 1_000
    schedulings: int = 3
    idle_seconds: int = 60
    """Of watching an agent that has nothing to do."""
    domains: int = 1_000
    """Of a watched host."""
    pauses: int = 3
    """Of each kind, of real guests."""
    frozen_guests: int = 10
    """Of one host, together."""
    starts: int = 11
    """Of an emulator."""
    entries: int = 1_000_000
    """Of the journal."""
    rollout_hosts: int = 10_000
    live_events: int = 2_000
    ended_events: int = 100_000
    changing_seconds: int = 20
    changes: int = 300
    """Of documents, and approvals, one after the other at an edge."""
    edges: int = 1_000


FULL = Effort()
QUICK = Effort(
    runs=1,
    seconds=1,
    vms=10_000,
    sources=1_000,
    polls=10_000,
    approvals=500,
    waiters=1_000,
    waiting_seconds=2,
    hosts=100,
    schedulings=1,
    idle_seconds=5,
    pauses=1,
    frozen_guests=3,
    starts=3,
    entries=50_000,
    rollout_hosts=500,
    live_events=200,
    ended_events=2_000,
    changing_seconds=5,
    changes=40,
    edges=50,
)
