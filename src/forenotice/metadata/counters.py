"""What has been counted since the start, for metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    polls_2xx: int = 0
    """Polls, and other GETs."""
    polls_3xx: int = 0
    polls_4xx: int = 0
    polls_5xx: int = 0
    approvals_2xx: int = 0
    approvals_4xx: int = 0
    approvals_5xx: int = 0
    waits: int = 0
    """Long waits begun."""
    waiting: int = 0
    """Long waits under way."""
    accepted: int = 0
    """Connections."""
    open: int = 0
    """Connections under way."""
    refused: int = 0
    """Connections beyond a limit."""
    evicted: int = 0
    """Connections closed to make room."""
    cut: int = 0
    """Connections of clients that were too slow."""

    def count(self, method: str, status: int) -> None:
        name = f"{'approvals' if method == 'POST' else 'polls'}_{status // 100}xx"
        setattr(self, name, getattr(self, name) + 1)
