"""Sessions of the portal: an operator signs in with a token, and has a session secret until signing out."""

import hmac
import secrets
from dataclasses import replace
from datetime import timedelta

from forenotice.core import errors
from forenotice.core.draft import World
from forenotice.service import tokens
from forenotice.service.calls import Call
from forenotice.service.service import Service, UnitOfWork
from forenotice.service.tokens import Caller
from forenotice.store.tokens import Session, Token
from forenotice.store.transaction import Reader

LASTS = timedelta(hours=12)
IDLE = timedelta(hours=1)
"""After so long without use, a session ends."""
PROLONGED_EVERY = timedelta(minutes=1)
MOST_OF_ONE = 20
"""Sessions of one token; the oldest make way."""


def begin(service: Service, bearer: str, origin: str) -> tuple[str, Caller]:
    """The session's secret, and who it stands for. Never outlives the token."""
    caller = tokens.authenticate(service, bearer, origin)
    secret = secrets.token_urlsafe(32)

    def work(unit: UnitOfWork) -> Session:
        digest, now = tokens.digest_of(secret), unit.now
        made = Session(digest=digest, token=caller.id, created_at=now, expires_at=now + IDLE)
        sessions = unit.transaction.sessions
        # That one was used since may not be written yet.
        sessions.delete_expired(unit.now - PROLONGED_EVERY)
        sessions.put(made)
        sessions.keep_newest(caller.id, MOST_OF_ONE)
        _note(unit, "token.signed_in", caller, origin, digest)
        return made

    return secret, _limited(caller, service.transact(work))


def resume(service: Service, secret: str, *, origin: str = "", used: bool = False) -> Caller:
    """`used`: by a person, and not by a page's live updates."""
    with service.store.read() as reader:
        found = _find(reader, secret)
    if found is None:
        raise errors.UnauthorizedError("you are not signed in any more: sign in again")
    signed_in, token = found
    now = service.clock.now()
    if signed_in.created_at + LASTS <= now:
        raise errors.UnauthorizedError("you have been signed in for long: sign in again")
    expires_at = service.prolonged.get(signed_in.digest, signed_in.expires_at)
    if expires_at <= now:
        raise errors.UnauthorizedError("you have not used this session for an hour: sign in again")
    caller = _limited(tokens.admit(service, token, origin), signed_in)
    if used and now + IDLE - expires_at > PROLONGED_EVERY:
        service.prolonged[signed_in.digest] = now + IDLE
    return caller


def end(service: Service, secret: str, origin: str = "") -> None:
    """Whatever has become of its token; nothing is to be done when there is no such session."""

    def work(unit: UnitOfWork) -> None:
        if (found := _find(unit.transaction, secret)) is None:
            return
        signed_in, token = found
        unit.transaction.sessions.end(signed_in.digest)
        _note(unit, "token.signed_out", tokens.caller(token), origin, signed_in.digest)

    service.transact(work)


def _limited(caller: Caller, signed_in: Session) -> Caller:
    """A session never outlives its token, nor lasts for ever."""
    end = signed_in.created_at + LASTS
    return replace(caller, expires_at=min(end, caller.expires_at or end))


def _find(reader: Reader, secret: str) -> tuple[Session, Token] | None:
    digest = tokens.digest_of(secret)
    found = reader.sessions.find(digest)
    if found is None or not hmac.compare_digest(found.digest, digest):
        return None
    token = reader.tokens.by_id(found.token)
    return None if token is None else (found, token)


def _note(unit: UnitOfWork, action: str, caller: Caller, origin: str, digest: str) -> None:
    """Of a token that signs in again and again, only so many are noted in a while."""
    if not unit.service.repeats.is_news(caller.actor, (action, digest), unit.now):
        return
    draft = unit.draft(World(), Call(actor=caller.actor, token_id=caller.id, origin=origin))
    draft.note(action, id=caller.id, name=caller.name)
    unit.keep(draft)
