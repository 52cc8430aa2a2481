"""What reaches the loop from other threads."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from forenotice.agent.rules.saga import Saga
from forenotice.agent.working import Ended, Job
from forenotice.client import News


@dataclass(frozen=True, slots=True)
class Polled:
    news: News


@dataclass(frozen=True, slots=True)
class Named:
    """This VM's own name is known."""

    me: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An approval was answered; without an error it is durable."""

    saga: str
    error: str
    refused: bool = False
    """The endpoint will not have it, as far as it knows now."""
    first: bool = False
    """No other can have arrived before it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A peer is ready, or is not."""

    event: str
    name: str
    ready_at: datetime | None


@dataclass(slots=True)
class Note:
    """A change of its saga for which a handler waits until it is written."""

    job: Job
    change: Callable[[Saga], Saga | None]
    """None: it is no longer wanted."""
    forward: bool
    """It is not to be done if it cannot be written."""
    written: bool = False
    answered: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Reload:
    pass


@dataclass(frozen=True, slots=True)
class Quit:
    pass


Message = Polled | Named | Answered | Heard | Note | Ended | Reload | Quit
