"""Sessions of the portal: somebody shows a token once, and is known by a secret of its own until it signs out."""

import hmac
import secrets
from dataclasses import replace
from datetime import timedelta

from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.service import tokens
from forenotice.service.calls import Call
from forenotice.service.context import Service, Session
from forenotice.service.tokens import Caller
from forenotice.store.contract import Reader
from forenotice.store.sessions import SignIn
from forenotice.store.tokens import Token

LASTS = timedelta(hours=12)
MOST_OF_ONE = 20
"""Sessions of one token; the oldest make way."""


def begin(service: Service, bearer: str, origin: str) -> tuple[str, Caller]:
    """The session's secret, and who it stands for. Never outlives the token."""
    caller = tokens.authenticate(service, bearer)
    secret = secrets.token_urlsafe(32)

    def work(session: Session) -> SignIn:
        expires_at = session.now + LASTS
        if caller.expires_at is not None:
            expires_at = min(expires_at, caller.expires_at)
        made = SignIn(digest=tokens.digest_of(secret), token=caller.id, created_at=session.now, expires_at=expires_at)
        sessions = session.transaction.sessions
        sessions.forget_expired(session.now)
        sessions.add(made)
        sessions.keep_newest(caller.id, MOST_OF_ONE)
        _note(session, "token.signed_in", caller, origin)
        return made

    return secret, replace(caller, expires_at=service.transact(work).expires_at)


def resume(service: Service, secret: str) -> Caller:
    with service.store.read() as reader:
        found = _find(reader, secret)
    if found is None:
        raise errors.UnauthorizedError("you are not signed in any more: sign in again")
    signed_in, token = found
    if signed_in.expires_at <= service.clock.now():
        raise errors.UnauthorizedError("you have been signed in for long: sign in again")
    return replace(tokens.admit(service, token), expires_at=signed_in.expires_at)


def end(service: Service, secret: str, origin: str = "") -> None:
    """Whatever has become of its token; nothing is to be done when there is no such session."""

    def work(session: Session) -> None:
        if (found := _find(session.transaction, secret)) is None:
            return
        signed_in, token = found
        session.transaction.sessions.end(signed_in.digest)
        _note(session, "token.signed_out", tokens.caller(token), origin)

    service.transact(work)


def _find(reader: Reader, secret: str) -> tuple[SignIn, Token] | None:
    digest = tokens.digest_of(secret)
    found = reader.sessions.find(digest)
    if found is None or not hmac.compare_digest(found.digest, digest):
        return None
    token = reader.token_by_id(found.token)
    return None if token is None else (found, token)


def _note(session: Session, action: str, caller: Caller, origin: str) -> None:
    draft = session.draft(World(), Call(actor=caller.actor, token_id=caller.id, origin=origin))
    draft.note(action, id=caller.id, name=caller.name)
    session.keep(draft)
