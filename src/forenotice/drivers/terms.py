"""How a driver is to be called."""

from dataclasses import dataclass, field
from datetime import timedelta

from forenotice.core.operations import Kind
from forenotice.core.timing import Retries
from forenotice.drivers.letterbox import Letterbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    at_once: int = 8
    """Calls under way, over all operations of this process."""
    at_once_per_host: int | None = None
    each_vm: frozenset[Kind] = frozenset()
    """Kinds of which each VM is a call of its own; of the others, each operation."""
    longest: timedelta | None = None
    """That one call can take; None: it is not known."""
    retries: Retries = field(default_factory=Retries)
    awaits_results: bool = False
    """Whether the outside may tell by itself what became of a task."""
    letterbox: Letterbox = field(default_factory=Letterbox)
