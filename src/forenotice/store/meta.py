"""Single values, by key."""

from sqlalchemy import bindparam, select

from forenotice.store import schema
from forenotice.store.session import Query, Session, Upsert

EPOCH = "epoch"

_PUT = Upsert(schema.meta)
_GET = Query(select(schema.meta.c.value).where(schema.meta.c.key == bindparam("wanted")))


def get(session: Session, key: str) -> str | None:
    row = session.row(_GET, wanted=key)
    return None if row is None else str(row[0])


def put(session: Session, key: str, value: str) -> None:
    session.upsert(_PUT, [(key, value)])
