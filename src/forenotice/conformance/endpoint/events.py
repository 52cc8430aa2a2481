"""What an event in a document must look like."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from forenotice.client import moments
from forenotice.core.operations import EventType
from forenotice.wire import dates
from forenotice.wire.versions import Version

FACTS = ("EventType", "ResourceType", "Resources", "Description", "EventSource", "DurationInSeconds")
_GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")

Event = Mapping[str, Any]
Wrong = tuple[str, object]
"""What was expected, and what was seen."""
INAPPLICABLE: Wrong = ("", "")
Check = Callable[[Event, Version], Wrong | None]


def _types(event: Event, version: Version) -> Wrong | None:
    kind = event.get("EventType")
    return None if is_known(event, version) else (written(sorted(version.types)), json.dumps(kind))


def _names(event: Event, version: Version) -> Wrong | None:
    """What can be said without another version to hold it against."""
    resources = event.get("Resources")
    if not isinstance(resources, list) or version.underscore:
        return INAPPLICABLE
    wrong = [name for name in resources if str(name).startswith("_")]
    return ("names without a leading underscore", written(wrong)) if wrong else None


def _not_before(event: Event, version: Version) -> Wrong | None:
    if status(event) != "Scheduled":
        return INAPPLICABLE
    text = event.get("NotBefore")
    form = "RFC 1123 or ISO 8601" if version.iso_dates else "RFC 1123"
    moment = _strictly(text)
    if moment is not None and (version.iso_dates or dates.http(moment) == text):
        return None
    return (f"a time as {form} writes it", json.dumps(text))


def _blank(event: Event, version: Version) -> Wrong | None:
    started = status(event) == "Started"
    return _value("NotBefore", '""', lambda found: found == "")(event, version) if started else INAPPLICABLE


def _value(key: str, expected: str, is_sound: Callable[[Any], object]) -> Check:
    def check(event: Event, _: Version) -> Wrong | None:
        found = event.get(key)
        return None if is_sound(found) else (expected, json.dumps(found))

    return check


def _are_names(found: object) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(name, str) and name for name in found)


CHECKS: Mapping[str, Check] = {
    "version.types": _types,
    "version.names": _names,
    "event.id": _value(
        "EventId", "a GUID in upper case", lambda found: isinstance(found, str) and _GUID.fullmatch(found)
    ),
    "event.status": _value("EventStatus", "Scheduled or Started", lambda found: found in ("Scheduled", "Started")),
    "event.not-before": _not_before,
    "event.blank": _blank,
    "event.resource-type": _value("ResourceType", "VirtualMachine", lambda found: found == "VirtualMachine"),
    "event.resources": _value("Resources", "a list of names", _are_names),
    "event.description": _value("Description", "text", lambda found: isinstance(found, str)),
    "event.source": _value("EventSource", "Platform or User", lambda found: found in ("Platform", "User")),
    "event.duration": _value(
        "DurationInSeconds", "a whole number from -1 on", lambda found: type(found) is int and found >= -1
    ),
}


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
    return moments.read(text) if isinstance(text, str) else None


def known_type(event: Event) -> EventType | None:
    kind = event.get("EventType")
    return EventType(kind) if isinstance(kind, str) and kind in set(EventType) else None


def same_id(event: Event, event_id: str) -> bool:
    return str(event.get("EventId", "")).upper() == event_id.upper()


def is_known(event: Event, version: Version) -> bool:
    return known_type(event) in version.types


def written(things: Iterable[object]) -> str:
    return ", ".join(map(str, things)) or "none"


def _strictly(text: object) -> datetime | None:
    try:
        return dates.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None
