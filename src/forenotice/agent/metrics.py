"""The agent's metrics, in Prometheus's text format; no label ever holds an id."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from forenotice import __version__
from forenotice.agent.rules.policy import EVENT_TYPES, Phase
from forenotice.agent.rules.saga import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "forenotice_agent_"
OTHER = "other"
"""Instead of an unknown type: the endpoint must not create labels."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    """Labels that are there from the start, so that the first count shows as an increase."""

    @property
    def samples(self) -> tuple[str, ...]:
        return (f"{self.name}_sum", f"{self.name}_count") if self.kind == "summary" else (self.name,)


LIVE_STATES = tuple(state for state in State if state is not State.DONE)
MESSAGES = ("sent", "failed", "received", "refused")
FAMILIES = (
    Family("build_info", "gauge", "The version that runs.", ("version",)),
    Family("polls_total", "counter", "Polls of the endpoint.", ("result",), ("ok", "unchanged", "error")),
    Family("seconds_since_good_poll", "gauge", "Since the endpoint last answered; before that, since the start."),
    Family("events_total", "counter", "Events of this VM that appeared.", ("type",), (*EVENT_TYPES, OTHER)),
    Family("sagas", "gauge", "Events that are being handled.", ("state",), LIVE_STATES),
    Family("steps_total", "counter", "Attempts of handlers that ended.", ("handler", "phase", "result")),
    Family("handler_seconds", "summary", "How long those attempts took.", ("handler", "phase")),
    Family("approvals_total", "counter", "Approvals that were sent.", ("result",), ("accepted", "refused", "error")),
    Family("ready", "gauge", "Whether this VM should be given work: 0 from the start of preparing until recovered."),
    Family("freeze_measured_seconds", "gauge", "How long this VM really stood still in its last Freeze."),
    Family("freeze_expected_seconds", "gauge", "How long the endpoint had announced for that."),
    Family("resumed_total", "counter", "Starts of the agent that found an event half handled."),
    Family("journal_errors_total", "counter", "Times that the journal could not be written."),
    Family("peer_messages_total", "counter", "Readiness sent to peers and received from them.", ("result",), MESSAGES),
)


class Metrics:
    """May be called from any thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._good_at = monotonic()
        self._values: dict[str, dict[tuple[str, ...], float]] = {
            sample: {(label,): 0.0 for label in family.known} for family in FAMILIES for sample in family.samples
        }
        for name in ("ready", "resumed_total", "journal_errors_total"):
            self.show(name, 0.0)
        self.show("build_info", 1.0, __version__)

    def count(self, sample: str, *labels: str, amount: float = 1) -> None:
        with self._lock:
            values = self._values[sample]
            values[labels] = values.get(labels, 0.0) + amount

    def show(self, sample: str, value: float | None, *labels: str) -> None:
        """None: unknown."""
        with self._lock:
            self._values[sample].pop(labels, None)
            if value is not None:
                self._values[sample][labels] = value

    def polled(self, result: str) -> None:
        self.count("polls_total", result)
        if result != "error":
            self._good_at = self._monotonic()

    def saw(self, event_type: str) -> None:
        self.count("events_total", event_type if event_type in EVENT_TYPES else OTHER)

    def handles(self, states: Mapping[State, int]) -> None:
        for state in LIVE_STATES:
            self.show("sagas", states.get(state, 0), state)

    def stepped(self, handler: str, phase: Phase, *, ok: bool, seconds: float) -> None:
        self.count("steps_total", handler, phase, "ok" if ok else "failed")
        self.count("handler_seconds_sum", handler, phase, amount=seconds)
        self.count("handler_seconds_count", handler, phase)

    def render(self) -> str:
        self.show("seconds_since_good_poll", self._monotonic() - self._good_at)
        with self._lock:
            return "".join(f"{line}\n" for family in FAMILIES for line in self._lines(family))

    def _lines(self, family: Family) -> Iterator[str]:
        yield f"# HELP {PREFIX}{family.name} {family.help}"
        yield f"# TYPE {PREFIX}{family.name} {family.kind}"
        for sample in family.samples:
            for labels, value in self._values[sample].items():
                pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in zip(family.labels, labels, strict=True))
                yield f"{PREFIX}{sample}{{{pairs}}} {value!r}" if pairs else f"{PREFIX}{sample} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
