"""Small chores: being alive, forgetting old keys, and what our own downtime means for who listens."""

from datetime import datetime, timedelta

from notbefore.service.calls import REMEMBERED
from notbefore.service.context import Service, Session

INTERVAL = timedelta(seconds=20)
DOWNTIME = 3 * INTERVAL
"""Without a sign of life for this long, nobody was serving."""

ALIVE_AT = "alive_at"


def keep_up(service: Service) -> None:
    def work(session: Session) -> None:
        session.transaction.put_meta(ALIVE_AT, session.now.isoformat())
        session.transaction.forget_before(session.now - REMEMBERED)

    service.transact(work)


def require_ready(service: Service) -> None:
    """Ready while the store can be read, and written; the latter is tried only when it last failed."""
    if not service.writable:
        keep_up(service)
        return
    with service.store.read() as reader:
        reader.last_entry()


def resume(service: Service, *, alone: bool) -> None:
    """At start-up: our own downtime does not count as a guest's silence, and claims of a dead process are void."""

    def work(session: Session) -> None:
        alive_at = session.transaction.meta(ALIVE_AT)
        if alive_at is not None:
            away = session.now - datetime.fromisoformat(alive_at)
            if away > DOWNTIME:
                session.transaction.shift_heard(away)
        session.transaction.put_meta(ALIVE_AT, session.now.isoformat())
        if alone:
            session.transaction.release_claims(None)

    service.transact(work)
