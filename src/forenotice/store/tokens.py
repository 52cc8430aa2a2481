"""Bearer tokens of operators, known by the digest of their secret."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, select, update

from forenotice.store import moments, schema
from forenotice.store.pages import Listing
from forenotice.store.queries import Executor, Query, Row, Upsert

_T = schema.tokens.c

MOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    id: str
    name: str
    role: str
    digest: str
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    selector: str | None = None
    """Whose scopes it is for; None: all."""
    expires_at: datetime | None = None
    networks: tuple[str, ...] = ()
    """Where it may come from; none: anywhere."""
    previous_digest: str | None = None
    """Of the secret that it had before it was rotated."""
    previous_until: datetime | None = None
    """How long that is accepted."""
    renewed_at: datetime | None = None
    """When its lifetime began anew; None: when it was made."""


_PUT = Upsert(schema.tokens)
_BY_DIGEST = Query(
    select(schema.tokens).where((_T.digest == bindparam("wanted")) | (_T.previous_digest == bindparam("wanted")))
)
_BY_ID = Query(select(schema.tokens).where(_T.id == bindparam("wanted")))
_LISTING = Listing(select(schema.tokens), schema.tokens, by=("created_at", "id"), filters={})
_REVOKE = Query(
    update(schema.tokens)
    .where(_T.id == bindparam("token"), _T.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
)
_TOUCH = Query(
    update(schema.tokens)
    .where(_T.id == bindparam("token"), func.coalesce(_T.last_used_at, bindparam("used") - 1) < bindparam("used"))
    .values(last_used_at=bindparam("used"))
)


def by_digest(executor: Executor, digest: str) -> Token | None:
    row = executor.row(_BY_DIGEST, wanted=digest)
    return None if row is None else _token(row)


def by_id(executor: Executor, token_id: str) -> Token | None:
    row = executor.row(_BY_ID, wanted=token_id)
    return None if row is None else _token(row)


def page(executor: Executor, after: str | None, limit: int, descending: bool) -> list[Token]:
    return [_token(row) for row in _LISTING.page(executor, after=after, limit=limit, descending=descending)]


def put(executor: Executor, token: Token) -> None:
    row = (
        token.id,
        token.name,
        token.role,
        token.digest,
        moments.to_number(token.created_at),
        moments.to_number(token.last_used_at),
        moments.to_number(token.revoked_at),
        token.selector,
        moments.to_number(token.expires_at),
        ",".join(token.networks) or None,
        token.previous_digest,
        moments.to_number(token.previous_until),
        moments.to_number(token.renewed_at),
    )
    executor.upsert(_PUT, [row])


def revoke(executor: Executor, token_id: str, now: datetime) -> bool:
    return executor.run(_REVOKE, token=token_id, now=moments.to_number(now)) == 1


def touch(executor: Executor, used: Mapping[str, datetime]) -> None:
    executor.run_each(_TOUCH, [{"token": key, "used": moments.to_number(moment)} for key, moment in used.items()])


def _token(row: Row) -> Token:
    return Token(
        id=row[0],
        name=row[1],
        role=row[2],
        digest=row[3],
        created_at=moments.required(row[4]),
        last_used_at=moments.optional(row[5]),
        revoked_at=moments.optional(row[6]),
        selector=row[7],
        expires_at=moments.optional(row[8]),
        networks=tuple(row[9].split(",")) if row[9] else (),
        previous_digest=row[10],
        previous_until=moments.optional(row[11]),
        renewed_at=moments.optional(row[12]),
    )
