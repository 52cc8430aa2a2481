"""Results of driver calls that come by callback: the request stores them, tick takes them."""

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from forenotice.core import driver_calls, errors
from forenotice.core.draft import Draft
from forenotice.core.driver_calls import Finished
from forenotice.core.operations import Operation, Status
from forenotice.core.roles import Access, Role
from forenotice.service import views
from forenotice.service.calls import Call, command
from forenotice.service.service import Service, UnitOfWork
from forenotice.service.tokens import Caller
from forenotice.store.operations import DriverResult
from forenotice.views import maintenance

PREFIX = "fnc_"
KEY = "callback-key"
"""Where the store keeps the key that signs result tokens."""


def key(service: Service) -> str:
    """One key for all processes that survives restarts, because a result may come after one."""

    def settle(unit: UnitOfWork) -> str:
        unit.transaction.meta.put(KEY, made := unit.transaction.meta.get(KEY) or secrets.token_urlsafe(32))
        return made

    with service.store.read() as reader:
        known = reader.meta.get(KEY)
    return known or service.transact(settle)


def token(key: str, operation: str, attempt: int) -> str:
    """Lets its bearer report the result of this one call; the same for a call that is repeated."""
    call = f"{operation}.{attempt}"
    return f"{PREFIX}{call}.{hmac.new(key.encode(), call.encode(), hashlib.sha256).hexdigest()}"


def authenticate(service: Service, bearer: str) -> Caller:
    """The caller that a result token stands for: it may report the result of that call only."""
    operation, _, rest = bearer.removeprefix(PREFIX).partition(".")
    attempt, _, _ = rest.partition(".")
    if not (attempt.isascii() and attempt.isdigit() and len(attempt) <= 9):
        raise errors.UnauthorizedError
    call = operation, int(attempt)
    if not hmac.compare_digest(token(key(service), *call).encode(), bearer.encode()):
        raise errors.UnauthorizedError
    return Caller(id=f"call:{operation}:{call[1]}", name="driver", access=Access(role=Role.VIEWER), call=call)


def record(
    service: Service,
    call: Call,
    operation_id: str,
    *,
    attempt: int,
    done: Sequence[str] = (),
    failures: Mapping[str, str] | None = None,
) -> maintenance.Operation:
    """The first result of an attempt counts; the same one again is the same as once."""
    outcome = Finished(done=tuple(done), failures=dict(failures or {}))

    def work(unit: UnitOfWork) -> maintenance.Operation:
        draft = unit.load(call, operations=[operation_id])
        operation = draft.operation(operation_id)
        stored = unit.transaction.driver_results.of([operation_id])
        known = next((each.outcome for each in stored if each.attempt == attempt), None)
        if known is None or (set(known.done), known.failures) != (set(outcome.done), outcome.failures):
            _require_asked(service, draft, operation, attempt)
            _require_all(operation, outcome)
            if known is not None and driver_calls.concerns(operation, attempt, known):
                raise errors.ConflictError(
                    f"attempt {attempt} at operation {operation_id} has another result already: the first one counts",
                    operation=operation_id,
                    done=list(known.done),
                    failures=known.failures,
                )
            unit.transaction.driver_results.put(
                DriverResult(operation=operation_id, attempt=attempt, outcome=outcome, at=unit.now)
            )
            draft.note("driver.answered", operation=operation.id, host=operation.host, attempt=attempt)
            # Without a claim it is due: tick takes the result, and the process that made the call drops it.
            draft.put_operation(replace(operation, claimed_by=None, claimed_until=None))
            unit.keep(draft)
        return views.operation(operation, draft.events_of(operation_id))

    return command(service, call, maintenance.Operation, work)


def _require_asked(service: Service, draft: Draft, operation: Operation, attempt: int) -> None:
    state = {"operation": operation.id, "status": operation.status, "attempt": operation.attempt + 1}
    if not service.calls.awaits_results(draft.host(operation.host)):
        raise errors.ConflictError(f"host {operation.host} has no webhook driver: it takes no results", **state)
    if operation.status is not Status.STARTED:
        raise errors.ConflictError(
            f"operation {operation.id} is {operation.status}: only a Started one has a result", **state
        )
    if attempt != operation.attempt + 1:
        raise errors.ConflictError(
            f"operation {operation.id} is at attempt {operation.attempt + 1}, not {attempt}", **state
        )
    if operation.claimed_by is None and operation.due_at is not None and operation.due_at > draft.now:
        raise errors.ConflictError(f"attempt {attempt} has not been asked for yet", **state)


def _require_all(operation: Operation, outcome: Finished) -> None:
    asked = driver_calls.asked_for(operation)
    named = Counter([*outcome.done, *outcome.failures])
    for name in named - Counter(asked):
        why = "named twice, in done or in failures" if name in asked else "not part of this call"
        raise errors.RefusedError(f"{name} is {why}", vms=list(asked))
    for name in asked:
        if name not in named:
            raise errors.RefusedError(f"{name} is missing: name it in done or in failures", vms=list(asked))
