"""When scopes were removed, by key, so that a successor with the same key is not shown their history."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, case, exists, func, select, update

from forenotice.core.roles import Former
from forenotice.store import moments, schema
from forenotice.store.queries import Among, Executor, Query, Upsert

_F, _S = schema.former_scopes.c, schema.scopes.c
_IS_BORNE = exists(select(_S.key).where(_S.key == _F.key))

_NAMED = Query(select(_F.key, _F.ended_at, _F.ended_before, _IS_BORNE).where(Among(_F.key, "names")))
_PASS_ON = Query(update(schema.former_scopes).where(Among(_F.key, "names")).values(ended_before=_F.ended_at))
_PUT = Upsert(schema.former_scopes, fixed=("ended_before",))


def of_last_bearer(scope: ColumnElement[str], moment: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether something at that moment belongs to the latest scope with its key: `Former.hides`, in SQL."""
    hidden_until = (
        select(case((_IS_BORNE, _F.ended_at), else_=_F.ended_before)).where(_F.key == scope).scalar_subquery()
    )
    return moment > func.coalesce(hidden_until, -1)


def named(executor: Executor, keys: Collection[str]) -> dict[str, Former]:
    if not keys:
        return {}
    return {
        key: Former(ended_at=moments.required(ended_at), before=moments.optional(before), is_borne=bool(is_borne))
        for key, ended_at, before, is_borne in executor.rows(_NAMED, names=list(keys))
    }


def put(executor: Executor, removed: list[str], now: datetime) -> None:
    executor.run(_PASS_ON, names=removed)
    executor.upsert(_PUT, [(key, moments.to_number(now), None) for key in removed])
