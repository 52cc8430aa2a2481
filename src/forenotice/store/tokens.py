"""Bearer tokens of operators, sessions of the portal, and stored responses for repeated commands.

Of secrets only digests are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, func, select, update

from forenotice.store import rows, schema
from forenotice.store.pages import Listing
from forenotice.store.queries import Query, Repository, Upsert, given
from forenotice.store.rows import Codec, Mapper

_T, _S, _I = schema.tokens.c, schema.sessions.c, schema.idempotency.c

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
    """Which scopes it may see; None: all."""
    expires_at: datetime | None = None
    networks: tuple[str, ...] = ()
    """The networks that it may be used from; empty: any."""
    previous_digest: str | None = None
    """Of the secret that it had before it was rotated."""
    previous_until: datetime | None = None
    """How long that is accepted."""
    renewed_at: datetime | None = None
    """When its lifetime began anew; None: when it was made."""


_NETWORKS = Codec(lambda text: tuple(text.split(",")) if text else (), lambda networks: ",".join(networks) or None)
_TOKENS = Mapper(_T, Token, codecs={"networks": _NETWORKS})
_LIST = Listing(select(schema.tokens), schema.tokens, _TOKENS.read, by=("created_at", "id"))
_PUT = Upsert(schema.tokens)
_BY_DIGEST = Query(select(schema.tokens).where((_T.digest == given.wanted) | (_T.previous_digest == given.wanted)))
_BY_ID = Query(select(schema.tokens).where(_T.id == given.wanted))
_REVOKE = Query(update(schema.tokens).where(_T.id == given.token, _T.revoked_at.is_(None)).values(revoked_at=given.now))
_TOUCH = Query(
    update(schema.tokens)
    .where(_T.id == given.token, func.coalesce(_T.last_used_at, given.used - 1) < given.used)
    .values(last_used_at=given.used)
)


class Tokens(Repository):
    def by_digest(self, digest: str) -> Token | None:
        """The token, even if revoked; also by the secret from before its last rotation."""
        return self._find(_TOKENS, _BY_DIGEST, wanted=digest)

    def by_id(self, token_id: str) -> Token | None:
        """As above."""
        return self._find(_TOKENS, _BY_ID, wanted=token_id)

    def page(self, after: str | None = None, limit: int = MOST_TOKENS, *, descending: bool = False) -> list[Token]:
        """Oldest first, or `descending`, beyond the one with id `after`; revoked ones too."""
        return _LIST.page(self._executor, after, limit, descending=descending)

    def put(self, token: Token) -> None:
        self._executor.upsert(_PUT, [_TOKENS.row(token)])

    def revoke(self, token_id: str, now: datetime) -> bool:
        """Whether it was there and not yet revoked."""
        return self._executor.run(_REVOKE, token=token_id, now=rows.number(now)) == 1

    def touch(self, used: Mapping[str, datetime]) -> None:
        """When tokens were last used, by id. Never goes back."""
        each = [{"token": key, "used": rows.number(moment)} for key, moment in used.items()]
        self._executor.run_each(_TOUCH, each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An operator signed in to the portal, known by the digest of a secret that only the browser has."""

    digest: str
    token: str
    """The id of the token that it was made with."""
    created_at: datetime
    expires_at: datetime
    """Unless the session is used before then."""


_SESSIONS = Mapper(_S, Session)
_PUT_SESSION = Upsert(schema.sessions)
_FIND = Query(select(schema.sessions).where(_S.digest == given.wanted))
_END = Query(delete(schema.sessions).where(_S.digest == given.wanted))
_PROLONG = Query(
    update(schema.sessions).where(_S.digest == given.wanted).values(expires_at=bindparam("until", type_=schema.MOMENT))
)
_DELETE_EXPIRED = Query(delete(schema.sessions).where(_S.expires_at <= given.now))
_NEWEST = (
    select(_S.digest)
    .where(_S.token == bindparam("token", type_=schema.NAME))
    .order_by(_S.created_at.desc(), _S.digest)
    .limit(given.most)
)
_KEEP_NEWEST = Query(
    delete(schema.sessions).where(_S.token == bindparam("token", type_=schema.NAME), _S.digest.not_in(_NEWEST))
)


class Sessions(Repository):
    def find(self, digest: str) -> Session | None:
        """Also when it has expired."""
        return self._find(_SESSIONS, _FIND, wanted=digest)

    def put(self, session: Session) -> None:
        self._executor.upsert(_PUT_SESSION, [_SESSIONS.row(session)])

    def end(self, digest: str) -> bool:
        """Whether it was there."""
        return self._executor.run(_END, wanted=digest) == 1

    def prolong(self, digest: str, until: datetime) -> None:
        """Nothing, when it has ended meanwhile."""
        self._executor.run(_PROLONG, wanted=digest, until=rows.number(until))

    def delete_expired(self, now: datetime) -> None:
        self._executor.run(_DELETE_EXPIRED, now=rows.number(now))

    def keep_newest(self, token: str, most: int) -> None:
        """Of those that were made with this token, by id."""
        self._executor.run(_KEEP_NEWEST, token=token, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """The response to an operator's command, so that a repeated command has no further effect."""

    token: str
    key: str
    digest: str
    """Of the command's body: another body under the same key is a conflict."""
    status: int
    result: bytes
    at: datetime


_RESPONSES = Mapper(_I, StoredResponse)
_PUT_RESPONSE = Upsert(schema.idempotency)
_RESPONSE = Query(select(schema.idempotency).where(_I.token == given.token, _I.key == given.key, _I.at >= given.since))
_DELETE_RESPONSES = Query(delete(schema.idempotency).where(_I.at < given.moment))


class StoredResponses(Repository):
    """By the token and the idempotency key of the command."""

    def find(self, token: str, key: str, since: datetime) -> StoredResponse | None:
        """What was stored at or after `since`."""
        return self._find(_RESPONSES, _RESPONSE, token=token, key=key, since=rows.number(since))

    def put(self, response: StoredResponse) -> None:
        """Replaces what was stored for this token and key."""
        self._executor.upsert(_PUT_RESPONSE, [_RESPONSES.row(response)])

    def delete_before(self, moment: datetime) -> None:
        self._executor.run(_DELETE_RESPONSES, moment=rows.number(moment))
