"""Bearer tokens of operators: shown once, kept only as a digest."""

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from notbefore.core import errors, fleet
from notbefore.service import views
from notbefore.service.calls import Call, View, command
from notbefore.service.context import Service, Session
from notbefore.store.tokens import Token

PREFIX = "nb_"
ROLES = ("admin",)
USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    id: str
    name: str
    role: str


def create(service: Service, call: Call, *, name: str, role: str = "admin") -> View:
    fleet.require_name("token", name)
    if role not in ROLES:
        raise errors.RefusedError(f"there is no role {role!r}: give {' or '.join(ROLES)}")

    def work(session: Session) -> View:
        token, secret = _new(session, name, role)
        _add(session, token, call.actor)
        return {**_view(token), "token": secret}

    return command(service, call, work, shown_once="token")


def create_first(service: Service, keep: Callable[[str], None]) -> bool:
    """When there is no token at all, make the administrator's. It is kept before it is valid, so it is never lost."""

    def work(session: Session) -> bool:
        if session.transaction.list_tokens():
            return False
        token, secret = _new(session, "admin", "admin")
        keep(secret)
        _add(session, token, "system")
        return True

    return service.transact(work)


def list_all(service: Service) -> View:
    with service.store.read() as reader:
        return {"items": [_view(token) for token in reader.list_tokens()], "next": None}


def revoke(service: Service, call: Call, token_id: str) -> View:
    def work(session: Session) -> View:
        if not session.transaction.revoke_token(token_id, session.now):
            raise errors.NotFoundError(f"there is no token {token_id!r} that is still valid", token=token_id)
        draft = session.draft(session.transaction.load(), by=call.actor)
        draft.note("token.revoked", id=token_id)
        session.keep(draft)
        return next(_view(token) for token in session.transaction.list_tokens() if token.id == token_id)

    return command(service, call, work)


def authenticate(service: Service, bearer: str) -> Caller:
    digest = _digest(bearer)
    with service.store.read() as reader:
        token = reader.token_by_digest(digest)
    if token is None or not hmac.compare_digest(token.digest, digest) or token.revoked_at is not None:
        raise errors.UnauthorizedError
    _note_use(service, token, service.clock.now())
    return Caller(id=token.id, name=token.name, role=token.role)


def _new(session: Session, name: str, role: str) -> tuple[Token, str]:
    secret = PREFIX + secrets.token_urlsafe(32)
    return Token(id=str(uuid.uuid4()), name=name, role=role, digest=_digest(secret), created_at=session.now), secret


def _add(session: Session, token: Token, by: str) -> None:
    session.transaction.add_token(token)
    draft = session.draft(session.transaction.load(), by=by)
    draft.note("token.created", id=token.id, name=token.name, role=token.role)
    session.keep(draft)


def _note_use(service: Service, token: Token, now: datetime) -> None:
    if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:

        def work(session: Session) -> None:
            session.transaction.touch_tokens({token.id: now})

        try:
            service.transact(work)
        except errors.UnavailableError:
            return  # Reading goes on while writing cannot; when it was last used is not worth a refusal.


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _view(token: Token) -> View:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "created_at": views.moment(token.created_at),
        "last_used_at": views.moment(token.last_used_at),
        "revoked_at": views.moment(token.revoked_at),
    }
