"""The queue of driver calls: in order of start, with limits for each driver and each host."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from forenotice.core.driver_calls import Finished, NotYet, Outcome, PendingCalls, Task
from forenotice.core.fleet import Host
from forenotice.core.operations import Kind
from forenotice.core.selectors import Selector
from forenotice.runtime import Runtime

log = structlog.get_logger()

LONGEST_OUTPUT = 64 * 1024
"""Characters, of all calls for one task."""

STOP_SECONDS = 10.0
"""For calls under way when the service ends; one that takes longer is made again after the next start."""


class Driver(Protocol):
    def carry_out(self, task: Task, now: datetime) -> Outcome:
        """Do what the task says to its VMs, or say when to call again.

        May block; runs in a thread of its own, for one VM or for all of an operation (see `CallTerms.each_vm`).
        After a crash, or when it returned NotYet, it is called again with the same operation id and attempt, so it
        looks first whether the thing has happened. A VM that could not be served is a failure with a reason; an
        exception fails all of them. What failed is tried again, with a higher attempt, as long as tries are left.
        """

    def stop(self) -> None:
        """The service ends: end what can be ended; what is not finished returns NotYet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """How a driver is to be called."""

    at_once: int = 8
    """Calls under way in this process."""
    at_once_per_host: int | None = None
    each_vm: frozenset[Kind] = frozenset()
    """Kinds of which each VM is a call of its own; of the others, each operation."""
    longest: timedelta | None = None
    """That one call can take; None: it is not known."""
    awaits_results: bool = False
    """Whether NotYet means that the call was accepted: it keeps its place until its result is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriverChoice:
    """A driver, and the hosts it is for."""

    driver: Driver
    terms: CallTerms = CallTerms()
    hosts: Selector | None = None
    """None: all that no choice before it has selected."""

    def fits(self, host: Host) -> bool:
        return self.hosts is None or self.hosts.selects(host)


@dataclass(eq=False, slots=True)
class _Order:
    """A task, and what is known of its parts."""

    task: Task
    choice: DriverChoice
    parts: int
    outcomes: list[Outcome] = field(default_factory=list)
    until: datetime | None = None
    """When the calls that have begun are over at the latest."""


@dataclass(eq=False, slots=True)
class _Call:
    order: _Order
    part: Task


class CallQueue:
    """All calls of this process. What they come to is collected until `finished` takes it."""

    def __init__(self, choices: Sequence[DriverChoice], runtime: Runtime, wake: Callable[[], None]) -> None:
        """`wake` is called when a call has returned."""
        self._choices = choices
        self._runtime = runtime
        self._wake = wake
        self._changed = threading.Condition()
        self._orders: dict[str, _Order] = {}
        """By operation."""
        self._waiting: dict[_Call, None] = {}
        self._accepted: dict[_Call, datetime] = {}
        """Calls that the driver has accepted, and when to call again."""
        self._under_way: dict[DriverChoice, Counter[str]] = {choice: Counter() for choice in choices}
        """Calls by host, the accepted ones included."""
        self._finished: list[tuple[Task, Outcome]] = []
        self._stopped = False

    def choice(self, host: Host) -> DriverChoice | None:
        """None: a service without drivers, which does not tick."""
        return next((each for each in self._choices if each.fits(host)), None)

    def awaits_results(self, host: Host) -> bool:
        """Whether results for its VMs may come by callback."""
        return (choice := self.choice(host)) is not None and choice.terms.awaits_results

    def enter(self, task: Task) -> None:
        """It is finished once, when all its parts are."""
        choice = self.choice(Host(name=task.host, labels=task.labels))
        assert choice is not None
        each = task.kind in choice.terms.each_vm
        parts = [replace(task, vms=(name,)) for name in task.vms] if each else [task]
        order = _Order(task, choice, len(parts))
        with self._changed:
            self._orders[task.operation] = order
            self._waiting |= {_Call(order, part): None for part in parts}
            self._call_next()

    def drop(self, operation: str) -> None:
        """Its result is known, or no longer ours to tell: what a call that is being made comes to is ignored."""
        with self._changed:
            order = self._orders.pop(operation, None)
            self._waiting = {call: None for call in self._waiting if call.order is not order}
            for call in [call for call in self._accepted if call.order is order]:
                del self._accepted[call]
                self._end(call)
            self._call_next()

    def call_again(self, now: datetime) -> datetime | None:
        """Make the calls again whose time has come; gives when the next one is due."""
        with self._changed:
            for call in [call for call, at in self._accepted.items() if at <= now]:
                del self._accepted[call]
                self._start(call)
            return min(self._accepted.values(), default=None)

    def finished(self) -> list[tuple[Task, Outcome]]:
        with self._changed:
            taken, self._finished = self._finished, []
            return taken

    def pending(self, operation: str) -> PendingCalls | None:
        """None: it is not here."""
        with self._changed:
            if (order := self._orders.get(operation)) is None:
                return None
            waiting = sum(call.order is order for call in self._waiting)
            return PendingCalls(
                waiting=waiting,
                under_way=self._under_way[order.choice].total(),
                at_once=order.choice.terms.at_once,
                at_once_per_host=order.choice.terms.at_once_per_host,
                until=None if waiting else order.until,
            )

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Drops what waits and stops the drivers; of an order that is not complete then, the done part is finished."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            for call in self._accepted:
                self._end(call)
            self._accepted.clear()
        for choice in self._choices:
            choice.driver.stop()
        with self._changed:
            self._changed.wait_for(lambda: not any(each.total() for each in self._under_way.values()), seconds)
            for order in self._orders.values():
                unfinished = NotYet(again_at=self._runtime.clock.now(), waiting=order.task.waiting)
                self._finished.append((order.task, _together([unfinished, *order.outcomes])))
            self._orders.clear()

    def _call_next(self) -> None:
        free = {each: each.terms.at_once - under_way.total() for each, under_way in self._under_way.items()}
        for call in list(self._waiting):
            if self._stopped or max(free.values()) <= 0:
                return
            choice = call.order.choice
            terms, under_way = choice.terms, self._under_way[choice]
            most = terms.at_once_per_host
            if free[choice] > 0 and (most is None or under_way[call.part.host] < most):
                free[choice] -= 1
                del self._waiting[call]
                under_way[call.part.host] += 1
                if terms.longest is not None:
                    call.order.until = self._runtime.clock.now() + terms.longest
                self._start(call)

    def _start(self, call: _Call) -> None:
        self._runtime.start_thread(lambda: self._make(call), "driver")

    def _end(self, call: _Call) -> None:
        self._under_way[call.order.choice][call.part.host] -= 1

    def _make(self, call: _Call) -> None:
        order, task = call.order, call.part
        try:
            outcome = order.choice.driver.carry_out(task, self._runtime.clock.now())
        except Exception as error:
            log.exception("The driver failed", action="driver.failed", operation=task.operation)
            outcome = Finished(failures={vm: f"{type(error).__name__}: {error}" for vm in task.vms})
        with self._changed:
            if isinstance(outcome, NotYet) and self._stopped:
                outcome = replace(outcome, again_at=self._runtime.clock.now())
            wanted = self._orders.get(task.operation) is order
            keeps = order.choice.terms.awaits_results and wanted and not self._stopped
            if isinstance(outcome, NotYet) and keeps:
                self._accepted[call] = outcome.again_at
            else:
                self._end(call)
                order.outcomes.append(outcome)
                if wanted and len(order.outcomes) == order.parts:
                    del self._orders[task.operation]
                    self._finished.append((order.task, _together(order.outcomes)))
                self._call_next()
            self._changed.notify_all()
        self._wake()


def _together(outcomes: list[Outcome]) -> Outcome:
    """What failed while something else goes on is tried again with it: it does not count as a try."""
    done = tuple(name for outcome in outcomes for name in outcome.done)
    unfinished = [outcome for outcome in outcomes if isinstance(outcome, NotYet)]
    if unfinished:
        return NotYet(
            again_at=min(outcome.again_at for outcome in unfinished),
            done=done,
            waiting={name: why for outcome in unfinished for name, why in outcome.waiting.items()},
        )
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
