"""What was answered to operators' commands, so that a repeated one is the same as one."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, select

from forenotice.store import moments, schema
from forenotice.store.queries import Executor, Query, Upsert

_I = schema.idempotency.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    digest: str
    """Of the command's body: another body under the same key is a conflict."""
    status: int
    result: bytes


_PUT = Upsert(schema.idempotency)
_RECALL = Query(
    select(_I.digest, _I.status, _I.result).where(
        _I.token == bindparam("token"), _I.key == bindparam("key"), _I.at >= bindparam("since")
    )
)
_FORGET = Query(delete(schema.idempotency).where(_I.at < bindparam("moment")))


def recall(executor: Executor, token: str, key: str, since: datetime) -> Remembered | None:
    row = executor.row(_RECALL, token=token, key=key, since=moments.to_number(since))
    return None if row is None else Remembered(digest=row[0], status=row[1], result=bytes(row[2]))


def remember(executor: Executor, token: str, key: str, remembered: Remembered, now: datetime) -> None:
    row = (token, key, remembered.digest, remembered.status, remembered.result, moments.to_number(now))
    executor.upsert(_PUT, [row])


def forget_before(executor: Executor, moment: datetime) -> None:
    executor.run(_FORGET, moment=moments.to_number(moment))
