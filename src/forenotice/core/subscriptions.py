"""Whether a subscription is sent what happens."""

from enum import StrEnum


class State(StrEnum):
    ACTIVE = "active"
    PARKED = "parked"
    """Nothing is sent until somebody resumes it."""
