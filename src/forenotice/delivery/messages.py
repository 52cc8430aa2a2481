"""An entry of the journal as a CloudEvent, signed."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from forenotice import signing
from forenotice.core.journal import Entry
from forenotice.delivery import filters
from forenotice.service import views
from forenotice.service.context import Service, UnitOfWork

INSTALLATION = "installation"
TEST = "subscription.test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    headers: Mapping[str, str]
    body: bytes


def source(service: Service) -> str:
    """Names this installation, and its epoch: an id is unique only together with it, and a backup repeats positions."""
    with service.store.read() as reader:
        known, epoch = reader.meta(INSTALLATION), reader.epoch()

    def settle(unit: UnitOfWork) -> str:
        made = unit.transaction.meta(INSTALLATION) or str(uuid.uuid4())
        unit.transaction.put_meta(INSTALLATION, made)
        return made

    return f"urn:uuid:{known or service.transact(settle)}" + (f"#{epoch:x}" if epoch else "")


def render(source: str, position: int, entry: Entry, event: views.View | None) -> CloudEvent:
    """`event` is how the event that it is about is now."""
    attributes = {
        "id": str(position),
        "source": source,
        "type": filters.type_of(entry.action),
        "time": entry.at,
        "datacontenttype": "application/json",
        **_subject(entry),
    }
    return CloudEvent(attributes, {"entry": views.entry(position, entry), "event": event})


def test(source: str, name: str, now: datetime, new_id: str) -> CloudEvent:
    """What a receiver is sent to see whether it answers; it is in no journal."""
    attributes: dict[str, Any] = {
        "id": new_id,
        "source": source,
        "type": filters.type_of(TEST),
        "time": now,
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, {"entry": None, "event": None, "subscription": name})


def signed(event: CloudEvent, secret: str, now: datetime) -> Message:
    made = http.to_structured(event, JSONFormat())
    return Message(headers={**made.headers, **signing.headers(secret, made.body, now)}, body=made.body)


def _subject(entry: Entry) -> dict[str, str]:
    about = entry.event or entry.operation or entry.rollout or entry.vm or entry.host or entry.scope
    return {"subject": about} if about else {}
