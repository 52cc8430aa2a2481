"""What is due: write what drivers answered, announce, start what may start, and say what drivers must do next."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

import structlog

from forenotice.core import announcements, driver_calls, errors, lifecycle
from forenotice.core.draft import Draft, World
from forenotice.core.driver_calls import Finished, Outcome, Task
from forenotice.core.operations import Operation, Status
from forenotice.drivers.call_queue import CallQueue, CallTerms, Driver
from forenotice.service import results, upkeep
from forenotice.service.context import Service, UnitOfWork
from forenotice.service.loops import Loop, time_until
from forenotice.store.transaction import Reader

log = structlog.get_logger()

AT_ONCE = 200
"""Operations looked at in one transaction."""

CLAIM = timedelta(seconds=15)
"""How long another process believes that we are calling a driver, unless we renew that."""
SETTLE_AFTER = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a driver answered to a task."""

    operation: str
    attempt: int
    outcome: Outcome


def tick(service: Service, reports: Sequence[Report] = (), under_way: Collection[str] = ()) -> list[Task]:
    """One transaction at most; none when nothing is due. Doing it twice is doing it once.

    What drivers are doing for us is `under_way`: our claim is renewed first, lest a clock that jumps take it away.
    """
    if not reports:
        with service.store.read() as reader:
            if not reader.operations.due(service.clock.now(), 1):
                return []

    def work(unit: UnitOfWork) -> list[Task]:
        unit.transaction.operations.renew_claims(service.process, under_way, unit.now + CLAIM)
        due = unit.transaction.operations.due(unit.now, AT_ONCE)
        draft = unit.draft(_load(unit.transaction, {*due, *(report.operation for report in reports)}))
        for report in reports:
            if operation := draft.world.operations.get(report.operation):
                driver_calls.report(draft, operation, service.process, report.attempt, report.outcome)
        for told in unit.transaction.driver_results.of(due):
            # Whoever asked has died meanwhile.
            operation = draft.operation(told.operation)
            if driver_calls.concerns(operation, told.attempt, told.outcome):
                driver_calls.record_result(draft, operation, told.attempt, told.outcome)
        mine = {*due, *(report.operation for report in reports)}
        turns = sorted((draft.world.operations[key] for key in mine if key in draft.world.operations), key=_turn)
        tasks = [task for operation in turns if (task := _step(service, draft, operation.id))]
        unit.keep(draft)
        return tasks

    return service.transact(work)


def next_due(service: Service) -> datetime | None:
    with service.store.read() as reader:
        return reader.operations.next_due(service.clock.now())


def give_up_claims(service: Service) -> None:
    """Others need not wait for our claims to lapse."""

    def work(unit: UnitOfWork) -> None:
        unit.transaction.operations.release_claims(service.process)

    service.transact(work)


def renew_claims(service: Service, operations: Collection[str]) -> list[str]:
    """Gives those that were still ours."""

    def work(unit: UnitOfWork) -> list[str]:
        return unit.transaction.operations.renew_claims(service.process, operations, unit.now + CLAIM)

    return service.transact(work)


def _load(reader: Reader, operations: Collection[str]) -> World:
    world = reader.worlds.load(operations=operations)
    planned = [each for key in operations if (each := world.operations.get(key)) and each.status is Status.PLANNED]
    if arriving := {key for operation in planned for key in reader.operations.moving_to(operation.host)}:
        operations = {*operations, *arriving}
        world = reader.worlds.load(operations=operations)
    moving = [each for key in operations if (each := world.operations.get(key)) and each.kind.traits.moves]
    if not moving:
        return world
    last_resort = reader.operations.announced_hosts() if any(map(driver_calls.waits_for_a_host, moving)) else ()
    return reader.worlds.load(operations=operations, hosts=last_resort, targets=True)


def _turn(operation: Operation) -> tuple[datetime, datetime, str]:
    return operation.not_before, operation.created_at, operation.id


def _step(service: Service, draft: Draft, operation_id: str) -> Task | None:
    """Looked at anew: an earlier step may have ended or dropped it."""
    if _is_due(draft, operation_id):
        operation = draft.operation(operation_id)
        service.telemetry.tick_lag((draft.now - (operation.due_at or draft.now)).total_seconds())
        if operation.status is Status.PLANNED:
            announcements.announce_in_time(draft, operation)
        elif operation.status is Status.SCHEDULED:
            lifecycle.start_or_hold(draft, operation, service.expiry_from)
    if _is_due(draft, operation_id) and draft.operation(operation_id).status is Status.STARTED:
        return driver_calls.advance(draft, draft.operation(operation_id), service.process, draft.now + CLAIM)
    return None


def _is_due(draft: Draft, operation_id: str) -> bool:
    operation = draft.operation(operation_id)
    claimed = operation.claimed_until is not None and operation.claimed_until > draft.now
    return operation.due_at is not None and operation.due_at <= draft.now and not claimed


class TickLoop:
    def __init__(
        self,
        service: Service,
        driver: Driver,
        terms: CallTerms | None = None,
        *,
        renew_every: timedelta = CLAIM / 3,
    ) -> None:
        self._service = service
        self._terms = terms or CallTerms()
        self._line = CallQueue(driver, self._terms, service.clock, self._take)
        service.standing = self._line.standing
        self._answers: deque[Report] = deque()
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
            tick(self._service, list(self._answers))
            give_up_claims(self._service)
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
        tasks = tick(service, reports, [key for key in self._under_way if key not in answered])
        for report in reports:
            self._answers.popleft()
            self._under_way.pop(report.operation, None)
        for task in tasks:
            self._under_way[task.operation] = task
            self._lost.discard(task.operation)
            self._line.enter(task)
        return time_until(next_due(service), service.clock.now())

    def _take(self, task: Task, outcome: Outcome) -> None:
        self._answers.append(Report(operation=task.operation, attempt=task.attempt, outcome=outcome))
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
            self._lost = self._under_way.keys() - renew_claims(self._service, self._under_way)


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
