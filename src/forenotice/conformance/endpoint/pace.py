"""How fast an endpoint is asked, and how long it is waited for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """In seconds, where it is time."""

    per_second: float | None = None
    """Requests; None: as fast as they are answered."""
    burst: int = 40
    """Requests at once, to meet a limit if there is one."""
    first: float = 150
    """The first answer of all may take two minutes (PROTOCOL, listening)."""
    answer: float = 10
    patience: float = 300
    """What may be lost in all, to refusals for the rate and to questions without an answer."""
    wait: float = 1
    """What is asked for in `Prefer: wait`."""
    appears: float = 300
    """From running the command to the event."""
    starts: float = 120
    """From the approval to Started."""
    ends: float = 1800
    """From Started to the end."""
    settles: float = 0.5
    """Within this, what has been sent would have shown an effect."""
    prompt: float = 2
    """Within this, a wait is answered once the document has changed."""
    shown: float = 2
    """How long Started stays listed (PROTOCOL, life of an event)."""
    between: float = 0.02
    """Between two looks at the document while nothing else is to be done."""


POLITE = 4.0
"""Requests a second; the real service refuses more than 5."""
