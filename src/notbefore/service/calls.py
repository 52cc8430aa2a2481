"""Who asks, and how asking twice under one key is asking once."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from notbefore import garbage
from notbefore.core import errors
from notbefore.service.context import Service, Session

REMEMBERED = timedelta(hours=24)

View = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    actor: str
    token_id: str = ""
    key: str | None = None
    """The Idempotency-Key, if one was given."""
    digest: str = ""
    """Of what is asked: the same key with another digest is a mistake."""


SYSTEM = Call(actor="system")


def command(service: Service, call: Call, work: Callable[[Session], View], *, shown_once: str = "") -> View:
    """Do the work once per key; its result is kept in the same transaction, but for a field that is secret."""

    @garbage.put_off()
    def once(session: Session) -> View:
        if call.key is None:
            return work(session)
        known = session.transaction.recall(call.token_id, call.key, session.now - REMEMBERED)
        if known is not None:
            if known.digest != call.digest:
                raise errors.ConflictError(
                    f"Idempotency-Key {call.key!r} was used for another request: choose a new key", key=call.key
                )
            remembered: View = msgspec.json.decode(known.result)
            return remembered
        result = work(session)
        kept = {name: None if name == shown_once else value for name, value in result.items()}
        session.transaction.remember(call.token_id, call.key, call.digest, 200, msgspec.json.encode(kept), session.now)
        return result

    return service.transact(once)
