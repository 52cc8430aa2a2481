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
    remaining = tuple(name for name in operation.vms if name not in operation.done)
    if not remaining or operation.attempt >= TRIES:
        shown_until = started_at + STARTED_SHOWN
        if draft.now < shown_until:
            draft.put_operation(replace(operation, due_at=shown_until))
        else:
            ending.end(draft, operation, Status.FAILED if remaining else Status.COMPLETED)
        return None
    ready = remaining
    if operation.kind.traits.moves:
        targets = placement.choose(draft, operation, (name for name in remaining if name not in operation.targets))
        operation = replace(operation, targets=targets)
        ready = tuple(name for name in remaining if name in targets)
    if not ready:
        draft.put_operation(replace(operation, due_at=draft.now + RECHECK, held=True))
        return None
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


def report(draft: Draft, operation: Operation, process: str, outcome: Outcome) -> None:
    """What the driver answered. Too late an answer (ended or claimed by another meanwhile) changes nothing."""
    if operation.claimed_by != process:
        return
    operation = replace(operation, claimed_by=None, claimed_until=None)
    if isinstance(outcome, NotYet):
        draft.put_operation(replace(operation, due_at=outcome.again_at))
    else:
        _record(draft, operation, outcome.done, outcome.failures)


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
        attempt=operation.attempt + 1,
        done=list(done),
        failures=dict(failures),
    )
    if operation.kind.traits.moves:
        for name in done:
            ending.move(draft, name, operation.targets[name])
