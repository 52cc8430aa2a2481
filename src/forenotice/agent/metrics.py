"""The agent's metrics, in Prometheus's text format; no label ever holds an id."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from forenotice import __version__
from forenotice.agent.listener import Request, Response, Routes
from forenotice.agent.rules.policy import EVENT_TYPES, Phase
from forenotice.agent.rules.saga import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "forenotice_agent_"
OTHER = "other"
"""Instead of an unknown type: the endpoint must not create labels."""


class Poll(StrEnum):
    OK = "ok"
    UNCHANGED = "unchanged"
    ERROR = "error"


class Approval(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    ERROR = "error"


class Exchange(StrEnum):
    """The result of a message between peers: sent and received, each with or without success."""

    SENT = "sent"
    FAILED = "failed"
    RECEIVED = "received"
    REFUSED = "refused"


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
FAMILIES = (
    Family("build_info", "gauge", "The version that runs.", ("version",), (__version__,)),
    Family("polls_total", "counter", "Polls of the endpoint.", ("result",), tuple(Poll)),
    Family("seconds_since_good_poll", "gauge", "Since the endpoint last answered; before that, since the start."),
    Family("events_total", "counter", "Events of this VM that appeared.", ("type",), (*EVENT_TYPES, OTHER)),
    Family("sagas", "gauge", "Events that are being handled.", ("state",), LIVE_STATES),
    Family("steps_total", "counter", "Attempts of handlers that ended.", ("handler", "phase", "result")),
    Family("handler_seconds", "summary", "How long those attempts took.", ("handler", "phase")),
    Family("approvals_total", "counter", "Approvals that were sent.", ("result",), tuple(Approval)),
    Family("ready", "gauge", "Whether this VM should be given work: 0 from the start of preparing until recovered."),
    Family("freeze_measured_seconds", "gauge", "How long this VM really stood still in its last Freeze."),
    Family("freeze_expected_seconds", "gauge", "How long the endpoint had announced for that."),
    Family("resumed_total", "counter", "Starts of the agent that found an event half handled."),
    Family("journal_errors_total", "counter", "Times that the journal could not be written."),
    Family(
        "peer_messages_total",
        "counter",
        "Readiness sent to peers and received from them.",
        ("result",),
        tuple(Exchange),
    ),
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
            self._set(name, 0.0)
        self._set("build_info", 1.0, __version__)

    def polled(self, result: Poll) -> None:
        self._add("polls_total", result)
        if result is not Poll.ERROR:
            self._good_at = self._monotonic()

    def saw(self, event_type: str) -> None:
        self._add("events_total", event_type if event_type in EVENT_TYPES else OTHER)

    def handles(self, states: Mapping[State, int]) -> None:
        for state in LIVE_STATES:
            self._set("sagas", states.get(state, 0), state)

    def stepped(self, handler: str, phase: Phase, *, ok: bool, seconds: float) -> None:
        self._add("steps_total", handler, phase, "ok" if ok else "failed")
        self._add("handler_seconds_sum", handler, phase, amount=seconds)
        self._add("handler_seconds_count", handler, phase)

    def approved(self, result: Approval) -> None:
        self._add("approvals_total", result)

    def became(self, *, ready: bool) -> None:
        self._set("ready", float(ready))

    def froze(self, measured: float, expected: float | None) -> None:
        """0 measured: no pause was noticed. None expected: the endpoint did not announce a duration."""
        self._set("freeze_measured_seconds", measured)
        with self._lock:
            self._values["freeze_expected_seconds"] = {} if expected is None else {(): expected}

    def resumed(self) -> None:
        self._add("resumed_total")

    def journal_failed(self) -> None:
        self._add("journal_errors_total")

    def exchanged(self, result: Exchange) -> None:
        self._add("peer_messages_total", result)

    def render(self) -> str:
        self._set("seconds_since_good_poll", self._monotonic() - self._good_at)
        with self._lock:
            return "".join(f"{line}\n" for family in FAMILIES for line in self._lines(family))

    def routes(self) -> Routes:
        def metrics(_: Request) -> Response:
            return Response(kind=CONTENT_TYPE, body=self.render().encode())

        return {("GET", "/metrics"): metrics}

    def _add(self, sample: str, *labels: str, amount: float = 1) -> None:
        with self._lock:
            values = self._values[sample]
            values[labels] = values.get(labels, 0.0) + amount

    def _set(self, sample: str, value: float, *labels: str) -> None:
        with self._lock:
            self._values[sample][labels] = value

    def _lines(self, family: Family) -> Iterator[str]:
        yield f"# HELP {PREFIX}{family.name} {family.help}"
        yield f"# TYPE {PREFIX}{family.name} {family.kind}"
        for sample in family.samples:
            for labels, value in self._values[sample].items():
                pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in zip(family.labels, labels, strict=True))
                yield f"{PREFIX}{sample}{{{pairs}}} {value!r}" if pairs else f"{PREFIX}{sample} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
