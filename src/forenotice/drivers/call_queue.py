"""Calls to the driver stand in line: in order of start, so many at once in all and for each host."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from forenotice.clock import Clock
from forenotice.core.driver_calls import Finished, NotYet, Outcome, PendingCalls, Task
from forenotice.core.operations import Kind
from forenotice.core.timing import Retries
from forenotice.drivers.letterbox import Letterbox

log = structlog.get_logger()

LONGEST_OUTPUT = 64 * 1024
"""Characters, of all calls for one task."""

STOP_SECONDS = 10.0
"""For what is under way when the service ends; whatever takes longer is asked for again after the next start."""


class Driver(Protocol):
    def carry_out(self, task: Task, now: datetime) -> Outcome:
        """Do what the task says to its VMs, or say when to ask again.

        May block; runs in a thread of its own, in its turn, for one VM or for all of an operation (see CallTerms).
        After a crash, or when it answered NotYet, it is asked again with the same operation id and attempt, so it
        looks first whether the thing has happened. A VM that could not be served is a failure with a reason; an
        exception fails all of them. What failed is asked for again, with a higher attempt, as long as tries are left.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    at_once: int = 8
    """Calls under way, over all operations of this process."""
    at_once_per_host: int | None = None
    each_vm: frozenset[Kind] = frozenset()
    """Kinds of which each VM is a call of its own; of the others, each operation."""
    longest: timedelta | None = None
    """That one call can take; None: it is not known."""
    retries: Retries = field(default_factory=Retries)
    awaits_results: bool = False
    """Whether the outside may tell by itself what became of a task."""
    letterbox: Letterbox = field(default_factory=Letterbox)


@dataclass(eq=False, slots=True)
class _Order:
    """A task, and what is known of its parts."""

    task: Task
    parts: int
    outcomes: list[Outcome] = field(default_factory=list)
    until: datetime | None = None
    """When the calls that have begun are over at the latest."""

    @property
    def complete(self) -> bool:
        return len(self.outcomes) == self.parts


@dataclass(eq=False, slots=True)
class _Call:
    order: _Order
    part: Task


class CallQueue:
    def __init__(
        self, driver: Driver, terms: CallTerms, clock: Clock, answered: Callable[[Task, Outcome], None]
    ) -> None:
        self._driver = driver
        self._terms = terms
        self._clock = clock
        self._answered = answered
        self._changed = threading.Condition()
        self._orders: dict[_Order, None] = {}
        self._waiting: dict[_Call, None] = {}
        self._under_way: Counter[str] = Counter()
        """Calls by host."""
        self._stopped = False

    def enter(self, task: Task) -> None:
        """It is answered once, when all its parts are."""
        each = task.kind in self._terms.each_vm
        parts = [replace(task, vms=(name,)) for name in task.vms] if each else [task]
        order = _Order(task, len(parts))
        with self._changed:
            self._orders[order] = None
            self._waiting |= {_Call(order, part): None for part in parts}
            self._call_next()

    def standing(self, operation: str) -> PendingCalls | None:
        """None: it is not here."""
        terms = self._terms
        with self._changed:
            order = next((order for order in self._orders if order.task.operation == operation), None)
            if order is None:
                return None
            waiting = sum(call.order is order for call in self._waiting)
            return PendingCalls(
                waiting=waiting,
                under_way=self._under_way.total(),
                at_once=terms.at_once,
                at_once_per_host=terms.at_once_per_host,
                until=None if waiting else order.until,
            )

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """What waits is dropped, what is under way is told; of what is not complete then, what is done is answered."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
        self._terms.letterbox.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way.total(), seconds)
            left, self._orders = self._orders, {}
        for order in left:
            unfinished = NotYet(again_at=self._clock.now())
            self._answered(order.task, _together([*order.outcomes, unfinished]))

    def _call_next(self) -> None:
        while not self._stopped and self._under_way.total() < self._terms.at_once:
            call = next((call for call in self._waiting if self._has_room(call.part.host)), None)
            if call is None:
                return
            threading.Thread(target=self._make, args=(call,), name="driver", daemon=True).start()
            del self._waiting[call]
            self._under_way[call.part.host] += 1
            if self._terms.longest is not None:
                call.order.until = self._clock.now() + self._terms.longest

    def _has_room(self, host: str) -> bool:
        most = self._terms.at_once_per_host
        return most is None or self._under_way[host] < most

    def _make(self, call: _Call) -> None:
        order, task = call.order, call.part
        try:
            outcome = self._driver.carry_out(task, self._clock.now())
        except Exception as error:
            log.exception("The driver failed", action="driver.failed", operation=task.operation)
            outcome = Finished(failures={vm: f"{type(error).__name__}: {error}" for vm in task.vms})
        with self._changed:
            self._under_way[task.host] -= 1
            order.outcomes.append(outcome)
            # Unless it was answered when we stopped.
            complete = order.complete and order in self._orders
            if complete:
                del self._orders[order]
                self._answered(order.task, _together(order.outcomes))
            self._call_next()
            self._changed.notify_all()


def _together(outcomes: list[Outcome]) -> Outcome:
    """What failed while something else goes on is asked for again with it: it does not count as a try."""
    done = tuple(name for outcome in outcomes for name in outcome.done)
    open_ones = [outcome.again_at for outcome in outcomes if isinstance(outcome, NotYet)]
    if open_ones:
        return NotYet(again_at=min(open_ones), done=done)
    finished = [outcome for outcome in outcomes if isinstance(outcome, Finished)]
    return Finished(
        done=done,
        failures={name: why for outcome in finished for name, why in outcome.failures.items()},
        calls=_bounded([call for outcome in finished for call in outcome.calls]),
    )


def _bounded(calls: list[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    """With the last of what each printed: all of it goes into one entry of the journal."""
    most = LONGEST_OUTPUT // max(1, len(calls))
    return tuple({**call, "output": str(call["output"])[-most:]} if "output" in call else call for call in calls)
