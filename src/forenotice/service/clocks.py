"""Clock jumps and clocks that are behind the journal."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from forenotice.core import errors, explanations, lifecycle
from forenotice.core.explanations import Explanation
from forenotice.store.transaction import Transaction
from forenotice.views.history import AcceptedClock

if TYPE_CHECKING:
    from forenotice.service.calls import Call
    from forenotice.service.service import Service, UnitOfWork

log = structlog.get_logger()

MOST_BEHIND = timedelta(minutes=5)
"""If the clock is further behind the journal, it is wrong, or was wrong when it wrote the journal."""

WORTH_TELLING = timedelta(seconds=5)

SAME_JUMP = timedelta(minutes=1)
"""All servers on a database notice a jump of its clock within this time."""

ALIVE_AT, MARK, JUMP = "alive_at", "clock_mark", "clock_jump"


def require_sane(service: "Service") -> None:
    """At start: continue from the end of the journal; UnsoundError if the clock is far behind it."""
    clock = service.clock
    own = clock.now()
    with service.store.write() as transaction:
        correct(service, transaction)
        _go_on(service, transaction)
    behind = clock.behind
    now = clock.now()
    if behind > MOST_BEHIND:
        raise errors.UnsoundError(
            f"The clock says {now - behind:%Y-%m-%d %H:%M:%S} UTC, but the journal was already at "
            f"{now:%Y-%m-%d %H:%M:%S} UTC: correct the clock or, "
            "if it is right now and was wrong before, run `forenotice clock accept`; then start again."
        )
    if transaction.database_time and abs(own - transaction.database_time) > WORTH_TELLING:
        log.warning(
            "This machine's clock differs from the database's, which is used",
            action="clock.corrected",
            seconds=round((transaction.database_time - own).total_seconds()),
        )
    # By the clock as it is now; before, it may have been far off.
    service.give_grace()


def _go_on(service: "Service", transaction: Transaction) -> None:
    """From where the last process stood, and where the journal ends."""
    if mark := transaction.meta.get(MARK):
        service.clock.go_on_from(mark)
    if last := transaction.journal.last():
        service.clock.not_below(last[1])


def correct(service: "Service", transaction: Transaction) -> None:
    """All servers on one database use the database's clock."""
    if transaction.database_time is not None:
        service.clock.correct(transaction.database_time)


def account_for_jump(unit: "UnitOfWork", by: timedelta) -> None:
    """A jump is neither notice nor silence of guests, and guests get time to look again."""
    service, transaction = unit.service, unit.transaction
    service.give_grace()
    if _is_known(unit, by):
        return
    transaction.operations.withhold(by, unit.now - by)
    transaction.scopes.shift_heard(by)
    if alive_at := transaction.meta.get(ALIVE_AT):
        transaction.meta.put(ALIVE_AT, (datetime.fromisoformat(alive_at) + by).isoformat())
    transaction.meta.put(MARK, service.clock.mark())
    transaction.meta.put(JUMP, f"{service.process} {unit.now.isoformat()} {by.total_seconds()}")
    draft = unit.draft(transaction.worlds.load())
    draft.note("clock.jumped", seconds=round(by.total_seconds()))
    unit.keep(draft)


def _is_known(unit: "UnitOfWork", by: timedelta) -> bool:
    """Whether another server on this database has already accounted for the same jump."""
    if not (known := unit.transaction.meta.get(JUMP)):
        return False
    process, at, seconds = known.split()
    return (
        process != unit.service.process
        and unit.now - datetime.fromisoformat(at) < SAME_JUMP
        and abs(by - timedelta(seconds=float(seconds))) < WORTH_TELLING
    )


def with_clock_behind(service: "Service", explanation: Explanation) -> Explanation:
    """Adds a sentence if the clock is behind."""
    behind = service.clock.behind
    return explanation if behind < WORTH_TELLING else explanations.with_clock_behind(explanation, behind)


def accept(service: "Service", call: "Call") -> AcceptedClock:
    """The clock is right and the journal was ahead: continue from the clock's time, with the notice that was left.

    Only while no service runs: a running one would bring the journal's time back.
    """
    from forenotice.service.service import ALLOWANCES, UnitOfWork

    with service.store.write() as transaction:
        correct(service, transaction)
        now, mark = service.clock.now(), service.clock.mark()
        _go_on(service, transaction)
        journal = service.clock.now()
        if not service.clock.behind:
            raise errors.ConflictError(
                f"the clock says {now:%Y-%m-%d %H:%M:%S} UTC and is not behind the journal: there is nothing to accept",
                now=now.isoformat(),
            )
        transaction.set_back(now, journal)
        transaction.operations.release_claims(None)
        transaction.subscriptions.release_claims()
        transaction.rollouts.make_due(now)
        transaction.meta.put(ALIVE_AT, now.isoformat())
        transaction.meta.put(MARK, mark)
        unit = UnitOfWork(service, transaction, now, ALLOWANCES[-1])
        draft = unit.draft(transaction.worlds.fleet(), call)
        live = list(draft.world.operations.values())
        for operation in live:
            lifecycle.correct_clock(draft, operation, journal)
        draft.note("clock.accepted", journal=journal, operations=len(live))
        unit.keep(draft)
    return AcceptedClock(now=now, journal=journal, operations=len(live))
