"""What a guest's logic wants done: it yields these, is sent what came of them, and knows nothing of sockets.

A question that fails is thrown into the flow as the OSError or ProtocolError that it failed with.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from forenotice.client.exchange import Answer, ProtocolError

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Is answered by an exchange.Answer."""

    host: str
    port: int
    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Flow: TypeAlias = Generator[Ask | Pause, Any, R]
"""Ends with a result."""

Stream: TypeAlias = Generator[Ask | Pause | T, Any, None]
"""Yields results among its wishes; what is sent for one does not matter."""

Outcome: TypeAlias = Answer | OSError | ProtocolError | None


def resume(flow: Generator[T, Any, Any], outcome: Outcome) -> T:
    """Tell it what came of its last wish, and hear the next. StopIteration: it has ended, with its result."""
    return flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
