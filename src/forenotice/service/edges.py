"""Edges, as this process hears them: who has one, what each has shown its guests, who is lost."""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import structlog

from forenotice.cluster.messages import Beat, Fence
from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.core.edges import Edge, EdgeState, KnownEdges
from forenotice.core.journal import Entry
from forenotice.failures import has_doubled
from forenotice.store.transaction import Reader
from forenotice.views import edges as views

if TYPE_CHECKING:
    from forenotice.service.service import Service, UnitOfWork

log = structlog.get_logger()

LOST_AFTER = 30.0
"""Seconds without a beat, while this process is connected."""
AWAY_AFTER = 3600.0
"""Seconds in which no process publishes, because none has NATS: then all edges are lost."""
LEASE = "cluster_publisher"
"""Of the process that publishes for edges: one that has NATS."""
ANY = Fence(0, 0)
"""At least this has an edge that has a state."""
LONGEST_GAP = 5.0
"""Seconds between two calls of `watch`; after more, this process slept or was busy, and may have missed beats."""


@dataclass(frozen=True, slots=True)
class _Heard:
    beat: Beat
    at: float
    """By the monotonic clock."""


class Shown(NamedTuple):
    """The state that an edge shows its guests."""

    fence: Fence
    at: datetime
    host: str


class Edges:
    """Every thread may call it. It writes in `watch` alone, and follows what the journal says of edges."""

    def __init__(self, service: "Service", patience: timedelta) -> None:
        self._service = service
        self._monotonic = service.runtime.monotonic
        self._lock = threading.Lock()
        self._edges: dict[str, Edge] = {}
        self._shown: dict[str, datetime | None] = {}
        self.known = KnownEdges(shown=self._shown, patience=patience)
        """For decisions; always as it is now."""
        self.published: dict[str, Fence] = {}
        """The newest state of each host, where this process is the one that publishes."""
        self._beats: dict[str, _Heard] = {}
        self._signs: dict[str, float] = {}
        """The last sign of life of each edge that is not lost; oldest first."""
        self._lost: set[str] = set()
        self._newcomers: dict[str, Beat] = {}
        """Of hosts without a known edge, until `watch` has looked at them."""
        self._strangers: Counter[str] = Counter()
        self._progressed: set[str] = set()
        """Hosts whose edge has shown more since `watch` last looked."""
        self._polls: dict[str, dict[str, datetime]] = {}
        """When VMs last polled, by VM and by the host whose edge says so."""
        self._listens_since = self._watched = self._monotonic()
        self._away = 0.0
        """Seconds without NATS here, and without a process that publishes."""

    # What is known

    @property
    def hosts(self) -> set[str]:
        """Those that have an edge."""
        with self._lock:
            return set(self._edges)

    @property
    def lost(self) -> set[str]:
        """Those whose edge is."""
        with self._lock:
            return set(self._lost)

    def find(self, host: str) -> views.Edge | None:
        with self._lock:
            return self._view(self._edges[host]) if host in self._edges else None

    def all(self) -> list[views.Edge]:
        """By host."""
        with self._lock:
            return [self._view(self._edges[host]) for host in sorted(self._edges)]

    def behind(self) -> set[str]:
        """Hosts whose edges are heard, and have an older state than was published, or none at all."""
        now = self._monotonic()
        with self._lock:
            return {
                host
                for host, heard in self._beats.items()
                if now - heard.at <= LOST_AFTER and heard.beat.fence < self.published.get(host, ANY)
            }

    def latest(self, besides: Collection[str]) -> Shown | None:
        """The latest state that edges which are heard show, except those of some hosts."""
        now = self._monotonic()
        with self._lock:
            found = (
                Shown(heard.beat.fence, heard.beat.at, host)
                for host, heard in self._beats.items()
                if heard.beat.at is not None and now - heard.at <= LOST_AFTER and host not in besides
            )
            return max(found, default=None)

    def polled(self, vm: str) -> datetime | None:
        """When a VM that is being acted on last polled at an edge, by what its own host or its target says."""
        with self._lock:
            told = dict(self._polls.get(vm, ()))
        if told:
            with suppress(errors.UnavailableError, errors.UnsoundError), self._service.store.read() as reader:
                places = reader.vms.whereabouts(vm)
                return max((at for host, at in told.items() if host in places), default=None)
        return None

    def _view(self, edge: Edge) -> views.Edge:
        heard, newest = self._beats.get(edge.host), self.published.get(edge.host)
        beat = heard.beat if heard else None
        age = None if heard is None else self._monotonic() - heard.at
        confirmed = None if age is None or beat is None or beat.age is None else age + beat.age
        behind = None
        if beat is not None and newest is not None and beat.epoch == newest.epoch:
            behind = max(0, newest.position - beat.position)
        if edge.lost_since is not None:
            state = EdgeState.LOST
        elif beat is None or age is None or age > LOST_AFTER:
            state = EdgeState.UNHEARD
        else:
            state = EdgeState.BEHIND if beat.fence < (newest or ANY) else EdgeState.CURRENT
        return views.Edge(
            host=edge.host,
            state=state,
            since=edge.since,
            lost_since=edge.lost_since,
            version=beat.version if beat else None,
            last_beat=self._ago(age),
            last_beat_seconds=None if age is None else round(age, 1),
            confirmed=self._ago(confirmed),
            confirmed_seconds=None if confirmed is None else round(confirmed, 1),
            epoch=beat.epoch if beat and beat.at else None,
            position=beat.position if beat and beat.at else None,
            shown_until=beat.at if beat else None,
            behind=behind,
            refused=beat.refused if beat else 0,
            refusal=beat.refusal if beat else "",
        )

    def _ago(self, seconds: float | None) -> datetime | None:
        return None if seconds is None else self._service.clock.now() - timedelta(seconds=seconds)

    # What is heard

    def beat(self, host: str, beat: Beat) -> None:
        with self._lock:
            if host in self._edges:
                self._take(host, beat)
            else:
                self._newcomers[host] = beat

    def _take(self, host: str, beat: Beat) -> None:
        now, before, shown = self._monotonic(), self._beats.get(host), self._shown.get(host)
        self._beats[host] = _Heard(beat, now)
        self._sign(host, now)
        self._shown[host] = beat.at
        if beat.at is not None and (shown is None or beat.at > shown):
            self._progressed.add(host)
        for vm in before.beat.polls if before else ():
            self._forget_poll(vm, host)
        # A clock of another machine may be ahead.
        latest = self._service.clock.now()
        for vm, at in beat.polls.items():
            self._polls.setdefault(vm, {})[host] = min(at, latest)

    def _sign(self, host: str, at: float) -> None:
        self._signs.pop(host, None)
        if host not in self._lost:
            self._signs[host] = at

    def _forget_poll(self, vm: str, host: str) -> None:
        if known := self._polls.get(vm):
            known.pop(host, None)
            if not known:
                del self._polls[vm]

    # What the journal says

    def load(self, reader: Reader) -> None:
        found = {edge.host: edge for edge in reader.edges.all()}
        with self._lock:
            for host in self._edges.keys() - found.keys():
                self._drop(host)
            for edge in found.values():
                self._put(edge)

    def follow(self, entries: Iterable[Entry]) -> None:
        """What this or another process has written."""
        for entry in entries:
            noun, _, verb = entry.action.partition(".")
            if entry.host is not None and (noun == "edge" or entry.action == "host.removed"):
                with self._lock:
                    self._follow(entry.host, verb, entry)

    def _follow(self, host: str, verb: str, entry: Entry) -> None:
        match verb, self._edges.get(host):
            case "registered", _:
                self._away = 0.0
                self._put(Edge(host=host, since=entry.at))
            case "lost", Edge() as edge:
                # Another process wrote it as text.
                self._put(replace(edge, lost_since=datetime.fromisoformat(str(entry.data["since"]))))
            case "returned", Edge() as edge:
                # Some process hears edges.
                self._away = 0.0
                self._put(replace(edge, lost_since=None))
            case "forgotten" | "removed", Edge():
                self._drop(host)

    def _settle(self, host: str, edge: Edge | None, beat: Beat | None) -> None:
        """As the store has it; None: it does not."""
        if edge is not None:
            self._put(edge)
            if beat is not None:
                self._take(host, beat)
        elif host in self._edges:
            self._drop(host)

    def _put(self, edge: Edge) -> None:
        before = self._edges.get(edge.host)
        self._edges[edge.host] = edge
        self._shown.setdefault(edge.host, None)
        (self._lost.discard if edge.lost_since is None else self._lost.add)(edge.host)
        if beat := self._newcomers.pop(edge.host, None):
            self._take(edge.host, beat)
        elif before is None or before.lost_since != edge.lost_since:
            # Another process may hear what we do not: it has time to be heard here, too.
            self._sign(edge.host, self._monotonic())

    def _drop(self, host: str) -> None:
        del self._edges[host]
        self._lost.discard(host)
        if heard := self._beats.pop(host, None):
            for vm in heard.beat.polls:
                self._forget_poll(vm, host)
        for known in (self._shown, self._signs, self.published):
            known.pop(host, None)

    # Lost and returned

    def watch(self, connected: bool) -> None:
        """Write what has changed, in one transaction. Called every second or so, while `connected` or not."""
        is_away = not connected and not self._others_publish()
        now = self._monotonic()
        with self._lock:
            passed, self._watched = now - self._watched, now
            self._away = self._away + min(passed, LONGEST_GAP) if is_away else 0.0
            if not connected or passed > LONGEST_GAP:
                self._listens_since = now
            newcomers, self._newcomers = self._newcomers, {}
            are_lost = self._away > AWAY_AFTER
            lost = {host: now - at for host, at in self._signs.items()} if are_lost else dict(self._silent(now))
            returned = {host for host in self._lost if self._is_heard(host, now)}
        if newcomers:
            newcomers = self._known_ones(newcomers)
        if newcomers or lost or returned:
            known = self._service.transact(lambda unit: self._write(unit, newcomers, lost, returned))
            with self._lock:
                for host in (*newcomers, *lost, *returned):
                    self._settle(host, known.get(host), newcomers.get(host))
        self._wake()

    def _silent(self, now: float) -> Iterator[tuple[str, float]]:
        """Edges that are lost as of now, and for how long."""
        for host, at in self._signs.items():
            seconds = now - max(at, self._listens_since)
            if seconds <= LOST_AFTER:
                return
            yield host, seconds

    def _others_publish(self) -> bool:
        with self._service.store.read() as reader:
            return reader.leases.get(LEASE).until > self._service.clock.now()

    def _is_heard(self, host: str, now: float) -> bool:
        return host in self._beats and now - self._beats[host].at <= LOST_AFTER

    def _known_ones(self, newcomers: Mapping[str, Beat]) -> dict[str, Beat]:
        """Those of hosts in the fleet."""
        with self._service.store.read() as reader:
            hosts = reader.hosts.among(newcomers)
        for host in newcomers.keys() - hosts:
            self._strangers[host] += 1
            if has_doubled(self._strangers[host]):
                log.warning("An edge reports for a host that is not in the fleet", action="edge.stranger", host=host)
        return {host: beat for host, beat in newcomers.items() if host in hosts}

    def _write(
        self, unit: "UnitOfWork", newcomers: Mapping[str, Beat], lost: Mapping[str, float], returned: Collection[str]
    ) -> Mapping[str, Edge]:
        """All of these as they are now. Another process may have written the same."""
        known = {edge.host: edge for edge in unit.transaction.edges.of([*newcomers, *lost, *returned])}
        draft = unit.draft(World())
        changed: dict[str, Edge] = {}
        for host in sorted(unit.transaction.hosts.among(newcomers) - known.keys()):
            changed[host] = Edge(host=host, since=unit.now)
            draft.note("edge.registered", host=host, version=newcomers[host].version)
        for edge in known.values():
            if edge.host in lost and edge.lost_since is None:
                since = unit.now - timedelta(seconds=lost[edge.host])
                changed[edge.host] = replace(edge, lost_since=since)
                draft.note("edge.lost", host=edge.host, since=since)
            elif edge.host in returned and edge.lost_since is not None:
                changed[edge.host] = replace(edge, lost_since=None)
                draft.note("edge.returned", host=edge.host, since=edge.lost_since)
                draft.make_room()
        unit.transaction.edges.put(changed.values())
        unit.keep(draft)
        return known | changed

    def _wake(self) -> None:
        """Operations that waited for an edge are due now, where it has shown more."""
        with self._lock:
            hosts, self._progressed = self._progressed, set()
        if not hosts:
            return
        try:
            with self._service.store.read() as reader:
                waits = reader.operations.are_held_on(hosts)
            if waits:
                self._service.transact(lambda unit: self._make_due(unit, hosts))
        except BaseException:
            with self._lock:
                self._progressed |= hosts
            raise

    def _make_due(self, unit: "UnitOfWork", hosts: Collection[str]) -> None:
        unit.makes_due |= unit.transaction.operations.wake_on(hosts, unit.now) > 0
