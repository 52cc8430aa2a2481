"""A restored database starts a new epoch, so that guests do not mistake its documents for ones they know."""

import structlog

from forenotice.core import epochs
from forenotice.service.calls import Call
from forenotice.service.context import Service, Session

log = structlog.get_logger()


def begin_epoch(service: Service, call: Call | None = None) -> int:
    """Unconditionally; gives the new epoch."""

    def work(session: Session) -> int:
        return _begin(session, call)

    return service.transact(work)


def notice(service: Service) -> None:
    """Start an epoch if the database is older than the mark beside it: somebody put a backup in its place.

    Opening a copy raises the mark, so that a backup is noticed however young it is, and even if there was no mark."""
    mark = service.store.mark()
    if mark is None:
        return

    def work(session: Session) -> int | None:
        last = session.transaction.last_entry()
        position = last[0] if last else 0
        if not epochs.fell(session.transaction.epoch(), position, was=(mark.epoch, mark.position)):
            return None
        return _begin(session, None)

    if epoch := service.transact(work):
        service.store.settle()
        log.warning("A backup was restored: an epoch begins", action="store.restored", epoch=epoch)


def _begin(session: Session, call: Call | None) -> int:
    mark = session.service.store.mark()
    epoch = epochs.following(session.now, session.transaction.epoch(), mark.epoch if mark else 0)
    session.transaction.raise_epoch(epoch)
    draft = session.draft(session.transaction.load(), call)
    draft.note("database.restored", epoch=epoch)
    session.keep(draft)
    return epoch
