"""Start-up and housekeeping: signs of life, downtime, checkpoints, readiness, and epochs after a restored backup."""

from datetime import datetime, timedelta

import structlog

from forenotice.core import documents, errors
from forenotice.service import clocks
from forenotice.service.calls import REMEMBERED, Call
from forenotice.service.service import Service, UnitOfWork

log = structlog.get_logger()

INTERVAL = timedelta(seconds=20)
DOWNTIME = 3 * INTERVAL
"""Without a sign of life for this long, no process was serving."""


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
    _forget(service.used, used)
    _forget(service.prolonged, prolonged)
    _checkpoint(service)


def _forget(noted: dict[str, datetime], written: dict[str, datetime]) -> None:
    for key, moment in written.items():
        if noted.get(key) == moment:
            del noted[key]


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
    alive_at = unit.transaction.meta.get(clocks.ALIVE_AT)
    away = unit.now - datetime.fromisoformat(alive_at) if alive_at else timedelta(0)
    if away > DOWNTIME:
        unit.transaction.scopes.shift_heard(away)
        service.give_grace()
    unit.transaction.meta.put(clocks.ALIVE_AT, unit.now.isoformat())
    unit.transaction.meta.put(clocks.MARK, service.clock.mark())


def problems(service: Service) -> list[str]:
    """Why the service is not ready, as far as that is known without asking the store."""
    found = [
        f"the thread {name!r} has made no progress for {seconds:.0f} s: restart the service if it does not recover"
        for name, seconds in service.liveness.silent().items()
    ]
    if (behind := service.clock.behind) > clocks.MOST_BEHIND:
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
    """At start-up; if no other process can be serving, claims and unanswered gates belong to a dead one."""

    def work(unit: UnitOfWork) -> None:
        _show_life(service, unit)
        if alone:
            unit.transaction.operations.release_claims(None)
            unit.transaction.subscriptions.release_claims()
            unit.transaction.rollouts.make_due(unit.now)

    service.transact(work)
    service.store.checkpoint()


def begin_epoch(service: Service, call: Call | None = None) -> int:
    """Unconditionally; gives the new epoch."""

    def work(unit: UnitOfWork) -> int:
        return _begin_epoch(unit, call)

    return service.transact(work)


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


def _begin_epoch(unit: UnitOfWork, call: Call | None) -> int:
    mark = unit.service.store.mark()
    epoch = documents.next_epoch(unit.now, unit.transaction.meta.epoch(), mark.epoch if mark else 0)
    unit.transaction.raise_epoch(epoch)
    draft = unit.draft(unit.transaction.worlds.load(), call)
    draft.note("database.restored", epoch=epoch)
    unit.keep(draft)
    return epoch
