"""The thread that ticks: it sleeps until something is due, and hands tasks to the driver."""

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

import structlog

from forenotice.core import errors
from forenotice.core.driver_calls import Finished, Outcome, Task
from forenotice.drivers.call_queue import Line
from forenotice.drivers.interface import Driver
from forenotice.drivers.terms import Terms
from forenotice.service import results, tick, upkeep
from forenotice.service.context import Service
from forenotice.service.loops import Loop, time_until

log = structlog.get_logger()

SETTLE_AFTER = timedelta(seconds=1)


class Ticker:
    def __init__(
        self,
        service: Service,
        driver: Driver,
        terms: Terms | None = None,
        *,
        renew_every: timedelta = tick.CLAIM / 3,
    ) -> None:
        self._service = service
        self._terms = terms or Terms()
        self._line = Line(driver, self._terms, service.clock, self._take)
        service.standing = self._line.standing
        self._answers: deque[tick.Report] = deque()
        self._under_way: dict[str, Task] = {}
        self._lost: set[str] = set()
        """Operations under way that are no longer ours."""
        self._loop = Loop("tick", self._once, service.nudge, service.heartbeats)
        self._renewal = Repeating(renew_every, self._renew)
        self._upkeep = Repeating(upkeep.INTERVAL, lambda: upkeep.keep_up(service))
        self._settling = Repeating(SETTLE_AFTER, lambda: upkeep.settle_fleet(service))

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Let drivers end what is under way; the rest goes on after the next start, or in another process."""
        self._loop.stop()
        self._line.stop()
        try:
            tick.tick(self._service, list(self._answers))
            tick.give_up_claims(self._service)
            self._service.store.settle()
        except errors.ForenoticeError as error:
            log.warning("What drivers answered last could not be kept", action="tick.unkept", error=str(error))

    def _once(self) -> timedelta:
        """Tick once; gives how long nothing is due."""
        service = self._service
        self._renewal.run_if_due()
        self._upkeep.run_if_due(at_once=service.clock_has_jumped)
        self._settling.run_if_due()
        self._tell_those_who_wait()
        reports = list(self._answers)
        answered = {report.operation for report in reports}
        tasks = tick.tick(service, reports, [key for key in self._under_way if key not in answered])
        for report in reports:
            self._answers.popleft()
            self._under_way.pop(report.operation, None)
        for task in tasks:
            self._under_way[task.operation] = task
            self._lost.discard(task.operation)
            self._line.enter(task)
        return time_until(tick.next_due(service), service.clock.now())

    def _take(self, task: Task, outcome: Outcome) -> None:
        self._answers.append(tick.Report(operation=task.operation, attempt=task.attempt, outcome=outcome))
        self._service.nudge.set()

    def _tell_those_who_wait(self) -> None:
        if not self._under_way or not self._service.awaits_results:
            return
        told = results.answers(self._service, self._under_way)
        letters = {}
        for key, task in self._under_way.items():
            if key in self._lost:
                # Nobody wants to know any more; why wait?
                letters[key, task.attempt] = Finished(failures={})
            elif (letter := told.get((key, task.attempt))) and {*letter.done, *letter.failures} == set(task.vms):
                letters[key, task.attempt] = letter
        self._terms.letterbox.show(letters)

    def _renew(self) -> None:
        if self._under_way:
            self._lost = self._under_way.keys() - tick.renew_claims(self._service, self._under_way)


class Repeating:
    """Something to do every now and then, by the monotonic clock."""

    def __init__(self, interval: timedelta, action: Callable[[], None]) -> None:
        self._interval = interval.total_seconds()
        self._action = action
        self._next = 0.0

    def run_if_due(self, *, at_once: bool = False) -> None:
        if at_once or monotonic() >= self._next:
            self._action()
            self._next = monotonic() + self._interval
