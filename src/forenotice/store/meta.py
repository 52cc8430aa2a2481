"""Single values, by key."""

from sqlalchemy import bindparam, select

from forenotice.store import schema
from forenotice.store.queries import Executor, Query, Upsert

EPOCH = "epoch"

_PUT = Upsert(schema.meta)
_GET = Query(select(schema.meta.c.value).where(schema.meta.c.key == bindparam("wanted")))


def get(executor: Executor, key: str) -> str | None:
    row = executor.row(_GET, wanted=key)
    return None if row is None else str(row[0])


def put(executor: Executor, key: str, value: str) -> None:
    executor.upsert(_PUT, [(key, value)])
