"""Bearer tokens of operators: shown once, kept only as a digest."""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import structlog

from forenotice import data_directory
from forenotice.core import errors, fleet, roles
from forenotice.core.draft import World
from forenotice.core.roles import Access, Role
from forenotice.service import views
from forenotice.service.calls import SYSTEM, Call, command
from forenotice.service.service import Service, UnitOfWork
from forenotice.settings.values import NEVER, Span
from forenotice.store.tokens import MOST_TOKENS, Token
from forenotice.views import base
from forenotice.views import tokens as shown
from forenotice.views.base import Page

log = structlog.get_logger()

PREFIX = "fn_"
USE_NOTED_EVERY = timedelta(minutes=1)
LIFETIME = timedelta(days=90)
"""Of tokens made without an expiry."""
OVERLAP = timedelta(hours=1)
"""How long the secret before a rotation is accepted."""
NOTED = frozenset({"id", "name", "role", "scopes", "networks", "expires_at", "previous_until"})
LONGEST_OVERLAP = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    id: str
    name: str
    access: Access
    expires_at: datetime | None = None
    call: tuple[str, int] | None = None
    """The operation and attempt of a driver's call: it may only report that call's result."""

    @property
    def actor(self) -> str:
        """As the journal names it; callers with the same scopes see a tenant's name."""
        if self.call is not None:
            return "driver"
        return f"{roles.TENANT if self.access.role is Role.TENANT else 'operator:'}{self.name}"


def lifetime(text: str | None) -> timedelta | None:
    """A duration as it is sent; may be NEVER."""
    return NEVER if text == "never" else None if text is None else span(text)


def span(text: str) -> timedelta:
    try:
        return Span.read(text)
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None


def create(
    service: Service,
    call: Call,
    *,
    name: str,
    role: str = Role.ADMIN,
    scopes: str | None = None,
    expires_in: timedelta | None = None,
    networks: Sequence[str] = (),
) -> shown.CreatedToken:
    """`expires_in` may be NEVER; None: LIFETIME."""
    fleet.require_name("token", name)
    roles.access(role, scopes)
    lasts = _required_lifetime(LIFETIME if expires_in is None else expires_in)
    found = roles.parse_networks(networks)

    def work(unit: UnitOfWork) -> shown.CreatedToken:
        # The journal tells who did something by the name of the token.
        for known in unit.transaction.tokens.page():
            if known.name == name and _is_valid(known, unit.now):
                raise errors.ConflictError(
                    f"there is already a token {name!r}: choose another name, or revoke {known.id}",
                    name=name,
                    token=known.id,
                    role=known.role,
                    scopes=known.selector,
                )
        token, secret = _new(unit, name, role)
        token = replace(token, selector=scopes, networks=found, expires_at=_end(unit, lasts))
        return _noted(unit, token, "token.created", call, secret)

    return command(service, call, shown.CreatedToken, work, shown_once="token")


def rotate(
    service: Service, call: Call, token_id: str, *, overlap: timedelta = OVERLAP, expires_in: timedelta | None = None
) -> shown.CreatedToken:
    """A new secret for the same token. The old one works for the `overlap`; without one, its sessions end.

    The token starts a new lifetime of the same length, unless `expires_in` says otherwise."""
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise errors.RefusedError(f"the old secret cannot overlap so long: give 0s to {LONGEST_OVERLAP.days}d")
    if expires_in is not None:
        _required_lifetime(expires_in)
    before: list[str] = []

    def work(unit: UnitOfWork) -> shown.CreatedToken:
        token = unit.transaction.tokens.by_id(token_id)
        if token is None or not _is_valid(token, unit.now):
            raise _not_found(token_id, " that is still valid")
        known = NEVER if token.expires_at is None else token.expires_at - (token.renewed_at or token.created_at)
        secret = _secret()
        rotated = replace(
            token,
            digest=digest_of(secret),
            expires_at=_end(unit, expires_in or known),
            renewed_at=unit.now,
            previous_digest=token.digest if overlap else None,
            previous_until=unit.now + overlap if overlap else None,
        )
        if not overlap:
            unit.transaction.sessions.keep_newest(token.id, 0)
        before.append(token.digest)
        return _noted(unit, rotated, "token.rotated", call, secret)

    made = command(service, call, shown.CreatedToken, work, shown_once="token")
    if before and service.token_file is not None and made.token is not None:
        _replace(service.token_file, before[-1], made.token)
    return made


def _replace(file: Path, digest: str, secret: str) -> None:
    """If the file, which local commands use, holds that token, write the new secret there."""
    try:
        if hashlib.sha256(file.read_bytes().strip()).hexdigest() == digest:
            data_directory.write_secret(file, secret)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning(
            "The token file could not be updated: if it holds the rotated token, write the new secret there",
            action="token.not_kept",
            file=str(file),
            error=str(error),
        )


def create_first(service: Service, keep: Callable[[str], None]) -> bool:
    """When there is no token at all, make the administrator's. It is kept before it is valid, so it is never lost."""

    def work(unit: UnitOfWork) -> bool:
        if unit.transaction.tokens.page():
            return False
        token, secret = _new(unit, "admin", Role.ADMIN)
        keep(secret)
        _noted(unit, token, "token.created", SYSTEM, secret)
        return True

    return service.transact(work)


def list_all(service: Service) -> Page[shown.Token]:
    return page(service, limit=MOST_TOKENS)


def page(
    service: Service, *, after: str | None = None, limit: int = 100, descending: bool = False
) -> Page[shown.Token]:
    with service.store.read() as reader:
        items = [_shown(service, token) for token in reader.tokens.page(after, limit, descending=descending)]
    return base.page(items, limit, "id")


def show(service: Service, token_id: str) -> shown.Token:
    with service.store.read() as reader:
        token = reader.tokens.by_id(token_id)
    if token is None:
        raise _not_found(token_id)
    return _shown(service, token)


def revoke(service: Service, call: Call, token_id: str) -> shown.Token:
    def work(unit: UnitOfWork) -> shown.Token:
        if not unit.transaction.tokens.revoke(token_id, unit.now):
            raise _not_found(token_id, " that is still valid")
        revoked = unit.transaction.tokens.by_id(token_id)
        assert revoked is not None
        draft = unit.draft(World(), call)
        draft.note("token.revoked", id=token_id, name=revoked.name)
        unit.keep(draft)
        return _view(revoked)

    return command(service, call, shown.Token, work)


def never_expiring(service: Service) -> list[str]:
    """Names of the tokens that never expire."""
    with service.store.read() as reader:
        found = reader.tokens.page()
    return [token.name for token in found if token.expires_at is None and token.revoked_at is None]


def authenticate(service: Service, bearer: str, origin: str = "") -> Caller:
    """`origin` is the client's address; empty: the unix socket."""
    digest = digest_of(bearer)
    with service.store.read() as reader:
        token = reader.tokens.by_digest(digest)
    if token is None:
        raise errors.UnauthorizedError
    if not hmac.compare_digest(token.digest, digest):
        # The secret from before a rotation, within its overlap?
        if not hmac.compare_digest(token.previous_digest or "", digest):
            raise errors.UnauthorizedError
        if token.previous_until is None or token.previous_until <= service.clock.now():
            raise _refused(token, "this token was rotated: use its new secret")
    return admit(service, token, origin)


def admit(service: Service, token: Token, origin: str) -> Caller:
    """The caller that holds this token, while it is valid."""
    if token.revoked_at is not None:
        raise _refused(token)
    now = service.clock.now()
    if token.expires_at is not None and token.expires_at <= now:
        raise _refused(
            token, f"this token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC: ask an administrator for a new one"
        )
    if token.networks and not roles.in_networks(token.networks, origin):
        error = errors.ForbiddenError(f"this token may not be used from {origin or roles.LOCAL}")
        error.token = token.id
        raise error
    if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:
        service.used[token.id] = now
    found = caller(token)
    if (scopes := found.access.scopes) is None or not scopes.named:
        return found
    with service.store.read() as reader:
        former = reader.scopes.former(scopes.named)
    scopes = roles.bound(scopes, token.created_at, former)
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


def _not_found(token_id: str, which: str = "") -> errors.NotFoundError:
    return errors.NotFoundError(f"there is no token {token_id!r}{which}", token=token_id)


def _is_valid(token: Token, now: datetime) -> bool:
    return token.revoked_at is None and (token.expires_at is None or token.expires_at > now)


def _required_lifetime(expires_in: timedelta) -> timedelta:
    if expires_in <= timedelta(0):
        raise errors.RefusedError("a token that expires at once is of no use: give a time such as 90d")
    return expires_in


def _end(unit: UnitOfWork, expires_in: timedelta) -> datetime | None:
    return None if expires_in == NEVER else unit.now + expires_in


def _secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _new(unit: UnitOfWork, name: str, role: str) -> tuple[Token, str]:
    secret, token_id = _secret(), unit.service.runtime.new_id()
    return Token(id=token_id, name=name, role=role, digest=digest_of(secret), created_at=unit.now), secret


def _noted(unit: UnitOfWork, token: Token, action: str, call: Call, secret: str) -> shown.CreatedToken:
    """Stored and journalled."""
    unit.transaction.tokens.put(token)
    draft, view = unit.draft(World(), call), _view(token)
    draft.note(action, **{key: value for key, value in msgspec.to_builtins(view).items() if key in NOTED and value})
    unit.keep(draft)
    return shown.CreatedToken(**msgspec.structs.asdict(view), token=secret)


def _shown(service: Service, token: Token) -> shown.Token:
    return _view(replace(token, last_used_at=service.used.get(token.id, token.last_used_at)))


def _view(token: Token) -> shown.Token:
    return views.of(shown.Token, token, role=Role(token.role), scopes=token.selector)
