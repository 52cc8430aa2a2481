"""Bearer tokens of operators, sessions of the portal, and stored responses for repeated commands.

Of secrets only digests are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from forenotice.store import schema
from forenotice.store.queries import Listing, Repository
from forenotice.store.rows import Codec, Mapper

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
_TOKENS = Mapper(schema.tokens.c, Token, codecs={"networks": _NETWORKS})
_LIST = Listing(schema.tokens, _TOKENS.read, by=("created_at", "id"))


class Tokens(Repository):
    def by_digest(self, digest: str) -> Token | None:
        """The token, even if revoked; also by the secret from before its last rotation."""
        query = "SELECT tokens.* FROM tokens WHERE digest = :digest OR previous_digest = :digest"
        return self._find(_TOKENS, query, digest=digest)

    def by_id(self, token_id: str) -> Token | None:
        """As above."""
        return self._find(_TOKENS, "SELECT tokens.* FROM tokens WHERE id = :id", id=token_id)

    def page(self, after: str | None = None, limit: int = MOST_TOKENS, *, descending: bool = False) -> list[Token]:
        """Oldest first, or `descending`, beyond the one with id `after`; revoked ones too."""
        return _LIST.page(self._db, after, limit, descending=descending)

    def put(self, token: Token) -> None:
        self._db.upsert(schema.tokens, [_TOKENS.row(token)])

    def revoke(self, token_id: str, now: datetime) -> bool:
        """Whether it was there and not yet revoked."""
        query = "UPDATE tokens SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL"
        return self._db.run(query, id=token_id, now=now) == 1

    def touch(self, used: Mapping[str, datetime]) -> None:
        """When tokens were last used, by id. Never goes back."""
        self._db.run_each(
            "UPDATE tokens SET last_used_at = :used WHERE id = :id AND coalesce(last_used_at, :used - 1) < :used",
            [{"id": key, "used": moment} for key, moment in used.items()],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An operator signed in to the portal, known by the digest of a secret that only the browser has."""

    digest: str
    token: str
    """The id of the token that it was made with."""
    created_at: datetime
    expires_at: datetime
    """Unless the session is used before then."""


_SESSIONS = Mapper(schema.sessions.c, Session)


class Sessions(Repository):
    def find(self, digest: str) -> Session | None:
        """Also when it has expired."""
        return self._find(_SESSIONS, "SELECT sessions.* FROM sessions WHERE digest = :digest", digest=digest)

    def put(self, session: Session) -> None:
        self._db.upsert(schema.sessions, [_SESSIONS.row(session)])

    def end(self, digest: str) -> bool:
        """Whether it was there."""
        return self._db.run("DELETE FROM sessions WHERE digest = :digest", digest=digest) == 1

    def prolong(self, digest: str, until: datetime) -> None:
        """Nothing, when it has ended meanwhile."""
        self._db.run("UPDATE sessions SET expires_at = :until WHERE digest = :digest", digest=digest, until=until)

    def delete_expired(self, now: datetime) -> None:
        self._db.run("DELETE FROM sessions WHERE expires_at <= :now", now=now)

    def keep_newest(self, token: str, most: int) -> None:
        """Of those that were made with this token, by id."""
        newest = "SELECT digest FROM sessions WHERE token = :token ORDER BY created_at DESC, digest LIMIT :most"
        self._db.run(f"DELETE FROM sessions WHERE token = :token AND digest NOT IN ({newest})", token=token, most=most)


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


_RESPONSES = Mapper(schema.idempotency.c, StoredResponse)


class StoredResponses(Repository):
    """By the token and the idempotency key of the command."""

    def find(self, token: str, key: str, since: datetime) -> StoredResponse | None:
        """What was stored at or after `since`."""
        query = "SELECT idempotency.* FROM idempotency WHERE token = :token AND key = :key AND at >= :since"
        return self._find(_RESPONSES, query, token=token, key=key, since=since)

    def put(self, response: StoredResponse) -> None:
        """Replaces what was stored for this token and key."""
        self._db.upsert(schema.idempotency, [_RESPONSES.row(response)])

    def delete_before(self, moment: datetime) -> None:
        self._db.run("DELETE FROM idempotency WHERE at < :moment", moment=moment)
