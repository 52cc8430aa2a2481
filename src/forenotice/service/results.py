"""What the outside tells by itself of a driver's call: kept at once, taken up by tick."""

import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from forenotice.core import driver_calls, errors
from forenotice.core.driver_calls import Finished
from forenotice.core.operations import Operation, Status
from forenotice.core.roles import Access, Role
from forenotice.drivers import letterbox
from forenotice.service import views
from forenotice.service.calls import Call, View, command
from forenotice.service.context import Service, UnitOfWork
from forenotice.service.tokens import Caller
from forenotice.store.operations import DriverResult
from forenotice.store.transaction import Reader

KEY = "callback-key"
"""Where the store keeps the key that signs result tokens."""


def key(service: Service) -> str:
    """One key for all processes that survives restarts, because a result may come after one."""

    def settle(unit: UnitOfWork) -> str:
        made = unit.transaction.meta.get(KEY) or secrets.token_urlsafe(32)
        unit.transaction.meta.put(KEY, made)
        return made

    with service.store.read() as reader:
        known = reader.meta.get(KEY)
    return known or service.transact(settle)


def authenticate(service: Service, bearer: str) -> Caller:
    """The caller that a result token stands for: it may report the result of that call only."""
    letter = letterbox.letter_of(key(service), bearer)
    if letter is None:
        raise errors.UnauthorizedError
    return Caller(id=f"call:{letter[0]}:{letter[1]}", name="driver", access=Access(role=Role.VIEWER), call=letter)


def answer(
    service: Service,
    call: Call,
    operation_id: str,
    *,
    attempt: int,
    done: Sequence[str] = (),
    failures: Mapping[str, str] | None = None,
) -> View:
    """The first answer to an attempt counts; the same one again is the same as once."""
    outcome = Finished(done=tuple(done), failures=dict(failures or {}))

    def work(unit: UnitOfWork) -> View:
        draft = unit.draft(unit.transaction.worlds.load(operations=[operation_id]), call)
        operation = draft.operation(operation_id)
        known = _known(unit.transaction, [operation_id]).get((operation_id, attempt))
        if known is None or (set(known.done), known.failures) != (set(outcome.done), outcome.failures):
            _require_asked(service, operation, attempt, unit.now)
            _require_all(operation, outcome)
            if known is not None and driver_calls.concerns(operation, attempt, known):
                raise errors.ConflictError(
                    f"attempt {attempt} at operation {operation_id} was already answered, and otherwise: "
                    f"the first answer counts",
                    operation=operation_id,
                    done=list(known.done),
                    failures=known.failures,
                )
            unit.transaction.driver_results.put(
                DriverResult(operation=operation_id, attempt=attempt, outcome=outcome, at=unit.now)
            )
            draft.note("driver.answered", operation=operation.id, host=operation.host, attempt=attempt)
            unit.keep(draft)
            unit.makes_due = True
        return views.operation(operation, draft.events_of(operation_id))

    return command(service, call, work)


def answers(service: Service, operations: Collection[str]) -> Mapping[tuple[str, int], Finished]:
    """By operation and attempt."""
    with service.store.read() as reader:
        return _known(reader, operations)


def _known(reader: Reader, operations: Collection[str]) -> dict[tuple[str, int], Finished]:
    return {(one.operation, one.attempt): one.outcome for one in reader.driver_results.of(operations)}


def _require_asked(service: Service, operation: Operation, attempt: int, now: datetime) -> None:
    state = {"operation": operation.id, "status": operation.status, "attempt": operation.attempt + 1}
    if not service.awaits_results:
        raise errors.ConflictError("nobody waits for results here: only a webhook driver does", **state)
    if operation.status is not Status.STARTED:
        raise errors.ConflictError(
            f"operation {operation.id} is {operation.status}: only what is Started has a result", **state
        )
    if attempt != operation.attempt + 1:
        raise errors.ConflictError(
            f"operation {operation.id} is at attempt {operation.attempt + 1}, not {attempt}: "
            f"give the attempt that was asked for",
            **state,
        )
    if operation.claimed_by is None and operation.due_at is not None and operation.due_at > now:
        raise errors.ConflictError(f"attempt {attempt} is not asked for yet: wait for it", **state)


def _require_all(operation: Operation, outcome: Finished) -> None:
    asked = driver_calls.asked_for(operation)
    said = Counter([*outcome.done, *outcome.failures])
    for name in said - Counter(asked):
        why = "nobody asked for it" if name not in asked else "it is either done or has failed, and is named once"
        raise errors.RefusedError(f"{name} cannot be taken: {why}", vms=list(asked))
    for name in asked:
        if name not in said:
            raise errors.RefusedError(f"what became of {name} is not said: name it in done or in failures")
