"""The faults that are switched on, and which of them apply to each request."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Unpack

from forenotice.clock import Clock
from forenotice.core import errors
from forenotice.core.documents import Document
from forenotice.emulator import faults
from forenotice.emulator.faults import NO_TIME, Delay, DocumentChange, Fault, FaultOptions, On, Since
from forenotice.metadata import responses
from forenotice.metadata.published import PublishedFleet
from forenotice.metadata.responses import Response
from forenotice.wire.versions import Version

if TYPE_CHECKING:
    from forenotice.emulator.interceptor import FaultInterceptor


@dataclass(slots=True, kw_only=True)
class ActiveFault:
    fault: Fault
    on: On
    amount: timedelta
    times: int | None = None
    """How many more requests meet it; None: no limit."""
    until: datetime | None = None
    """By the emulator's clock; None: until it is switched off."""
    baseline: faults.Baseline = field(default_factory=dict, repr=False, compare=False)
    first_at: datetime | None = None
    """When a request first met it, where the delay counts from then."""

    @property
    def end(self) -> datetime | None:
        """When it ends by itself. After the slow first response all others are prompt."""
        return first(self.until, None if self.first_at is None else self.first_at + self.amount)

    def delayed_until(self, now: datetime) -> datetime:
        """When a request that comes now is carried out."""
        match self.fault.effect:
            case Delay(since=Since.FIRST):
                self.first_at = self.first_at or now
                return self.first_at + self.amount
            case Delay(since=Since.SWITCH):
                assert self.until is not None
                return self.until
        return now + self.amount

    def response(self) -> Response | None:
        """In place of the endpoint's; None: the connection is reset."""
        match self.fault.effect:
            case faults.ErrorResponse(retry=True) as effect:
                return responses.retry(effect.status, effect.message, math.ceil(self.amount.total_seconds()))
            case faults.ErrorResponse() as effect:
                return responses.error(effect.status, effect.message)
            case faults.FixedResponse(status=status, body=body):
                return responses.with_body(status, body)
        return None

    def changes(self, *, document: bool) -> bool:
        """Whether it changes the document, or at least the Date."""
        effect = self.fault.effect
        return isinstance(effect, DocumentChange) and (document or effect.date)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFaults:
    delays: Mapping[str, datetime] = field(default_factory=dict)
    instead: ActiveFault | None = None
    """The fault that responds in place of the endpoint, or resets the connection."""
    changes: tuple[ActiveFault, ...] = ()
    """Those that change the endpoint's response, in the order of the table."""

    @property
    def names(self) -> str | None:
        """Of all of them, joined by plus signs."""
        others = (() if self.instead is None else (self.instead,)) + self.changes
        return "+".join((*self.delays, *(active.fault.name for active in others))) or None

    @property
    def skew(self) -> timedelta:
        return sum((active.amount for active in self.changes if active.changes(document=False)), NO_TIME)

    def change(self, document: Document, version: Version, condition: str | None) -> tuple[Response, int]:
        """The document as a poll is shown it, and how many bytes of it are missing at the end."""
        view = faults.DocumentView(document=document, version=version)
        for active in self.changes:
            assert isinstance(active.fault.effect, DocumentChange)
            view = active.fault.effect.document(view, active.baseline, active.amount)
        return view.response(condition)


NO_FAULTS = AppliedFaults()


class Faults:
    """Switched from any thread, applied on the loop's. Durations were divided by the emulator's speed already; only
    defaults are divided by it here."""

    def __init__(self, clock: Clock, *, speed: float = 1) -> None:
        self._clock = clock
        self._speed = speed
        self._lock = threading.Lock()
        self._active: dict[str, ActiveFault] = {}
        """In the order they were switched on."""
        self._delayed: dict[object, datetime] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._published = PublishedFleet()
        self.interceptors: dict[FaultInterceptor, None] = {}
        """Used on the loop's thread only."""

    def attach(self, published: PublishedFleet, loop: asyncio.AbstractEventLoop) -> None:
        self._published, self._loop = published, loop

    @property
    def active(self) -> tuple[ActiveFault, ...]:
        """In the order they were switched on, with what is left of each."""
        with self._lock:
            self._drop(self._clock.now())
            return tuple(replace(active) for active in self._active.values())

    @property
    def skew(self) -> timedelta:
        """By how much the Date of a response is wrong that no fault applies to."""
        return AppliedFaults(changes=tuple(active for active in self.active if active.on is On.ALL)).skew

    def switch_on(self, name: str, *, now: datetime, **options: Unpack[FaultOptions]) -> ActiveFault:
        """A fault that is on already begins anew."""
        fault = faults.find(name)
        amount, lasts = fault.accept(speed=self._speed, **options)
        on = options.get("on") or fault.on
        if on not in list(On):
            raise errors.RefusedError(f"requests are {', '.join(On)}, not {on[:80]!r}")
        until = None if lasts is None else now + lasts
        active = ActiveFault(fault=fault, on=On(on), amount=amount, times=options.get("times"), until=until)
        with self._lock:
            self._active.pop(name, None)
            self._active[name] = active
        self._post(lambda: self._begin(active))
        return replace(active)

    def put(self, fault: Fault | None) -> None:
        """This one and no other from now on, also one that is not in the table."""
        with self._lock:
            over = tuple(self._active)
            self._active = {}
            if fault is not None:
                self._active[fault.name] = ActiveFault(fault=fault, on=fault.on, amount=fault.amount or NO_TIME)
        self._post(lambda: self._notify(over))

    def switch_off(self, name: str | None = None) -> None:
        """One, or all; requests that it delays go on."""
        with self._lock:
            # Also those that are spent: they may delay somebody still.
            names = {*self._active, *(fault.name for fault in faults.ALL)} if name is None else {faults.find(name).name}
            for each in names:
                self._active.pop(each, None)
        self._post(lambda: self._notify(names))

    def expire(self, now: datetime) -> None:
        """The clock was moved: requests that are delayed by what is over go on."""
        with self._lock:
            over = self._drop(now)
            delayed = any(end <= now for end in self._delayed.values())
        if over:
            self._post(lambda: self._notify(over))
        if delayed:
            self._post(lambda: self._notify(None))

    @property
    def due(self) -> datetime | None:
        with self._lock:
            return first(*(active.end for active in self._active.values()), *self._delayed.values())

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    def set_delayed(self, owner: object, until: datetime | None) -> None:
        """A request is delayed until then; None: not any more."""
        with self._lock:
            if until is None:
                self._delayed.pop(owner, None)
            else:
                self._delayed[owner] = until

    def apply(self, kind: On) -> AppliedFaults:
        """What a request of this kind meets now; it counts as one time."""
        if not self._active:
            return NO_FAULTS
        now = self._clock.now()
        with self._lock:
            self._drop(now)
            applied = _applied(self._active.values(), kind, now)
            for name in (applied.names or "").split("+"):
                active = self._active.get(name)
                if active is not None and active.times is not None:
                    active.times -= 1
                    if not active.times:
                        del self._active[name]
        return applied

    def preview(self, kind: On) -> AppliedFaults:
        """What a request would meet, without counting it."""
        return _applied(self.active, kind, self._clock.now())

    def _drop(self, now: datetime) -> set[str]:
        over = {name for name, active in self._active.items() if active.end is not None and active.end <= now}
        for name in over:
            del self._active[name]
        return over

    def _begin(self, active: ActiveFault) -> None:
        for scope in self._published.scopes.values():
            active.baseline.setdefault(scope.key, scope.document)
        self._notify(())

    def _notify(self, over: Collection[str] | None) -> None:
        """Of faults that were switched, and which are over; None: the clock was moved."""
        for interceptor in tuple(self.interceptors):
            if over is None:
                interceptor.clock_moved()
            else:
                interceptor.faults_changed(over)

    def _post(self, call: Callable[[], object]) -> None:
        # A closed loop has nobody left to notify.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)


def _applied(active: Iterable[ActiveFault], kind: On, now: datetime) -> AppliedFaults:
    meeting = [each for each in active if each.on in (On.ALL, kind)]
    instead = next((each for each in meeting if not isinstance(each.fault.effect, Delay | DocumentChange)), None)
    # Without a document there is only the Date to change.
    changes = [each for each in meeting if each.changes(document=instead is None)]
    return AppliedFaults(
        delays={each.fault.name: each.delayed_until(now) for each in meeting if isinstance(each.fault.effect, Delay)},
        instead=instead,
        changes=tuple(sorted(changes, key=lambda each: faults.ALL.index(each.fault))),
    )


def first(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)
