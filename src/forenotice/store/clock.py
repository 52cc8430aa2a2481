"""After a wrong clock was corrected: moves the times that it wrote into the future back to now, keeping their order."""

from datetime import datetime

from sqlalchemy import Column, ColumnElement, Table, bindparam, delete, select, true, update

from forenotice.store import moments, schema
from forenotice.store.queries import Executor, Query

_NOW, _AHEAD = (bindparam(name, type_=schema.MOMENT()) for name in ("now", "ahead"))
_SECOND = 1_000_000


def _set_back(table: Table, column: Column[int], which: ColumnElement[bool] | None = None) -> Query:
    """A second becomes a microsecond, so the order stays: it decides what a successor of the same name is shown."""
    pressed = _NOW - (_AHEAD - column) // _SECOND
    return Query(update(table).where(column > _NOW, true() if which is None else which).values({column: pressed}))


_FORMER, _TOKENS = schema.former_scopes, schema.tokens
_IS_FORMER = schema.journal.c.scope.in_(select(_FORMER.c.key))
_ALL = (
    _set_back(_FORMER, _FORMER.c.ended_at),
    _set_back(_FORMER, _FORMER.c.ended_before),
    _set_back(schema.events, schema.events.c.created_at),
    _set_back(schema.journal, schema.journal.c.at, _IS_FORMER),
    _set_back(_TOKENS, _TOKENS.c.created_at),
    _set_back(_TOKENS, _TOKENS.c.last_used_at),
    _set_back(_TOKENS, _TOKENS.c.revoked_at),
)
_UNTIL = _TOKENS.c.previous_until
_SHORTEN = Query(update(_TOKENS).where(_UNTIL > _NOW).values(previous_until=_UNTIL - (_AHEAD - _NOW)))
_SIGN_OUT = Query(delete(schema.sessions))


def set_back(executor: Executor, now: datetime, ahead: datetime) -> None:
    """A rotated secret stays valid for as long as it had left. Everybody has to sign in again."""
    how = {"now": moments.to_number(now), "ahead": moments.to_number(ahead)}
    for query in (*_ALL, _SHORTEN):
        executor.run(query, **how)
    executor.run(_SIGN_OUT)
