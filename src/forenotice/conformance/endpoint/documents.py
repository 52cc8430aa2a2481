"""What an event in a document must look like."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any

from forenotice.client import errors as client_errors
from forenotice.client.events import parse_date
from forenotice.clock import MachineClock
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import JSON, Requester, Response, get, pause
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
    return parse_date(text) if isinstance(text, str) else None


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


KEYS = ("DocumentIncarnation", "Events")
EMPTY_ANSWERS = 5
"""So often a version is asked again that answers 200 without a body."""
NO_DOCUMENT_YET = "no document yet: the 200 had no body"

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ROLE_INSTANCE = re.compile(r".+_IN_\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One that could be read."""

    version: Version
    incarnation: int = 0
    events: Sequence[Event] = ()
    response: Response

    @property
    def is_blank(self) -> bool:
        """A 200 without a body, which the real service may answer at first: there is no document yet."""
        return not self.response.body.strip()

    @property
    def tag(self) -> str:
        return self.response.headers.get("etag", "")

    @property
    def date(self) -> datetime:
        """By the endpoint's clock if it says, else by ours."""
        return client_errors.date_of(self.response.answer) or MachineClock().now()

    def event(self, event_id: str) -> Event | None:
        return next((event for event in self.events if same_id(event, event_id)), None)


class Documents:
    """Asks for documents, and judges every one of them."""

    def __init__(self, http: Requester, findings: Findings, newest: Version) -> None:
        self._http = http
        self._findings = findings
        self.newest = newest
        """Of those that are judged; the others are held against it."""
        self._blank: set[Version] = set()
        """In which no document came, however often it was asked for."""
        self._known: dict[tuple[str, int], tuple[bytes, str]] = {}
        self._last: dict[str, Document] = {}
        self._latest: Document | None = None
        self._facts: dict[tuple[str, str], dict[str, object]] = {}
        self.started: set[str] = set()
        """Ids of events that have been seen so."""

    def fetch(self, version: Version, timeout: float | None = None) -> Document | None:
        request = get(version.name)
        response = self._http.send(request, timeout)
        for _ in range(EMPTY_ANSWERS):
            if response.status != 200 or response.body.strip() or version in self._blank:
                break
            pause(self._http.pace.settles)
            response = self._http.send(request)
        return self.read(version, response)

    def read(self, version: Version, response: Response) -> Document | None:
        judge = partial(self._findings.judge, response=response)
        if not judge("endpoint.get", version, response.status == 200, "200", response):
            return None
        if not response.body.strip() and version.name not in self._last:
            self._blank.add(version)
            self._findings.skip_all(version, NO_DOCUMENT_YET, "document", "etag", "wait")
            return Document(version=version, response=response)
        judge("document.content-type", version, response.media_type == JSON, JSON, response.media_type)
        judge("etag.present", version, "etag" in response.headers, "an ETag", "none")
        try:
            found = json.loads(response.body.decode(), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            judge("document.compact", version, False, "JSON in UTF-8", error if response.body else "no body")
            return None
        blank = re.search(rb"\s", _STRINGS.sub(b"", response.body))
        judge("document.compact", version, blank is None, "no blanks or lines between parts", response.body[:40])
        document = self._shaped(version, response, found)
        if document is not None:
            self._compare(document)
            ids = [str(event.get("EventId")).upper() for event in document.events]
            for event in document.events:
                self._judge(document, event)
                once = ids.count(str(event.get("EventId")).upper()) == 1
                judge("event.once", version, once, "each id once", written(ids))
                self._judge_facts(document, event)
        return document

    def _shaped(self, version: Version, response: Response, found: Any) -> Document | None:
        judge = partial(self._findings.judge, response=response)
        if not isinstance(found, dict) or not isinstance(found.get("Events"), list):
            judge("document.shape", version, False, f"{' and '.join(KEYS)}", response.body[:60])
            return None
        listed = [event for event in found["Events"] if isinstance(event, dict)]
        sound = set(found) == set(KEYS) and len(listed) == len(found["Events"])
        judge("document.shape", version, sound, " and ".join(KEYS), ", ".join(found))
        judge("document.order", version, _in_order(found, KEYS), ", ".join(KEYS), ", ".join(found))
        number = found.get("DocumentIncarnation")
        judge("document.number", version, type(number) is int and number >= 1, "a number from 1 on", json.dumps(number))
        return Document(version=version, incarnation=_number(number), events=listed, response=response)

    # Beside others

    def _compare(self, new: Document) -> None:
        judge, version = partial(self._findings.judge, response=new.response), new.version
        digest = sha256(new.response.body).digest()
        body, tag = self._known.setdefault((version.name, new.incarnation), (digest, new.tag))
        judge("document.stable", version, body == digest, "the same bytes", f"others with number {new.incarnation}")
        if new.tag:
            judge("etag.stable", version, tag == new.tag, tag, new.tag)
        last, latest = self._last.get(version.name), self._latest
        self._last[version.name] = self._latest = new
        if last is not None and last.events != new.events:
            grown = f"more than {last.incarnation}"
            judge("document.grows", version, new.incarnation > last.incarnation, grown, new.incarnation)
            if new.tag:
                judge("etag.changes", version, new.tag != last.tag, "another tag", f"{new.tag} again")
        elif last is not None and new.incarnation < last.incarnation:
            judge("document.grows", version, False, f"at least {last.incarnation}", new.incarnation)
        if latest is not None and latest.version is not version:
            self._compare_versions(latest, new)

    def _compare_versions(self, earlier: Document, later: Document) -> None:
        judge = partial(self._findings.judge, response=later.response)
        other = later.version if earlier.version is self.newest else earlier.version
        at_least = f"at least {earlier.incarnation}, as in {earlier.version.name} before"
        judge("document.all-versions", other, later.incarnation >= earlier.incarnation, at_least, later.incarnation)
        judge("document.all-versions", self.newest, True)
        newest = self._last.get(self.newest.name)
        if newest is None or newest.incarnation != later.incarnation or not newest.events:
            return
        version = later.version
        wanted = [str(event.get("EventId")) for event in newest.events if is_known(event, version)]
        listed = [str(event.get("EventId")) for event in later.events if is_known(event, version)]
        judge("version.same-events", version, wanted == listed, written(wanted), written(listed))
        for clause in ("version.same-events", "version.same-facts"):
            judge(clause, self.newest, True)
        for event in later.events:
            twin = newest.event(str(event.get("EventId")))
            if twin is None:
                continue
            # The names of VMs differ between versions, and have a clause of their own.
            wanted_facts, found = facts(twin), facts(event)
            for key in (wanted_facts.keys() & found.keys()) - {"Resources"}:
                same = wanted_facts[key] == found[key]
                judge("version.same-facts", version, same, f"{key} {wanted_facts[key]}", found[key])
            if isinstance(twin.get("Resources"), list):
                names = [_named(name, version) for name in twin["Resources"]]
                resources = event.get("Resources")
                judge("version.names", version, resources == names, written(names), json.dumps(resources))

    def _judge_facts(self, document: Document, event: Event) -> None:
        """Beside what was known of it; only VMs may be dropped."""
        version = document.version
        known = self._facts.setdefault((version.name, str(event.get("EventId")).upper()), {})
        for key, value in facts(event).items():
            before = known.get(key, value)
            dropped = isinstance(value, list) and isinstance(before, list) and all(name in before for name in value)
            same = value == before or dropped
            self._findings.judge("life.same-facts", version, same, f"{key} {before}", value, document.response)
            known[key] = value

    # By itself

    def _judge(self, document: Document, event: Event) -> None:
        judge, version = partial(self._findings.judge, response=document.response), document.version
        judge("event.keys", version, set(event) == set(version.keys), ", ".join(version.keys), ", ".join(event))
        judge("document.order", version, _in_order(event, version.keys), ", ".join(version.keys), ", ".join(event))
        if status(event) == "Started":
            judge("life.started", version, True)
            self.started.add(str(event.get("EventId")))
        for clause, check in CHECKS.items():
            wrong = check(event, version)
            if wrong is not INAPPLICABLE:
                expected, seen = wrong or ("", "")
                judge(clause, version, wrong is None, expected, seen)


def _named(name: object, version: Version) -> str:
    """As this version writes what the newest calls so."""
    text = str(name)
    return f"_{text}" if version.underscore and not _ROLE_INSTANCE.fullmatch(text) else text


def _number(found: object) -> int:
    """Also what is wrongly written may be reckoned with."""
    try:
        return int(found)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _in_order(found: Mapping[str, object], keys: Sequence[str]) -> bool:
    return [key for key in found if key in keys] == [key for key in keys if key in found]
