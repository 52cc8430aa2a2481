"""Start-up and housekeeping: the clock, signs of life, checkpoints, readiness, and epochs after a restored backup."""

from datetime import datetime, timedelta

import structlog

from forenotice.core import documents, errors, lifecycle
from forenotice.core.timing import CLOCK_TOLERANCE
from forenotice.service.calls import REMEMBERED, Call
from forenotice.service.service import ALIVE_AT, ALLOWANCES, MARK, Service, UnitOfWork
from forenotice.store.transaction import Transaction
from forenotice.views.history import AcceptedClock

log = structlog.get_logger()

INTERVAL = timedelta(seconds=20)
DOWNTIME = 3 * INTERVAL
"""Without a sign of life for this long, no process was serving."""

MOST_BEHIND = timedelta(minutes=5)
"""If the clock is further behind the journal, it is wrong, or was wrong when it wrote the journal."""


def require_sane_clock(service: Service) -> None:
    """At start: continue from the end of the journal; UnsoundError if the clock is far behind it."""
    own = service.clock.now()
    with service.store.write() as transaction:
        service.correct_clock(transaction)
        _go_on(service, transaction)
    behind, now = service.clock.behind, service.clock.now()
    if behind > MOST_BEHIND:
        raise errors.UnsoundError(
            f"The clock says {now - behind:%Y-%m-%d %H:%M:%S} UTC, but the journal was already at "
            f"{now:%Y-%m-%d %H:%M:%S} UTC: correct the clock or, "
            "if it is right now and was wrong before, run `forenotice clock accept`; then start again."
        )
    if transaction.database_time and abs(own - transaction.database_time) > CLOCK_TOLERANCE:
        log.warning(
            "This machine's clock differs from the database's, which is used",
            action="clock.corrected",
            seconds=round((transaction.database_time - own).total_seconds()),
        )
    # By the clock as it is now; before, it may have been far off.
    service.give_grace()


def _go_on(service: Service, transaction: Transaction) -> None:
    """From where the last process stood, and where the journal ends."""
    if mark := transaction.meta.get(MARK):
        service.clock.go_on_from(mark)
    if last := transaction.journal.last():
        service.clock.not_below(last[1])


def accept_clock(service: Service, call: Call) -> AcceptedClock:
    """The clock is right and the journal was ahead: continue from the clock's time, with the notice that was left.

    Only while no service runs: a running one would bring the journal's time back.
    """
    with service.store.write() as transaction:
        service.correct_clock(transaction)
        now, mark = service.clock.now(), service.clock.mark()
        _go_on(service, transaction)
        journal = service.clock.now()
        if not service.clock.behind:
            raise errors.ConflictError(
                f"the clock says {now:%Y-%m-%d %H:%M:%S} UTC and is not behind the journal: there is nothing to accept",
                now=now.isoformat(),
            )
        transaction.set_back(now, journal)
        _release_claims(transaction, now)
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


def _release_claims(transaction: Transaction, now: datetime) -> None:
    """No process is serving: claims and gates without a result belong to a dead one."""
    transaction.operations.release_claims(None)
    transaction.subscriptions.release_claims()
    transaction.leases.release_all()
    transaction.rollouts.make_due(now)


def run(service: Service) -> None:
    used, prolonged = dict(service.used), dict(service.prolonged)

    def work(unit: UnitOfWork) -> None:
        _show_life(service, unit)
        unit.transaction.tokens.touch(used)
        for digest, until in prolonged.items():
            unit.transaction.sessions.prolong(digest, until)
        unit.transaction.responses.delete_before(unit.now - REMEMBERED)
        unit.transaction.driver_results.delete_before(unit.now - REMEMBERED)

    service.transact(work)
    for noted, written in ((service.used, used), (service.prolonged, prolonged)):
        for key, moment in written.items():
            if noted.get(key) == moment:
                del noted[key]
    _checkpoint(service)


def checkpoint_fleet(service: Service) -> None:
    """Checkpoint soon after a change of the fleet, so that the file has it even without its log."""
    if service.fleet_changed:
        service.fleet_changed = False
        _checkpoint(service)


def _checkpoint(service: Service) -> None:
    """If it fails, the service goes on but is not ready."""
    try:
        service.store.checkpoint()
    except (errors.UnavailableError, errors.UnsoundError) as error:
        service.writable = False
        log.warning("The database could not be checkpointed", action="store.checkpoint_failed", reason=error.message)


def _show_life(service: Service, unit: UnitOfWork) -> None:
    """Downtime, also of a machine that slept, does not count as silence of guests; after it they get time to poll."""
    alive_at = unit.transaction.meta.get(ALIVE_AT)
    away = unit.now - datetime.fromisoformat(alive_at) if alive_at else timedelta(0)
    if away > DOWNTIME:
        unit.transaction.scopes.shift_heard(away)
        service.give_grace()
    unit.transaction.meta.put(ALIVE_AT, unit.now.isoformat())
    unit.transaction.meta.put(MARK, service.clock.mark())


def problems(service: Service) -> list[str]:
    """Why the service is not ready, as far as that is known without asking the store."""
    found = [
        f"the thread {name!r} has made no progress for {seconds:.0f} s: restart the service if it does not recover"
        for name, seconds in service.liveness.silent().items()
    ]
    if (behind := service.clock.behind) > MOST_BEHIND:
        found.append(
            f"the clock is {behind.total_seconds():.0f} s behind the journal: correct it or, "
            "if it is right, stop the service, run `forenotice clock accept`, and start it again"
        )
    return found


def require_ready(service: Service) -> None:
    """Ready while the store can be read, and written; the latter is tried only when it last failed."""
    if not service.writable:
        run(service)
        service.store.checkpoint()
        return
    with service.store.read() as reader:
        reader.journal.last()


def resume(service: Service, *, alone: bool) -> None:
    """At start-up; `alone`: no other process can be serving."""

    def work(unit: UnitOfWork) -> None:
        _show_life(service, unit)
        if alone:
            _release_claims(unit.transaction, unit.now)

    service.transact(work)
    service.store.checkpoint()


def begin_epoch(service: Service, call: Call | None = None, *, after: int = 0) -> int:
    """Unconditionally; gives the new epoch, which is later than `after`."""

    return service.transact(lambda unit: _begin_epoch(unit, call, after))


def notice_restored_backup(service: Service) -> None:
    """Start an epoch if the database is older than the mark beside it: a backup was put in its place.

    Opening a copy raises the mark, so that a backup is noticed however young it is, and even if there was no mark."""
    mark = service.store.mark()
    if mark is None:
        return

    def work(unit: UnitOfWork) -> int | None:
        last = unit.transaction.journal.last()
        position = last[0] if last else 0
        if not documents.is_behind(unit.transaction.meta.epoch(), position, was=(mark.epoch, mark.position)):
            return None
        return _begin_epoch(unit, None)

    if epoch := service.transact(work):
        service.store.checkpoint()
        log.warning("A backup was restored: an epoch begins", action="store.restored", epoch=epoch)


def _begin_epoch(unit: UnitOfWork, call: Call | None, after: int = 0) -> int:
    mark = unit.service.store.mark()
    epoch = documents.next_epoch(unit.now, unit.transaction.meta.epoch(), mark.epoch if mark else 0, after)
    unit.transaction.raise_epoch(epoch)
    draft = unit.load(call)
    draft.note("database.restored", epoch=epoch)
    unit.keep(draft)
    return epoch
