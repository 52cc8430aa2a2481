"""Who is signed in to the portal, known by the digest of a secret that only the browser has."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, select, update

from forenotice.store import moments, schema
from forenotice.store.queries import Executor, Query, Upsert

_S = schema.sessions.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    digest: str
    token: str
    """The id of the token that it was made with."""
    created_at: datetime
    expires_at: datetime
    """When nobody uses it."""


_PUT = Upsert(schema.sessions)
_FIND = Query(select(schema.sessions).where(_S.digest == bindparam("wanted")))
_END = Query(delete(schema.sessions).where(_S.digest == bindparam("wanted")))
_PROLONG = Query(
    update(schema.sessions)
    .where(_S.digest == bindparam("wanted"))
    .values(expires_at=bindparam("until", type_=schema.MOMENT))
)
_FORGET = Query(delete(schema.sessions).where(_S.expires_at <= bindparam("now")))
_NEWEST = (
    select(_S.digest)
    .where(_S.token == bindparam("token", type_=schema.NAME))
    .order_by(_S.created_at.desc(), _S.digest)
    .limit(bindparam("most"))
)
_KEEP_NEWEST = Query(
    delete(schema.sessions).where(_S.token == bindparam("token", type_=schema.NAME), _S.digest.not_in(_NEWEST))
)


class Sessions:
    """What is read is of one moment; what writes is for transactions alone."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def find(self, digest: str) -> Session | None:
        """Also when it has expired."""
        row = self._executor.row(_FIND, wanted=digest)
        if row is None:
            return None
        created_at, expires_at = moments.required(row[2]), moments.required(row[3])
        return Session(digest=row[0], token=row[1], created_at=created_at, expires_at=expires_at)

    def add(self, made: Session) -> None:
        created_at, expires_at = moments.to_number(made.created_at), moments.to_number(made.expires_at)
        self._executor.upsert(_PUT, [(made.digest, made.token, created_at, expires_at)])

    def end(self, digest: str) -> bool:
        """Whether it was there."""
        return self._executor.run(_END, wanted=digest) == 1

    def prolong(self, digest: str, until: datetime) -> None:
        """Nothing, when it has ended meanwhile."""
        self._executor.run(_PROLONG, wanted=digest, until=moments.to_number(until))

    def forget_expired(self, now: datetime) -> None:
        self._executor.run(_FORGET, now=moments.to_number(now))

    def keep_newest(self, token: str, most: int) -> None:
        """Of those that were made with this token, by id."""
        self._executor.run(_KEEP_NEWEST, token=token, most=most)
