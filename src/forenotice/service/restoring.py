"""A restored database starts a new epoch, so that guests do not mistake its documents for ones they know."""

import structlog

from forenotice.core import documents
from forenotice.service.calls import Call
from forenotice.service.context import Service, UnitOfWork

log = structlog.get_logger()


def begin_epoch(service: Service, call: Call | None = None) -> int:
    """Unconditionally; gives the new epoch."""

    def work(unit: UnitOfWork) -> int:
        return _begin(unit, call)

    return service.transact(work)


def notice(service: Service) -> None:
    """Start an epoch if the database is older than the mark beside it: somebody put a backup in its place.

    Opening a copy raises the mark, so that a backup is noticed however young it is, and even if there was no mark."""
    mark = service.store.mark()
    if mark is None:
        return

    def work(unit: UnitOfWork) -> int | None:
        last = unit.transaction.last_entry()
        position = last[0] if last else 0
        if not documents.is_behind(unit.transaction.epoch(), position, was=(mark.epoch, mark.position)):
            return None
        return _begin(unit, None)

    if epoch := service.transact(work):
        service.store.settle()
        log.warning("A backup was restored: an epoch begins", action="store.restored", epoch=epoch)


def _begin(unit: UnitOfWork, call: Call | None) -> int:
    mark = unit.service.store.mark()
    epoch = documents.next_epoch(unit.now, unit.transaction.epoch(), mark.epoch if mark else 0)
    unit.transaction.raise_epoch(epoch)
    draft = unit.draft(unit.transaction.load(), call)
    draft.note("database.restored", epoch=epoch)
    unit.keep(draft)
    return epoch
