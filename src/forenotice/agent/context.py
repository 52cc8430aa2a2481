"""What the parts of one agent share: metrics in Prometheus's text format, and a log.

No label ever holds an id. A line of the log has a constant message, variables as fields, and always an `action`.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partialmethod
from typing import TextIO

from forenotice import __version__
from forenotice.agent.rules.policy import EVENT_TYPES, Phase
from forenotice.agent.rules.saga import State
from forenotice.clock import MachineClock
from forenotice.failures import Failures
from forenotice.runtime import Runtime
from forenotice.settings.values import LogFormat, LogLevel
from forenotice.wire import dates

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


ORDER = tuple(LogLevel)
WAITING = 1000
"""Lines that are not written yet; further ones are dropped."""


class Outlet:
    """Standard error for threads that must not block: a pipe that nobody reads blocks one thread of its own."""

    def __init__(self, stream: TextIO, runtime: Runtime, waiting: int = WAITING) -> None:
        self.closed = stream.closed
        self._terminal = _is_terminal(stream)
        self._descriptor = stream.fileno()
        self._monotonic = runtime.monotonic
        self._lines: queue.Queue[str] = queue.Queue(waiting)
        runtime.start_thread(self._run, "log")

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        """How much was accepted: all or nothing."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            return 0
        return len(text)

    def flush(self, seconds: float = 0.0) -> None:
        until = self._monotonic() + seconds
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and (left := until - self._monotonic()) > 0:
                self._lines.all_tasks_done.wait(left)

    def _run(self) -> None:
        while True:
            rest = self._lines.get().encode(errors="backslashreplace")
            try:
                # Not through the stream: a thread that blocks in it would keep the interpreter from ending.
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                pass  # The reader is gone; the agent goes on.
            self._lines.task_done()


class Log:
    """To standard error: for people on a terminal, otherwise one JSON object a line. Never raises."""

    def __init__(
        self, clock: MachineClock, level: LogLevel, log_format: LogFormat, stream: TextIO | Outlet | None = None
    ) -> None:
        self._clock = clock
        self._stream = stream or sys.stderr
        self._least = ORDER.index(level)
        self._people = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and _is_terminal(self._stream))
        self._lock = threading.Lock()
        self._dropped = 0
        self._failures: dict[tuple[str, str], Failures] = {}

    def write(self, level: LogLevel, message: str, *, action: str, **fields: object) -> None:
        if ORDER.index(level) < self._least:
            return
        try:
            with self._lock:
                if self._dropped:
                    fields = {**fields, "lost_lines": self._dropped}
                accepted = self._stream.write(self._line(level, message, action, fields) + "\n")
                self._dropped = 0 if accepted else self._dropped + 1
                self._stream.flush()
        except (OSError, ValueError):
            pass  # The reader is gone; the agent goes on.

    debug = partialmethod(write, LogLevel.DEBUG)
    info = partialmethod(write, LogLevel.INFO)
    warning = partialmethod(write, LogLevel.WARNING)
    error = partialmethod(write, LogLevel.ERROR)

    def trouble(self, message: str, *, action: str, reason: str, of: str = "", **fields: object) -> None:
        """A failure that may repeat: logged when the reason changes, and when the count has doubled.

        `of` is whose failure it is, where those are counted apart.
        """
        failures = self._failures.setdefault((action, of), Failures(ignore_numbers=False))
        if failures.again(reason):
            self.warning(message, action=action, **fields, reason=reason, times=failures.times)

    def over(self, message: str, *, action: str, of: str = "", **fields: object) -> None:
        if self._failures.pop((action, of), None):
            self.info(message, action=action, **fields)

    def _line(self, level: LogLevel, message: str, action: str, fields: dict[str, object]) -> str:
        moment = dates.iso(self._clock.now())
        if self._people:
            shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
            return f"{moment} {level:<7} {message}  {shown}".rstrip()
        line = {"timestamp": moment, "level": level, "event": message, "action": action, **fields}
        return json.dumps(line, default=str)


def _shown(value: object) -> str:
    match value:
        case str():
            return repr(str(value))
        case tuple() | list():
            return repr(", ".join(map(str, value)))
    return repr(value)


def _is_terminal(stream: TextIO | Outlet) -> bool:
    return not stream.closed and stream.isatty()


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
