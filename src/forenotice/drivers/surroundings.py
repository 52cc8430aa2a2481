"""What a driver may ask the process that it runs in."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime


def _unknown(vm: str) -> None:
    """Nothing is known of any VM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Asked from the drivers' threads, at any time."""

    last_poll: Callable[[str], datetime | None] = _unknown
    """When this process last saw a VM poll, to the second and never later than it was; None: not since the start."""
    end_long_polls: Callable[[str], None] = _unknown
    """Answer the long polls of a VM that are open, so that it polls again if it is alive."""
    definition: Callable[[str], str | None] = _unknown
    """The last known domain XML of a VM."""


NO_SURROUNDINGS = Surroundings()
