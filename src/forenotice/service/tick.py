"""What is due: write what drivers answered, announce, start what may start, and say what drivers must do next."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forenotice.core import announcements, driver_calls, lifecycle
from forenotice.core.draft import Draft, World
from forenotice.core.driver_calls import Outcome, Task
from forenotice.core.operations import Operation, Status
from forenotice.service.context import Service, UnitOfWork
from forenotice.store.transaction import Reader

AT_ONCE = 200
"""Operations looked at in one transaction."""

CLAIM = timedelta(seconds=15)
"""How long another process believes that we are calling a driver, unless we renew that."""


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
            if not reader.due(service.clock.now(), 1):
                return []

    def work(unit: UnitOfWork) -> list[Task]:
        unit.transaction.renew_claims(service.process, under_way, unit.now + CLAIM)
        due = unit.transaction.due(unit.now, AT_ONCE)
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
        return reader.next_due(service.clock.now())


def give_up_claims(service: Service) -> None:
    """Others need not wait for our claims to lapse."""

    def work(unit: UnitOfWork) -> None:
        unit.transaction.release_claims(service.process)

    service.transact(work)


def renew_claims(service: Service, operations: Collection[str]) -> list[str]:
    """Gives those that were still ours."""

    def work(unit: UnitOfWork) -> list[str]:
        return unit.transaction.renew_claims(service.process, operations, unit.now + CLAIM)

    return service.transact(work)


def _load(reader: Reader, operations: Collection[str]) -> World:
    world = reader.load(operations=operations)
    planned = [each for key in operations if (each := world.operations.get(key)) and each.status is Status.PLANNED]
    if arriving := {key for operation in planned for key in reader.moving_to(operation.host)}:
        operations = {*operations, *arriving}
        world = reader.load(operations=operations)
    moving = [each for key in operations if (each := world.operations.get(key)) and each.kind.traits.moves]
    if not moving:
        return world
    last_resort = reader.announced_hosts() if any(map(driver_calls.waits_for_a_host, moving)) else ()
    return reader.load(operations=operations, hosts=last_resort, targets=True)


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
