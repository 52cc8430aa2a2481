"""Flows carried out without a network: every question gets the next of the given outcomes, and no pause is made."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.client.both import QUICK

from forenotice.client import Pace
from forenotice.client.exchange import Answer, ProtocolError
from forenotice.client.finding import Candidate
from forenotice.client.flow import Ask, Flow, Outcome, Pause, Stream, resume
from forenotice.client.session import Session

R = TypeVar("R")
T = TypeVar("T")

Failing = OSError | ProtocolError


@dataclass
class Played(Generic[T]):
    asks: list[Ask] = field(default_factory=list)
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


def play(stream: Stream[T], *outcomes: Answer | Failing) -> Played[T]:
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
            case Ask():
                played.asks.append(step)
                if not left:
                    return played
                outcome = left.pop(0)
            case told:
                played.told.append(told)


def perform(flow: Flow[R], answer: Callable[[Ask], Answer | Failing]) -> R:
    outcome: Outcome = None
    try:
        while True:
            step = resume(flow, outcome)
            outcome = answer(step) if isinstance(step, Ask) else None
    except StopIteration as ended:
        result: R = ended.value
        return result


def in_turn(*outcomes: Answer | Failing) -> Callable[[Ask], Answer | Failing]:
    left = list(outcomes)
    return lambda _: left.pop(0)


def session(
    endpoint: str | None = "http://10.0.0.1", *, name: str | None = None, pace: Pace = QUICK, leases: Sequence[str] = ()
) -> Session:
    return Session(endpoint, name, pace, leases)


def hosts(candidates: Iterable[Candidate]) -> list[tuple[str, int]]:
    return [(candidate.host, candidate.port) for candidate in candidates]
