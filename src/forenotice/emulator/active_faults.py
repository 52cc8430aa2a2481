"""The faults that are switched on, and what each request meets of them."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from forenotice.clock import Clock
from forenotice.core import errors
from forenotice.core.documents import Document
from forenotice.emulator import faults
from forenotice.emulator.faults import (
    NO_TIME,
    Baseline,
    Delay,
    DocumentChange,
    DocumentView,
    ErrorResponse,
    Fault,
    FixedResponse,
    On,
    Since,
)
from forenotice.metadata import responses
from forenotice.metadata.published import PublishedFleet
from forenotice.metadata.responses import Response
from forenotice.wire.versions import Version


@dataclass(slots=True, kw_only=True)
class ActiveFault:
    fault: Fault
    on: On
    amount: timedelta
    times: int | None
    """How many more requests meet it; None: no limit."""
    until: datetime | None
    """By the emulator's clock; None: until it is switched off."""
    began: Baseline = field(default_factory=Baseline, repr=False, compare=False)
    first_at: datetime | None = None
    """When a request first met it; kept only where it matters."""

    def meets(self, kind: On) -> bool:
        return self.on in (On.ALL, kind)

    def is_over(self, now: datetime) -> bool:
        end = self.end
        return end is not None and end <= now

    @property
    def end(self) -> datetime | None:
        """When it is over by itself."""
        # Whoever comes after the slow first answer is answered as usual.
        ends = (self.until, None if self.first_at is None else self.first_at + self.amount)
        return min((end for end in ends if end is not None), default=None)

    def held_until(self, now: datetime) -> datetime:
        """When a request that comes now is answered."""
        match self.fault.effect:
            case Delay(since=Since.FIRST):
                self.first_at = self.first_at or now
                return self.first_at + self.amount
            case Delay(since=Since.SWITCH):
                assert self.until is not None
                return self.until
        return now + self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFaults:
    """What one request meets."""

    holding: tuple[tuple[str, datetime], ...] = ()
    """By which faults, and until when."""
    instead: ActiveFault | None = None
    """What answers it in place of the endpoint, or not at all."""
    changing: tuple[ActiveFault, ...] = ()
    """What changes the endpoint's answer, in the order of the table."""

    @property
    def names(self) -> str | None:
        """Of all of them, joined by a plus sign."""
        instead = () if self.instead is None else (self.instead.fault.name,)
        changing = (active.fault.name for active in self.changing)
        return "+".join((*(name for name, _ in self.holding), *instead, *changing)) or None

    @property
    def skew(self) -> timedelta:
        return sum((active.amount for active in self.changing if _changes(active, document=False)), NO_TIME)


NO_FAULTS = AppliedFaults()


class Interceptor(Protocol):
    """A connection, as faults see it."""

    def faults_changed(self, over: Collection[str]) -> None:
        """Faults have been switched; those that are `over` hold nobody any longer."""

    def clock_moved(self) -> None:
        """It may have been moved: what was to be held until then is held no longer."""

    @property
    def poll_under_way(self) -> tuple[str, float] | None:
        """Whose, and since when by the monotonic clock."""


class Faults:
    """Switched from any thread, met on the loop's. Times given here have been divided by the emulator's speed already;
    only defaults are divided by it here."""

    def __init__(self, clock: Clock, *, speed: float = 1) -> None:
        self._clock = clock
        self._speed = speed
        self._lock = threading.Lock()
        self._active: dict[str, ActiveFault] = {}
        """In the order they were switched on."""
        self._held: dict[object, datetime] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._published = PublishedFleet()
        self.interceptors: set[Interceptor] = set()
        """Touched on the loop's thread only."""

    def attach(self, published: PublishedFleet, loop: asyncio.AbstractEventLoop) -> None:
        """Whose documents are kept, and where those who wait are told, when a fault is switched."""
        self._published, self._loop = published, loop

    @property
    def active(self) -> tuple[ActiveFault, ...]:
        """In the order they were switched on, with what is left of each."""
        with self._lock:
            self._drop(self._clock.now())
            return tuple(replace(active) for active in self._active.values())

    @property
    def skew(self) -> timedelta:
        """By how much the Date of an answer is wrong that nothing else happens to."""
        with self._lock:
            self._drop(self._clock.now())
            return AppliedFaults(
                changing=tuple(active for active in self._active.values() if active.meets(On.ALL))
            ).skew

    def switch_on(
        self,
        name: str,
        *,
        amount: timedelta | None = None,
        on: str | None = None,
        times: int | None = None,
        lasts: timedelta | None = None,
        now: datetime,
    ) -> ActiveFault:
        """Once more: anew."""
        fault = faults.find(name)
        extent = fault.accept(amount=amount, times=times, lasts=lasts, speed=self._speed)
        active = ActiveFault(
            fault=fault,
            on=fault.on if on is None else _read_on(on),
            amount=extent.amount,
            times=times,
            until=None if extent.lasts is None else now + extent.lasts,
        )
        with self._lock:
            self._active.pop(name, None)
            self._active[name] = active
        self._post(lambda: self._begin(active))
        return replace(active)

    def put(self, fault: Fault | None) -> None:
        """This one and no other from now on, also where the table has no such; None: none."""
        active = fault and ActiveFault(fault=fault, on=fault.on, amount=fault.amount or NO_TIME, times=None, until=None)
        with self._lock:
            over = tuple(self._active)
            self._active = {active.fault.name: active} if active else {}
        self._post(lambda: self._tell(over))

    def switch_off(self, name: str | None = None) -> None:
        """One, or all; whoever is held by it is answered."""
        with self._lock:
            # Also those that are spent: they may hold somebody still.
            names = {*self._active, *(fault.name for fault in faults.ALL)} if name is None else {faults.find(name).name}
            for each in names:
                self._active.pop(each, None)
        self._post(lambda: self._tell(names))

    def expire(self, now: datetime) -> None:
        """After the clock has jumped: whoever is held by what is over is answered."""
        with self._lock:
            over = self._drop(now)
            held = any(end <= now for end in self._held.values())
        if over:
            self._post(lambda: self._tell(over))
        if held:
            self._post(self._let_look)

    @property
    def due(self) -> datetime | None:
        """When the next fault, or the next hold, is over by itself."""
        with self._lock:
            ends = [*(active.end for active in self._active.values()), *self._held.values()]
        return min((end for end in ends if end is not None), default=None)

    @property
    def holding(self) -> int:
        """How many requests are held."""
        return len(self._held)

    def hold(self, holder: object, until: datetime | None) -> None:
        """Somebody's request is held until then; None: not any more."""
        with self._lock:
            if until is None:
                self._held.pop(holder, None)
            else:
                self._held[holder] = until

    def apply(self, kind: On) -> AppliedFaults:
        """What a request of this kind meets now; it counts as one time."""
        if not self._active:
            return NO_FAULTS
        now = self._clock.now()
        with self._lock:
            self._drop(now)
            met = _met(self._active.values(), kind, now)
            self._count(met)
        return met

    def preview(self, kind: On) -> AppliedFaults:
        """What it would meet; that counts as nothing."""
        return _met(self.active, kind, self._clock.now())

    def _count(self, met: AppliedFaults) -> None:
        instead = () if met.instead is None else (met.instead,)
        held_by = (self._active[name] for name, _ in met.holding)
        for active in (*held_by, *instead, *met.changing):
            if active.times is not None:
                active.times -= 1
                if not active.times:
                    del self._active[active.fault.name]

    def _drop(self, now: datetime) -> set[str]:
        over = {name for name, active in self._active.items() if active.is_over(now)}
        for name in over:
            del self._active[name]
        return over

    def _begin(self, active: ActiveFault) -> None:
        for scope in self._published.scopes.values():
            active.began.documents.setdefault(scope.key, scope.document)
        self._tell(())

    def _tell(self, over: Collection[str]) -> None:
        for party in tuple(self.interceptors):
            party.faults_changed(over)

    def _let_look(self) -> None:
        for party in tuple(self.interceptors):
            party.clock_moved()

    def _post(self, call: Callable[[], None]) -> None:
        # A closed loop has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)


def _met(switched_on: Iterable[ActiveFault], kind: On, now: datetime) -> AppliedFaults:
    meeting = [active for active in switched_on if active.meets(kind)]
    holding = [active for active in meeting if isinstance(active.fault.effect, Delay)]
    instead = next((active for active in meeting if not isinstance(active.fault.effect, Delay | DocumentChange)), None)
    # Without a document there is only the Date to change.
    changing = [active for active in meeting if _changes(active, document=instead is None)]
    changing.sort(key=lambda active: faults.ALL.index(active.fault))
    return AppliedFaults(
        holding=tuple((active.fault.name, active.held_until(now)) for active in holding),
        instead=instead,
        changing=tuple(changing),
    )


def _read_on(text: str) -> On:
    try:
        return On(text)
    except ValueError:
        raise errors.RefusedError(f"requests are {', '.join(On)}, not {text[:80]!r}") from None


def _changes(active: ActiveFault, *, document: bool) -> bool:
    effect = active.fault.effect
    return isinstance(effect, DocumentChange) and (document or effect.date)


class Hold:
    """By the emulator's clock, which may be moved, and by a timer, should it stand still.

    `release` is called once, unless it is cancelled before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        until: Mapping[str, datetime],
        release: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._until = dict(until)
        """By the name of what holds it."""
        self._release = release
        self._timer = self._wait()

    @property
    def until(self) -> datetime:
        return max(self._until.values())

    def lift(self, names: Collection[str]) -> None:
        """These hold it no longer."""
        if self._until.keys().isdisjoint(names):
            return
        self._until = {name: until for name, until in self._until.items() if name not in names}
        self._timer.cancel()
        if self._until:
            self._timer = self._wait()
        else:
            self._release()

    def clock_moved(self) -> None:
        now = self._clock.now()
        self.lift([name for name, until in self._until.items() if until <= now])

    def end(self) -> None:
        self.lift(tuple(self._until))

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, (self.until - self._clock.now()).total_seconds()), self._release)


def instead(active: ActiveFault) -> Response | None:
    """In place of the endpoint's answer; None: nothing, the connection is reset."""
    match active.fault.effect:
        case ErrorResponse(retry=True) as effect:
            return responses.retry(effect.status, effect.message, math.ceil(active.amount.total_seconds()))
        case ErrorResponse() as effect:
            return responses.error(effect.status, effect.message)
        case FixedResponse(status=status, body=body):
            return responses.with_body(status, body)
    return None


def changed(met: AppliedFaults, document: Document, version: Version, condition: str | None) -> tuple[Response, int]:
    """The document as a poll is shown it, and how many bytes of it are missing at the end."""
    shown = DocumentView(document=document, version=version)
    for active in met.changing:
        assert isinstance(active.fault.effect, DocumentChange)
        shown = active.fault.effect.document(shown, active.began, active.amount)
    return shown.response(condition)
