"""The service as a whole: where it keeps things, what time it is, and one way to change anything."""

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from forenotice import publication
from forenotice.core import errors, lifecycle
from forenotice.core.draft import NO_LIMITS, Changes, Draft, UserLimits, World
from forenotice.core.edges import PATIENCE
from forenotice.core.inventory import Silence
from forenotice.core.journal import SYSTEM, Repeats
from forenotice.core.operations import Status
from forenotice.core.selectors import Selector
from forenotice.core.timing import CLOCK_TOLERANCE, Timing
from forenotice.drivers.call_queue import CallQueue, DriverChoice
from forenotice.failures import Failures, Liveness
from forenotice.publication import Publication, Publisher
from forenotice.runtime import Runtime
from forenotice.service import visibility
from forenotice.service.edges import Edges
from forenotice.service.gates import Gates
from forenotice.ssrf import OutgoingClient
from forenotice.store.database import OWN, Store, TimeLimit, WriteRequest
from forenotice.store.transaction import Reader, Transaction
from forenotice.wire.versions import AS_PUBLISHED, Version

if TYPE_CHECKING:
    from forenotice.service.calls import Call

log = structlog.get_logger()

T = TypeVar("T")

ALLOWANCES = tuple(timedelta(seconds=seconds) for seconds in (0.5, 2, 10, 60))
"""How long a transaction that gives notice may take: notice counts from the commit, so a longer one is done again."""

ALLOWANCE_EACH = timedelta(microseconds=400)
"""A decision about many VMs and hosts takes longer; allowing for it from the start avoids doing it twice."""

COMMIT_SHARE = 0.5
"""The part of an allowance that is kept for the commit itself."""

SAME_JUMP = timedelta(minutes=1)
"""All servers on a database notice a jump of its clock within this time."""
ALIVE_AT, MARK, JUMP = "alive_at", "clock_mark", "clock_jump"


class Telemetry:
    """What the service measures of itself; this one drops it."""

    def document_changes(self, count: int) -> None: ...

    def lead_time(self, event_type: str, seconds: float) -> None:
        """From an event's appearance to its start."""

    def approvals(self, count: int) -> None: ...

    def approval_latency(self, seconds: float) -> None:
        """From an event's appearance to its approval."""

    def tick_lag(self, seconds: float) -> None:
        """From when something was due to when it was done."""

    def clock_jump(self) -> None: ...

    def refused(self, status: int) -> None:
        """An operator's request, with this HTTP status."""


class UnitOfWork:
    """One transaction at one moment."""

    def __init__(self, service: "Service", transaction: Transaction, now: datetime, allowance: timedelta) -> None:
        self.service = service
        self.transaction = transaction
        self.now = now
        self.allowance = allowance
        self.gives_notice = False
        self.makes_due = False
        self.kept: list[Changes] = []
        self.published: list[Publication] = []

    def draft(self, world: World, call: "Call | None" = None) -> Draft:
        """What it notes is in the journal with who asked for it, from where, and why; None: we did."""
        self.allowance = max(self.allowance, allowance_for(world))
        return Draft(
            world,
            now=self.now,
            timing=self.service.timing,
            new_id=self.service.runtime.new_id,
            by=call.actor if call else SYSTEM,
            origin=call.origin if call else "",
            reason=call.reason if call else "",
            allowance=self.allowance,
            allows_loopback=self.service.allows_loopback,
            limits=self.service.limits,
            edges=self.service.edges.known,
        )

    def load(self, call: "Call | None" = None, **what: Any) -> Draft:
        """A draft of what `worlds.load` gives."""
        return self.draft(self.transaction.worlds.load(**what), call)

    def keep(self, draft: Draft) -> None:
        """Write what a draft decided; it is published after the commit."""
        changes = draft.changes()
        if not (changes.entries or changes.scopes or changes.operations or changes.rollouts or changes.drift):
            return
        self.transaction.apply(changes)
        self.gives_notice |= any(event.created_at == self.now for event in changes.events.values())
        self.makes_due |= bool(changes.operations or changes.rollouts)
        if changes.woken:
            self.makes_due |= self.transaction.operations.wake(changes.woken, self.now) > 0
            self.makes_due |= self.transaction.rollouts.wake(self.now) > 0
        if changes.replanned:
            self.makes_due |= self.transaction.operations.replan(changes.replanned, self.now) > 0
        if changes.room_made:
            self.makes_due |= self.transaction.operations.wake_held(self.now) > 0
        if changes.members:
            self.published += read_published(self.transaction, tuple(changes.members))
        self.kept.append(changes)

    def account_for_jump(self, by: timedelta) -> None:
        """A jump of the clock is neither notice nor silence of guests, and guests get time to look again."""
        self.service.give_grace()
        meta = self.transaction.meta
        if known := meta.get(JUMP):
            process, at, seconds = known.split()
            recent = self.now - datetime.fromisoformat(at) < SAME_JUMP
            if (
                process != self.service.process
                and recent
                and abs(by.total_seconds() - float(seconds)) < CLOCK_TOLERANCE.seconds
            ):
                return  # Another server on this database has accounted for it.
        self.transaction.operations.withhold(by, self.now - by)
        self.transaction.scopes.shift_heard(by)
        if alive_at := meta.get(ALIVE_AT):
            meta.put(ALIVE_AT, (datetime.fromisoformat(alive_at) + by).isoformat())
        meta.put(MARK, self.service.clock.mark())
        meta.put(JUMP, f"{self.service.process} {self.now.isoformat()} {by.total_seconds()}")
        draft = self.draft(self.transaction.worlds.load())
        draft.note("clock.jumped", seconds=round(by.total_seconds()))
        self.keep(draft)


class Service:
    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        timing: Timing,
        publisher: Publisher,
        telemetry: Telemetry | None = None,
        outgoing: OutgoingClient | None = None,
        gates: Gates | None = None,
        drivers: Sequence[DriverChoice] = (),
        allows_loopback: bool = False,
        limits: UserLimits = NO_LIMITS,
        edge_patience: timedelta = PATIENCE,
        versions: Mapping[str, Version] = AS_PUBLISHED,
        token_file: Path | None = None,
    ) -> None:
        self.store = store
        self.runtime = runtime
        self.clock = runtime.clock
        self.timing = timing
        self.publisher = publisher
        self.telemetry = telemetry or Telemetry()
        self.outgoing = outgoing or OutgoingClient()
        """For what is sent while a command waits for it."""
        self.gates = gates or Gates({}, self.outgoing, runtime)
        self.liveness = Liveness(clock=runtime.monotonic)
        self.allows_loopback = allows_loopback
        """Whether VMs may have loopback addresses."""
        self.limits = limits
        self.versions = versions
        """As guests are answered, by name."""
        self.token_file = token_file
        """Where commands on this machine find their token."""
        self.process = runtime.new_id()
        self._jumped = timedelta(0)
        """How much of the clock's jumps is accounted for."""
        self._late: list[tuple[set[str], datetime]] = []
        """Operations announced by a commit that took too long: their NotBefore is still to be moved."""
        self.give_grace()
        self.nudge = threading.Event()
        """Set when there may be something for tick to do."""
        self.calls = CallQueue(drivers, runtime, self.nudge.set)
        self.writable = True
        """Whether the store took what it was last given."""
        self.fleet_changed = False
        """Whether hosts, VMs or groups have changed since the store was settled."""
        self.used: dict[str, datetime] = {}
        """When tokens were last used, by id, until housekeeping has written it: who only reads waits for no writer."""
        self.prolonged: dict[str, datetime] = {}
        """Until when sessions last, by digest, likewise."""
        self.repeats = Repeats()
        self.silent: dict[str, Silence] = {}
        """Watched hosts that do not answer this process."""
        self.edges = Edges(self, edge_patience)
        self.unready = Failures()
        self._growth: list[threading.Event] = []

    def give_grace(self) -> None:
        """For a while nothing starts by expiry alone: guests may not have seen it."""
        self.expiry_from = self.clock.now() + self.timing.startup_grace

    def correct_clock(self, transaction: Transaction) -> None:
        """All servers on one database use the database's clock."""
        if transaction.database_time is not None:
            self.clock.correct(transaction.database_time)

    @property
    def clock_has_jumped(self) -> bool:
        """Whether there is a jump that no transaction has accounted for."""
        return self.clock.jumped > self._jumped

    def draft(self, world: World, seen: Selector | None = None, **more: Any) -> Draft:
        """For looking, and for decisions that are not written; `seen` limits what is in it."""
        world = visibility.limited(world, seen)
        how: dict[str, Any] = {"timing": self.timing, "new_id": self.runtime.new_id, "edges": self.edges.known, **more}
        return Draft(world, now=self.clock.now(), **how)

    def transact(self, work: Callable[[UnitOfWork], T], request: WriteRequest = OWN) -> T:
        """Do some work in one transaction and publish what it kept, in the order of commits."""
        try:
            result = self._transact(work, request)
        except (errors.OverdueError, errors.GoneError):
            raise
        except (errors.UnavailableError, errors.UnsoundError):
            self.writable = False
            raise
        self.writable = True
        return result

    def follow_growth(self, follower: threading.Event | None = None) -> threading.Event:
        """An event that is set whenever the journal has grown, here or by another process."""
        follower = follower or threading.Event()
        self._growth = [*self._growth, follower]
        return follower

    def unfollow_growth(self, follower: threading.Event) -> None:
        self._growth = [each for each in self._growth if each is not follower]

    def tell_growth(self) -> None:
        for follower in self._growth:
            follower.set()

    def refresh(self, keys: tuple[str, ...] | None = None) -> int:
        """Publish scopes as the store has them now (None: all); gives the journal position that this includes."""
        with self.store.writer.turn(), self.store.read() as reader:
            last = reader.journal.last()
            publish = self.publisher.everything if keys is None else self.publisher.scopes
            publish(read_published(reader, keys))
            if keys is None:
                self.edges.load(reader)
            return last[0] if last else 0

    def _transact(self, work: Callable[[UnitOfWork], T], request: WriteRequest) -> T:
        time_limit = TimeLimit(request, self.runtime.monotonic)
        with self.store.writer.turn(request):
            for allowance in ALLOWANCES:
                try:
                    unit, result = self._attempt(work, allowance, time_limit)
                except _TooSlowError:
                    log.warning("A transaction took too long and is done again", action="transaction.slow")
                    continue
                self._make_up_for_delay(unit)
                self._publish(unit)
                return result
        raise errors.UnavailableError("The store is too slow to give the notice that was promised; try again.")

    def _make_up_for_delay(self, unit: UnitOfWork) -> None:
        """Notice counts from the commit: when that alone took too long, what it announced is put off."""
        made = {key for changes in unit.kept for key in changes.operations}
        if not made or self.clock.now() - unit.now <= unit.allowance:
            return
        log.warning("A commit took too long; NotBefore of what it announced is moved", action="commit.slow")
        self._late.append((made, unit.now))
        try:
            later, _ = self._attempt(lambda _: None, ALLOWANCES[-1], TimeLimit(OWN, self.runtime.monotonic))
        except (errors.UnavailableError, errors.UnsoundError) as error:
            # It is committed, so guests must see it; the next transaction tries again first.
            log.error("NotBefore cannot be moved yet; that is tried again", action="commit.late", reason=error.message)
        else:
            unit.kept += later.kept

    def _attempt(
        self, work: Callable[[UnitOfWork], T], allowance: timedelta, time_limit: TimeLimit
    ) -> tuple[UnitOfWork, T]:
        time_limit.check()
        with self.store.write(time_limit.check) as transaction:
            time_limit.start()
            self.correct_clock(transaction)
            last = transaction.journal.last()
            if last is not None:
                self.clock.not_below(last[1])
            unit = UnitOfWork(self, transaction, self.clock.now(), allowance)
            jumped = self.clock.jumped
            if jumped > self._jumped:
                unit.account_for_jump(jumped - self._jumped)
            for made, promised_at in self._late:
                draft = unit.load(operations=made)
                for key in sorted(made & draft.world.operations.keys()):
                    lifecycle.restore_notice(draft, draft.operation(key), promised_at)
                unit.keep(draft)
            result = work(unit)
            late = self.clock.now() - unit.now > unit.allowance * (1 - COMMIT_SHARE)
            if late and unit.gives_notice:
                raise _TooSlowError
        self._late.clear()
        if jumped > self._jumped:
            seconds, self._jumped = round((jumped - self._jumped).total_seconds()), jumped
            self.telemetry.clock_jump()
            log.error("The clock jumped ahead; no notice expires because of it", action="clock.jumped", seconds=seconds)
        return unit, result

    def _publish(self, unit: UnitOfWork) -> None:
        entries = [entry for changes in unit.kept for entry in changes.entries]
        self.edges.follow(entries)
        if unit.published:
            self.publisher.scopes(unit.published)
            self.fleet_changed = True
        for changes in unit.kept:
            if changes.documents:
                self.publisher.documents(changes.documents)
                self.telemetry.document_changes(len(changes.documents))
            for event in changes.events.values():
                age = (unit.now - event.created_at).total_seconds()
                if event.status is Status.STARTED:
                    self.telemetry.lead_time(event.type, age)
                elif event.approved_at == unit.now and age:
                    self.telemetry.approvals(1)
                    self.telemetry.approval_latency(age)
        if unit.makes_due:
            self.nudge.set()
        if entries:
            self.tell_growth()


class _TooSlowError(Exception):
    """Rolls a transaction back that has used up its allowance."""


def allowance_for(world: World) -> timedelta:
    """How long the commit of a decision about all this may take, if all goes well."""
    return max(ALLOWANCES[0], ALLOWANCE_EACH * (len(world.vms) + len(world.hosts) + len(world.domains)))


def read_published(reader: Reader, keys: tuple[str, ...] | None) -> list[Publication]:
    found = [publication.of(*view) for view in reader.worlds.scopes(keys)]
    known = {scope.key for scope in found}
    return found + [Publication(key=key) for key in keys or () if key not in known]
