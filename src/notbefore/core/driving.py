"""From Started to the end: what the driver is asked to do, and what its answer changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from notbefore.core import ending, placement
from notbefore.core.draft import Draft
from notbefore.core.operations import Kind, Operation, Status
from notbefore.core.starting import RECHECK
from notbefore.core.timing import STARTED_SHOWN

TRIES = 3
FIRST_PAUSE = timedelta(seconds=2)
UNSAID = "the driver did not say what became of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One driver call. After a crash the same operation may be asked for again."""

    operation: str
    kind: Kind
    host: str
    vms: tuple[str, ...]
    targets: Mapping[str, str]
    attempt: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """Under way: ask again then."""

    again_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Every VM of the task is either done or has failed for a reason."""

    done: tuple[str, ...] = ()
    failures: Mapping[str, str]


Outcome = NotYet | Finished


def advance(draft: Draft, operation: Operation, process: str, claim_until: datetime) -> Task | None:
    """The next step of a Started operation: end it, hold it, or claim it and say what the driver must do."""
    started_at = operation.started_at or draft.now
    remaining = _remaining(operation)
    tried_enough = operation.attempt >= TRIES
    if not remaining or (tried_enough and _placed(operation) == remaining):
        # Counted from the commit, which has come after `started_at`.
        shown_until = started_at + draft.allowance + STARTED_SHOWN
        if draft.now < shown_until:
            draft.put_operation(replace(operation, due_at=shown_until))
        else:
            ending.end(draft, operation, Status.FAILED if remaining else Status.COMPLETED)
        return None
    placed_before = _placed(operation)
    if operation.kind.traits.moves:
        homeless = (name for name in remaining if name not in operation.targets)
        operation = replace(operation, targets=placement.choose(draft, operation, homeless))
    ready = _placed(operation)
    if not ready or (tried_enough and ready == placed_before):
        draft.put_operation(replace(operation, due_at=draft.now + RECHECK, held=True))
        return None
    if tried_enough:
        # A host was found for somebody: all that remain are tried afresh.
        operation = replace(operation, attempt=0)
    draft.put_operation(replace(operation, held=False, due_at=draft.now, claimed_by=process, claimed_until=claim_until))
    return Task(
        operation=operation.id,
        kind=operation.kind,
        host=operation.host,
        vms=ready,
        targets={name: operation.targets[name] for name in ready if name in operation.targets},
        attempt=operation.attempt + 1,
        started_at=started_at,
    )


def report(draft: Draft, operation: Operation, process: str, attempt: int, outcome: Outcome) -> None:
    """What the driver answered to a try. Too late an answer (ended, claimed anew or tried again) changes nothing."""
    if operation.claimed_by != process or operation.attempt + 1 != attempt:
        return
    operation = replace(operation, claimed_by=None, claimed_until=None)
    if isinstance(outcome, NotYet):
        draft.put_operation(replace(operation, due_at=outcome.again_at))
    else:
        unsaid = {name: UNSAID for name in _placed(operation) if name not in outcome.done}
        _record(draft, operation, outcome.done, unsaid | dict(outcome.failures))


def _remaining(operation: Operation) -> tuple[str, ...]:
    return tuple(name for name in operation.vms if name not in operation.done)


def _placed(operation: Operation) -> tuple[str, ...]:
    """Those of the remaining VMs that the driver can be asked for."""
    moves = operation.kind.traits.moves
    return tuple(name for name in _remaining(operation) if not moves or name in operation.targets)


def _record(draft: Draft, operation: Operation, done: tuple[str, ...], failures: Mapping[str, str]) -> None:
    attempt = operation.attempt + 1 if failures else operation.attempt
    again = draft.now + FIRST_PAUSE * 2 ** (attempt - 1) if failures and attempt < TRIES else draft.now
    draft.put_operation(
        replace(operation, done=operation.done + done, failures=dict(failures), attempt=attempt, due_at=again)
    )
    draft.note(
        "driver.failed" if failures else "driver.finished",
        operation=operation.id,
        host=operation.host,
        rollout=operation.rollout,
        attempt=operation.attempt + 1,
        done=list(done),
        failures=dict(failures),
    )
    if operation.kind.traits.moves:
        for name in done:
            ending.move(draft, name, operation)
