"""An entry of the journal as a CloudEvent, signed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from forenotice import signatures
from forenotice.core import errors, selectors
from forenotice.core.journal import ACTIONS, OF_TOKENS, Entry
from forenotice.core.operations import OF_EVENTS, Status
from forenotice.service import views
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.subscriptions import Subscription
from forenotice.store.transaction import Reader
from forenotice.views import maintenance

INSTALLATION = "installation"
TEST = "subscription.test"
PREFIX = "forenotice."
PATTERN = re.compile(r"[a-z_.*]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    headers: Mapping[str, str]
    body: bytes


def source(service: Service) -> str:
    """Names this installation, and its epoch: an id is unique only together with it, and a backup repeats positions."""
    with service.store.read() as reader:
        known, epoch = reader.meta.get(INSTALLATION), reader.meta.epoch()

    def settle(unit: UnitOfWork) -> str:
        made = unit.transaction.meta.get(INSTALLATION) or service.runtime.new_id()
        unit.transaction.meta.put(INSTALLATION, made)
        return made

    return f"urn:uuid:{known or service.transact(settle)}" + (f"#{epoch:x}" if epoch else "")


def render(source: str, position: int, entry: Entry, event: maintenance.Event | None) -> CloudEvent:
    """`event` is how the event that it is about is now."""
    data = msgspec.to_builtins({"entry": views.entry(position, entry), "event": event})
    about = entry.event or entry.operation or entry.rollout or entry.vm or entry.host or entry.scope
    return _cloud_event(source, str(position), entry.action, entry.at, data, **({"subject": about} if about else {}))


def test(source: str, name: str, now: datetime, new_id: str) -> CloudEvent:
    """A message to test a receiver, which is in no journal."""
    return _cloud_event(source, new_id, TEST, now, {"entry": None, "event": None, "subscription": name})


def _cloud_event(source: str, key: str, action: str, at: datetime, data: Any, **more: str) -> CloudEvent:
    attributes = {"id": key, "source": source, "type": type_of(action), "time": at, **more}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, data)


def signed(event: CloudEvent, secret: str, now: datetime) -> Message:
    made = http.to_structured(event, JSONFormat())
    return Message(headers={**made.headers, **signatures.headers(secret, made.body, now)}, body=made.body)


# Whatever else is noted of an event happens before it starts.
_STATUSES: Mapping[str, Status] = {f"event.{status.lower()}": status for status in OF_EVENTS}


def type_of(action: str) -> str:
    """The CloudEvents type of what the journal notes as `action`."""
    return PREFIX + action


def types(patterns: Sequence[str]) -> tuple[str, ...]:
    """As they are kept: `event.*` stands for `forenotice.event.*`. What nothing can ever be of is refused."""
    for pattern in patterns:
        if not PATTERN.fullmatch(pattern):
            raise errors.RefusedError(
                f"{pattern[:80]!r} is not a type: give one such as forenotice.event.started or forenotice.event.*"
            )
    return tuple(_that_fits(pattern if pattern.startswith((PREFIX, "*")) else PREFIX + pattern) for pattern in patterns)


def _that_fits(pattern: str) -> str:
    known = sorted(map(type_of, ACTIONS))
    if not any(fnmatchcase(each, pattern) for each in known):
        nouns = sorted({each.rpartition(".")[0] + ".*" for each in known})
        near = get_close_matches(pattern, [*known, *nouns], 1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(nouns)}"
        raise errors.RefusedError(f"nothing is ever of the type {pattern}: {remedy}", type=pattern, known=known)
    return pattern


def entry_at(reader: Reader, position: int) -> Entry | None:
    """None: it is no longer in the history."""
    return next((entry for found, entry in reader.journal.page(after=position - 1, limit=1) if found == position), None)


def lane(entry: Entry) -> str:
    """Entries of one lane are delivered in order: those of an event, else of an operation, else all without either."""
    return entry.event or entry.operation or ""


def status(entry: Entry) -> Status | None:
    """That of its event, once this had happened."""
    return None if entry.event is None else _STATUSES.get(entry.action, Status.SCHEDULED)


class EntryFilter:
    """Nothing given means everything."""

    def __init__(self, subscription: Subscription) -> None:
        self._types = subscription.types
        self._scopes = selectors.of_scopes(subscription.groups) if subscription.groups else None
        self._statuses = subscription.statuses

    def __contains__(self, entry: object) -> bool:
        return (
            isinstance(entry, Entry)
            and not entry.action.startswith(OF_TOKENS)
            and (not self._types or any(fnmatchcase(type_of(entry.action), pattern) for pattern in self._types))
            and (self._scopes is None or entry.scope in self._scopes)
            and (not self._statuses or status(entry) in self._statuses)
        )
