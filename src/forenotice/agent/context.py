"""What the parts of one agent share."""

from dataclasses import dataclass, field

from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.clock import MachineClock
from forenotice.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    log: Log
    metrics: Metrics
    runtime: Runtime
    clock: MachineClock = field(default_factory=MachineClock)
    observe: bool = False
    """Handlers tell what they would do; nothing is run, approved or written to the journal."""
    boot: str = ""
    """Of this machine; empty if unknown."""
