"""Flows carried out without a network: every question gets the next of the given outcomes, and no pause is made."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.client.both import QUICK

from forenotice.client import Pace
from forenotice.client.discovery import Candidate
from forenotice.client.endpoint import Endpoint, Outcome, Pause, Request, Steps, Stream, resume
from forenotice.client.http import ProtocolError, Response

R = TypeVar("R")
T = TypeVar("T")

Failing = OSError | ProtocolError


@dataclass
class Played(Generic[T]):
    asks: list[Request] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    told: list[T] = field(default_factory=list)

    def headers(self, name: str) -> list[str | None]:
        return [ask.headers.get(name) for ask in self.asks]

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(ask.host, ask.port) for ask in self.asks]

    @property
    def timeouts(self) -> list[float]:
        return [ask.timeout for ask in self.asks]


def play(stream: Stream[T], *outcomes: Response | Failing) -> Played[T]:
    """Until there are no more outcomes; the last question of those that are noted is not answered."""
    played: Played[T] = Played()
    left = list(outcomes)
    outcome: Outcome = None
    while True:
        step = resume(stream, outcome)
        outcome = None
        match step:
            case Pause(seconds):
                played.pauses.append(seconds)
            case Request():
                played.asks.append(step)
                if not left:
                    return played
                outcome = left.pop(0)
            case told:
                played.told.append(told)


def perform(flow: Steps[R], answer: Callable[[Request], Response | Failing]) -> R:
    outcome: Outcome = None
    try:
        while True:
            step = resume(flow, outcome)
            outcome = answer(step) if isinstance(step, Request) else None
    except StopIteration as ended:
        result: R = ended.value
        return result


def in_turn(*outcomes: Response | Failing) -> Callable[[Request], Response | Failing]:
    left = list(outcomes)
    return lambda _: left.pop(0)


def remote(
    endpoint: str | None = "http://10.0.0.1", *, name: str | None = None, pace: Pace = QUICK, leases: Sequence[str] = ()
) -> Endpoint:
    return Endpoint(endpoint, name, pace, leases)


def hosts(candidates: Iterable[Candidate]) -> list[tuple[str, int]]:
    return [(candidate.host, candidate.port) for candidate in candidates]
