"""What a document and an event in it must look like."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from forenotice.client import errors as client_errors
from forenotice.client.events import parse_date
from forenotice.clock import MachineClock
from forenotice.conformance.endpoint.http import Response
from forenotice.core.operations import EventType
from forenotice.wire import dates
from forenotice.wire.versions import Version

KEYS = ("DocumentIncarnation", "Events")
FACTS = ("EventType", "ResourceType", "Resources", "Description", "EventSource", "DurationInSeconds")
_GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ROLE_INSTANCE = re.compile(r".+_IN_\d+", re.ASCII)

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One that could be read."""

    version: Version
    incarnation: int = 0
    events: Sequence[Event] = ()
    response: Response

    @property
    def is_blank(self) -> bool:
        """A 200 without a body, which the real service may send at first: there is no document yet."""
        return not self.response.body.strip()

    @property
    def tag(self) -> str:
        return self.response.headers.get("etag", "")

    @property
    def date(self) -> datetime:
        """By the endpoint's clock if it has a Date, else by ours."""
        return client_errors.date_of(self.response) or MachineClock().now()

    def event(self, event_id: str) -> Event | None:
        """None also for events without an id: they cannot be told apart."""
        identified = (event for event in self.events if "EventId" in event)
        return next((event for event in identified if id_of(event).upper() == event_id.upper()), None)


def decode(body: bytes) -> Any:
    """ValueError or RecursionError: it is not JSON in UTF-8, or has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key is there twice")
        return found

    return json.loads(body.decode(), object_pairs_hook=once)


def is_compact(body: bytes) -> bool:
    return re.search(rb"\s", _STRINGS.sub(b"", body)) is None


def in_order(found: Mapping[str, object], keys: Sequence[str]) -> bool:
    return [key for key in found if key in keys] == [key for key in keys if key in found]


def number(found: object) -> int:
    """Also a number that is wrongly written can be compared."""
    try:
        return int(found)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0


def written(things: Iterable[object]) -> str:
    return ", ".join(map(str, things)) or "none"


# An event


def id_of(event: Event) -> str:
    return str(event.get("EventId"))


def facts(event: Event) -> dict[str, object]:
    """What stays as it is while an event is listed, as far as it is there; NotBefore only while it is Scheduled."""
    found = {key: event[key] for key in FACTS if key in event}
    moment = not_before(event) if status(event) == "Scheduled" else None
    return found if moment is None else {**found, "NotBefore": moment}


def status(event: Event) -> str:
    """What is meant, in whatever case it is written: that has a clause of its own."""
    return str(event.get("EventStatus")).capitalize()


def not_before(event: Event) -> datetime | None:
    """None where it cannot be read as a time."""
    text = event.get("NotBefore")
    return parse_date(text) if isinstance(text, str) else None


def known_type(event: Event) -> EventType | None:
    kind = event.get("EventType")
    return EventType(kind) if isinstance(kind, str) and kind in set(EventType) else None


def is_known(event: Event, version: Version) -> bool:
    return known_type(event) in version.types


def renamed(name: object, version: Version) -> str:
    """As this version writes the VM that the newest calls so."""
    text = str(name)
    return f"_{text}" if version.underscore and not _ROLE_INSTANCE.fullmatch(text) else text


Check = tuple[str, str, Callable[[Any], object]]
"""A key, what is expected of its value in words, and whether a value is so."""


def checks(event: Event, version: Version) -> Mapping[str, Check]:
    """By clause, as far as the event can be judged alone."""
    found: dict[str, Check] = {
        "version.types": ("EventType", written(sorted(version.types)), lambda _: is_known(event, version)),
        "event.id": ("EventId", "a GUID in upper case", lambda text: isinstance(text, str) and _GUID.fullmatch(text)),
        "event.status": ("EventStatus", "Scheduled or Started", lambda text: text in ("Scheduled", "Started")),
        "event.resource-type": ("ResourceType", "VirtualMachine", lambda text: text == "VirtualMachine"),
        "event.resources": ("Resources", "a list of names", _are_names),
        "event.description": ("Description", "text", lambda text: isinstance(text, str)),
        "event.source": ("EventSource", "Platform or User", lambda text: text in ("Platform", "User")),
        "event.duration": (
            "DurationInSeconds",
            "a whole number from -1 on",
            lambda seconds: type(seconds) is int and seconds >= -1,
        ),
    }
    if isinstance(event.get("Resources"), list) and not version.underscore:
        found["version.names"] = ("Resources", "names without a leading underscore", _have_no_underscore)
    if status(event) == "Scheduled":
        form = "RFC 1123 or ISO 8601" if version.iso_dates else "RFC 1123"
        found["event.not-before"] = ("NotBefore", f"a time as {form} writes it", lambda text: _is_date(text, version))
    elif status(event) == "Started":
        found["event.blank"] = ("NotBefore", '""', lambda text: text == "")
    return found


def _are_names(found: object) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(name, str) and name for name in found)


def _have_no_underscore(names: Sequence[object]) -> bool:
    return not any(str(name).startswith("_") for name in names)


def _is_date(text: object, version: Version) -> bool:
    try:
        moment = dates.parse(text) if isinstance(text, str) else None
    except ValueError:
        return False
    return moment is not None and (version.iso_dates or dates.http(moment) == text)
