"""Bearer tokens of operators: shown once, kept only as a digest."""

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forenotice.core import errors, fleet, roles, tenancy
from forenotice.core.roles import Access, Role
from forenotice.service import views
from forenotice.service.calls import SYSTEM, Call, View, command
from forenotice.service.context import Service, Session
from forenotice.store.tokens import MOST_TOKENS, Token

PREFIX = "fn_"
USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    id: str
    name: str
    access: Access
    expires_at: datetime | None = None
    call: tuple[str, int] | None = None
    """The operation and the attempt whose result alone it may tell."""

    @property
    def actor(self) -> str:
        """As the journal names it; a tenant's name is no secret to whoever sees the same scopes."""
        if self.call is not None:
            return "driver"
        return f"{roles.TENANT if self.access.role is Role.TENANT else 'operator:'}{self.name}"


def create(
    service: Service,
    call: Call,
    *,
    name: str,
    role: str = Role.ADMIN,
    scopes: str | None = None,
    expires_in: timedelta | None = None,
) -> View:
    fleet.require_name("token", name)
    roles.access(role, scopes)
    if expires_in is not None and expires_in <= timedelta(0):
        raise errors.RefusedError("a token that expires at once is of no use: give a time such as 90d")

    def work(session: Session) -> View:
        _require_new(session, name)
        token, secret = _new(session, name, role)
        token = replace(token, selector=scopes, expires_at=session.now + expires_in if expires_in else None)
        _add(session, token, call)
        return {**_view(token), "token": secret}

    return command(service, call, work, shown_once="token")


def create_first(service: Service, keep: Callable[[str], None]) -> bool:
    """When there is no token at all, make the administrator's. It is kept before it is valid, so it is never lost."""

    def work(session: Session) -> bool:
        if session.transaction.list_tokens():
            return False
        token, secret = _new(session, "admin", Role.ADMIN)
        keep(secret)
        _add(session, token, SYSTEM)
        return True

    return service.transact(work)


def list_all(service: Service) -> View:
    return page(service, limit=MOST_TOKENS)


def page(service: Service, *, after: str | None = None, limit: int = 100, descending: bool = False) -> View:
    with service.store.read() as reader:
        items = [_view(token) for token in reader.list_tokens(after, limit, descending=descending)]
    return {"items": items, "next": items[-1]["id"] if len(items) == limit else None}


def show(service: Service, token_id: str) -> View:
    with service.store.read() as reader:
        token = reader.token_by_id(token_id)
    if token is None:
        raise errors.NotFoundError(f"there is no token {token_id!r}", token=token_id)
    return _view(token)


def revoke(service: Service, call: Call, token_id: str) -> View:
    def work(session: Session) -> View:
        if not session.transaction.revoke_token(token_id, session.now):
            raise errors.NotFoundError(f"there is no token {token_id!r} that is still valid", token=token_id)
        revoked = session.transaction.token_by_id(token_id)
        assert revoked is not None
        draft = session.draft(session.transaction.load(), call)
        draft.note("token.revoked", id=token_id, name=revoked.name)
        session.keep(draft)
        return _view(revoked)

    return command(service, call, work)


def authenticate(service: Service, bearer: str) -> Caller:
    digest = digest_of(bearer)
    with service.store.read() as reader:
        token = reader.token_by_digest(digest)
    if token is None or not hmac.compare_digest(token.digest, digest):
        raise errors.UnauthorizedError
    return admit(service, token)


def admit(service: Service, token: Token) -> Caller:
    """Whoever has proved to hold this token, while it is valid."""
    if token.revoked_at is not None:
        raise _refused(token)
    now = service.clock.now()
    if token.expires_at is not None and token.expires_at <= now:
        raise _refused(
            token, f"this token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC: ask an administrator for a new one"
        )
    _note_use(service, token, now)
    found = caller(token)
    if (scopes := found.access.scopes) is None or not scopes.named:
        return found
    with service.store.read() as reader:
        former = reader.former(scopes.named)
    scopes = tenancy.bound(scopes, token.created_at, former)
    return replace(found, access=replace(found.access, scopes=scopes))


def _refused(token: Token, why: str | None = None) -> errors.UnauthorizedError:
    error = errors.UnauthorizedError(why)
    error.token = token.id
    return error


def caller(token: Token) -> Caller:
    access = roles.access(token.role, token.selector)
    return Caller(id=token.id, name=token.name, access=access, expires_at=token.expires_at)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _require_new(session: Session, name: str) -> None:
    """The journal tells who did something by the name of the token."""
    for known in session.transaction.list_tokens():
        expired = known.expires_at is not None and known.expires_at <= session.now
        if known.name == name and known.revoked_at is None and not expired:
            raise errors.ConflictError(
                f"there is already a token {name!r}: choose another name, or revoke {known.id}",
                name=name,
                token=known.id,
                role=known.role,
                scopes=known.selector,
            )


def _new(session: Session, name: str, role: str) -> tuple[Token, str]:
    secret = PREFIX + secrets.token_urlsafe(32)
    return Token(id=str(uuid.uuid4()), name=name, role=role, digest=digest_of(secret), created_at=session.now), secret


def _add(session: Session, token: Token, call: Call) -> None:
    session.transaction.add_token(token)
    draft = session.draft(session.transaction.load(), call)
    facts = {key: value for key, value in _view(token).items() if key in ("id", "name", "role", "scopes", "expires_at")}
    draft.note("token.created", **facts)
    session.keep(draft)


def _note_use(service: Service, token: Token, now: datetime) -> None:
    if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:
        if token.id in service.noting:
            return  # Many requests may come while one waits for its turn to write: they do not wait too.

        def work(session: Session) -> None:
            session.transaction.touch_tokens({token.id: now})

        service.noting.add(token.id)
        try:
            service.transact(work)
        except (errors.UnavailableError, errors.UnsoundError):
            return  # Reading goes on while writing cannot; when it was last used is not worth a refusal.
        finally:
            service.noting.discard(token.id)


def _view(token: Token) -> View:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "scopes": token.selector,
        "expires_at": views.moment(token.expires_at),
        "created_at": views.moment(token.created_at),
        "last_used_at": views.moment(token.last_used_at),
        "revoked_at": views.moment(token.revoked_at),
    }
