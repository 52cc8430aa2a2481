"""What is measured, for Prometheus: told by the service as it happens, or read when somebody asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forenotice import __version__, logs
from forenotice.control.limits import TRACED
from forenotice.core import errors
from forenotice.core.edges import EdgeState
from forenotice.core.fleet import DriftKind
from forenotice.core.operations import ANNOUNCED, EventType
from forenotice.service.service import Telemetry
from forenotice.views.edges import Edge

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

MINUTE, HOUR, DAY = 60, 3600, 86400
LEAD_BUCKETS = (1, 10, 30, MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 20 * MINUTE, HOUR, DAY, 7 * DAY)
LATENCY_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 30, MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, HOUR, DAY)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15, MINUTE)

EventCounts = Callable[[], Mapping[tuple[str, str], int]]
"""Live events by type and status."""

GuestCounts = Callable[[], Mapping[str, int]]
"""What guests have asked for since the start, by kind, `polls` among them; and GUEST_GAUGES as they are now."""

ThreadAges = Callable[[], Mapping[str, float]]
"""Seconds since the last turn of each thread of the service."""

DriftCounts = Callable[[], Mapping[str, int]]
"""How often watched hosts differ from the fleet, by kind."""

Behind = Callable[[], timedelta]
"""How far the clock is behind the journal."""

GUEST_GAUGES = {
    "connections_open": ("forenotice_guest_connections", "Connections of guests that are open."),
    "waiting": ("forenotice_guest_waits", "Long polls that are open now."),
}


class Metrics(Telemetry, Collector):
    """Implements the service's Telemetry, and collects the rest when somebody asks."""

    def __init__(
        self,
        *,
        events: EventCounts,
        guests: GuestCounts,
        threads: ThreadAges = dict,
        behind: Behind = timedelta,
        drift: DriftCounts = dict,
        silent: Callable[[], int] = int,
        edges: Callable[[], Sequence[Edge]] = tuple,
    ) -> None:
        """`silent`: how many watched hosts do not answer this process."""
        self._events, self._guests, self._threads, self._behind = events, guests, threads, behind
        self._drift, self._silent, self._edges = drift, silent, edges
        self._registry = CollectorRegistry()
        self._registry.register(self)
        counter, histogram = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        self._document_changes = counter("forenotice_document_changes", "Documents that guests could see change.")
        self._approvals = counter("forenotice_approvals", "Events that were approved.")
        self._lead_time = histogram(
            "forenotice_lead_time_seconds", "From an event's appearance to its start.", ["type"], buckets=LEAD_BUCKETS
        )
        self._approval_latency = histogram(
            "forenotice_approval_latency_seconds",
            "From an event's appearance to its approval.",
            buckets=LATENCY_BUCKETS,
        )
        self._tick_lag = histogram(
            "forenotice_tick_lag_seconds", "From when something was due to when it was done.", buckets=LAG_BUCKETS
        )
        self._clock_jumps = counter("forenotice_clock_jumps", "Times that the clock jumped ahead.")
        self._refused = counter(
            "forenotice_refused", "Operators' requests that were refused, by HTTP status.", ["status"]
        )
        for event_type in EventType:
            self._lead_time.labels(event_type.value)
        for status in TRACED:
            self._refused.labels(str(status))

    def document_changes(self, count: int) -> None:
        self._document_changes.inc(count)

    def lead_time(self, event_type: str, seconds: float) -> None:
        self._lead_time.labels(event_type).observe(seconds)

    def approvals(self, count: int) -> None:
        self._approvals.inc(count)

    def approval_latency(self, seconds: float) -> None:
        self._approval_latency.observe(seconds)

    def tick_lag(self, seconds: float) -> None:
        self._tick_lag.observe(seconds)

    def clock_jump(self) -> None:
        self._clock_jumps.inc()

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def render(self) -> bytes:
        return prometheus_client.generate_latest(self._registry)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        # Without this, registering would read everything once.
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        build = GaugeMetricFamily("forenotice_build_info", "The version that runs.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        guests = dict(self._guests())
        yield CounterMetricFamily("forenotice_polls", "Polls of guests that were answered.", guests.pop("polls", 0))
        for kind, (name, what) in GUEST_GAUGES.items():
            yield GaugeMetricFamily(name, what, guests.pop(kind, 0))
        requests = CounterMetricFamily("forenotice_guest_requests", "What else guests did, by kind.", labels=["kind"])
        for kind, count in sorted(guests.items()):
            requests.add_metric([kind], count)
        yield requests
        yield CounterMetricFamily(
            "forenotice_log_lines_dropped", "Lines of the log that could not be written.", logs.writer.dropped
        )
        turned = GaugeMetricFamily(
            "forenotice_thread_turned_seconds", "Since each thread's last turn.", labels=["thread"]
        )
        for name, seconds in self._threads().items():
            turned.add_metric([name], seconds)
        yield turned
        yield GaugeMetricFamily(
            "forenotice_clock_behind_seconds",
            "How far the clock is behind the journal.",
            self._behind().total_seconds(),
        )
        yield GaugeMetricFamily("forenotice_silent_hosts", "Watched hosts that do not answer.", self._silent())
        yield from self._collect_edges()
        live = GaugeMetricFamily("forenotice_events", "Live events.", labels=["type", "status"])
        try:
            counts, differing = self._events(), self._drift()
        except (errors.UnavailableError, errors.UnsoundError):
            yield GaugeMetricFamily("forenotice_store_up", "Whether the store could be read.", 0)
            return
        yield GaugeMetricFamily("forenotice_store_up", "Whether the store could be read.", 1)
        for event_type in EventType:
            for status in sorted(ANNOUNCED):
                live.add_metric([event_type.value, status.value], counts.get((event_type.value, status.value), 0))
        yield live
        drift = GaugeMetricFamily("forenotice_drift", "How watched hosts differ from the fleet.", labels=["kind"])
        for kind in DriftKind:
            drift.add_metric([kind.value], differing.get(kind, 0))
        yield drift

    def _collect_edges(self) -> Iterator[GaugeMetricFamily]:
        edges = self._edges()
        known = GaugeMetricFamily("forenotice_edges", "Edges as this process hears them, by state.", labels=["state"])
        for state in EdgeState:
            known.add_metric([state.value], sum(edge.state is state for edge in edges))
        yield known
        beats = [edge.last_beat_seconds or 0 for edge in edges if edge.state is not EdgeState.LOST]
        yield GaugeMetricFamily(
            "forenotice_edge_oldest_beat_seconds",
            "Since the quietest edge that is not lost was heard.",
            max(beats, default=0),
        )
        yield GaugeMetricFamily(
            "forenotice_edge_positions_behind",
            "Positions of the journal between what the slowest edge has and what was published for it.",
            max((edge.behind or 0 for edge in edges if edge.state is not EdgeState.LOST), default=0),
        )
        yield GaugeMetricFamily(
            "forenotice_edge_refused_states",
            "States that edges could not read, since each started.",
            sum(edge.refused for edge in edges),
        )
