"""What is due: write what drivers answered, announce, start what may start, and say what drivers must do next."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from forenotice.core import announcements, driver_calls, errors, lifecycle
from forenotice.core.draft import Draft, World
from forenotice.core.driver_calls import Outcome, Task
from forenotice.core.fleet import Host
from forenotice.core.operations import Status
from forenotice.service import housekeeping, results
from forenotice.service.loops import Interval, Loop, time_until
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.transaction import Reader

log = structlog.get_logger()

AT_ONCE = 200
"""Operations looked at in one transaction."""

CLAIM = timedelta(seconds=15)
"""How long another process believes that we are calling a driver, unless we renew that."""
CHECKPOINT_AFTER = timedelta(seconds=1)


Report = tuple[Task, Outcome]
"""What a driver reported of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    tasks: Sequence[Task] = ()
    """What drivers must do next."""
    lost: Collection[str] = ()
    """Operations under way that are no longer ours: their result came by callback, or another process has them."""


def tick(service: Service, reports: Sequence[Report] = (), under_way: Collection[str] = ()) -> Ticked:
    """One transaction at most; none when nothing is due. Doing it twice is doing it once.

    `under_way` is what drivers do for us: our claims are renewed first, so that a clock that jumps does not end them.
    """
    if not reports:
        with service.store.read() as reader:
            if not reader.operations.due(service.clock.now(), 1):
                return Ticked()

    def work(unit: UnitOfWork) -> Ticked:
        kept = unit.transaction.operations.renew_claims(service.process, under_way, unit.now + CLAIM)
        due = unit.transaction.operations.due(unit.now, AT_ONCE)
        mine = {*due, *(task.operation for task, _ in reports)}
        draft = unit.draft(_load(unit.transaction, mine))
        known = draft.world.operations
        for task, outcome in reports:
            if operation := known.get(task.operation):
                driver_calls.report(draft, operation, service.process, task.attempt, outcome)
        for result in unit.transaction.driver_results.of(due):
            operation = draft.operation(result.operation)
            if driver_calls.concerns(operation, result.attempt, result.outcome):
                driver_calls.record_result(draft, operation, result.attempt, result.outcome)
        ordered = sorted(
            (known[key] for key in mine & known.keys()), key=lambda each: (each.not_before, each.created_at, each.id)
        )
        tasks = [made for operation in ordered if (made := _step(service, draft, operation.id))]
        unit.keep(draft)
        return Ticked(tasks=tasks, lost=set(under_way).difference(kept))

    return service.transact(work)


def next_due(service: Service) -> datetime | None:
    with service.store.read() as reader:
        return reader.operations.next_due(service.clock.now())


def give_up_claims(service: Service) -> None:
    """Others need not wait for our claims to lapse."""
    service.transact(lambda unit: unit.transaction.operations.release_claims(service.process))


def renew_claims(service: Service, operations: Collection[str]) -> list[str]:
    """Gives those that were still ours."""
    return service.transact(
        lambda unit: unit.transaction.operations.renew_claims(service.process, operations, unit.now + CLAIM)
    )


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
    """The thread that ticks, and hands tasks to the drivers."""

    def __init__(self, service: Service, *, renew_every: timedelta = CLAIM / 3) -> None:
        self._service = service
        self._reports: list[Report] = []
        """What drivers answered, until it is written."""
        self._under_way: dict[str, None] = {}
        """Operations that drivers work on."""
        runtime = service.runtime
        self._loop = Loop("tick", self.step, service.nudge, service.liveness, runtime)
        self._renewal = Interval(renew_every, self._renew, runtime.monotonic)
        self._housekeeping = Interval(housekeeping.INTERVAL, lambda: housekeeping.run(service), runtime.monotonic)
        self._checkpoint = Interval(CHECKPOINT_AFTER, lambda: housekeeping.checkpoint_fleet(service), runtime.monotonic)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Let drivers end what is under way; the rest goes on after the next start, or in another process."""
        self._loop.stop()
        self._service.calls.stop()
        self._reports += self._service.calls.finished()
        try:
            tick(self._service, self._reports)
            give_up_claims(self._service)
            self._service.store.checkpoint()
        except errors.ForenoticeError as error:
            log.warning("The last results of drivers could not be written", action="tick.unkept", error=str(error))

    def step(self) -> timedelta:
        """Tick once; gives how long nothing is due."""
        service, calls = self._service, self._service.calls
        self._renewal.run_if_due()
        self._housekeeping.run_if_due(at_once=service.clock_has_jumped)
        self._checkpoint.run_if_due()
        again_at = calls.call_again(service.clock.now())
        self._reports += calls.finished()
        reported = {task.operation for task, _ in self._reports}
        ticked = tick(service, self._reports, [key for key in self._under_way if key not in reported])
        self._reports.clear()
        self._forget({*reported, *ticked.lost})
        for task in ticked.tasks:
            self._under_way[task.operation] = None
            calls.enter(self._with_token(task))
        due = min((moment for moment in (again_at, next_due(service)) if moment is not None), default=None)
        return time_until(due, service.clock.now())

    def _with_token(self, task: Task) -> Task:
        if not self._service.calls.awaits_results(Host(name=task.host, labels=task.labels)):
            return task
        key = results.key(self._service)
        return replace(task, result_token=results.token(key, task.operation, task.attempt))

    def _renew(self) -> None:
        if self._under_way:
            self._forget(self._under_way.keys() - renew_claims(self._service, self._under_way))

    def _forget(self, operations: Collection[str]) -> None:
        for operation in operations:
            self._under_way.pop(operation, None)
            self._service.calls.drop(operation)
