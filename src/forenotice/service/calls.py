"""Who asks, from where and why, and how asking twice under one key is asking once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from forenotice import garbage_collection
from forenotice.core import errors, journal
from forenotice.core.draft import World
from forenotice.core.roles import EVERYTHING, Access
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.database import WriteRequest
from forenotice.store.tokens import StoredResponse
from forenotice.store.transaction import Reader
from forenotice.views.base import Response

REMEMBERED = timedelta(hours=24)

R = TypeVar("R", bound=Response)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    actor: str
    token_id: str = ""
    key: str | None = None
    """The Idempotency-Key, if one was given."""
    digest: str = ""
    """Of what is asked: the same key with another digest is a mistake."""
    origin: str = ""
    """The client's address."""
    reason: str = ""
    """Why, in words."""
    access: Access = EVERYTHING
    is_connected: Callable[[], bool] = lambda: True
    """Whether the client is still connected."""

    def because(self, reason: str) -> "Call":
        """A reason in the request itself is the one that counts."""
        return replace(self, reason=reason) if reason else self


SYSTEM = Call(actor=journal.SYSTEM)


def recalled(reader: Reader, call: Call, kind: type[R], now: datetime) -> R | None:
    """The response to the same request under the same key."""
    known = None if call.key is None else reader.responses.find(call.token_id, call.key, now - REMEMBERED)
    if known is None:
        return None
    if known.digest != call.digest:
        raise errors.ConflictError(
            f"Idempotency-Key {call.key!r} was used for another request: choose a new key", key=call.key
        )
    try:
        return msgspec.json.decode(known.result, type=kind)
    except msgspec.ValidationError:
        raise errors.ConflictError(
            f"Idempotency-Key {call.key!r} was used before the service was upgraded: look at what it did, then choose "
            "a new key",
            key=call.key,
        ) from None


def command(
    service: Service,
    call: Call,
    kind: type[R],
    work: Callable[[UnitOfWork], R],
    *,
    shown_once: str = "",
    asked: str = "",
    only_looks: bool = False,
    about: Mapping[str, str] | None = None,
    **names: str,
) -> R:
    """Do the work once per key; its result is kept in the same transaction, but for a field that is secret.

    When there was nothing to do, the journal has what was asked, and about whom; of the same again only now and then.
    `about` is what is known only after the work.
    """

    @garbage_collection.paused()
    def once(unit: UnitOfWork) -> R:
        known = recalled(unit.transaction, call, kind, unit.now)
        if known is not None:
            return known
        result = work(unit)
        in_vain = not only_looks and not any(changes.entries for changes in unit.kept)
        concerned = {**names, **(about or {})}
        if in_vain and service.repeats.is_news(call.actor, (asked, *sorted(concerned.items())), unit.now):
            draft = unit.draft(World(), call)
            draft.note("command.unchanged", asked=asked, **concerned)
            unit.keep(draft)
        if call.key is None or in_vain:
            # What changed nothing can be done again; keeping each answer would fill the store.
            return result
        kept = msgspec.structs.replace(result, **{shown_once: None}) if shown_once else result
        response = StoredResponse(
            token=call.token_id,
            key=call.key,
            digest=call.digest,
            status=200,
            result=msgspec.json.encode(kept),
            at=unit.now,
        )
        unit.transaction.responses.put(response)
        return result

    return service.transact(once, WriteRequest(seconds=call.access.write_seconds, is_connected=call.is_connected))
