"""Judging documents: each by itself, and beside those that came before it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any

from forenotice.client import refusals
from forenotice.clock import MachineClock
from forenotice.conformance.endpoint import events
from forenotice.conformance.endpoint.asking import JSON, Asker, Heard, pause
from forenotice.conformance.endpoint.events import Event
from forenotice.conformance.endpoint.questions import get
from forenotice.conformance.endpoint.sheet import Sheet
from forenotice.wire.versions import Version

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
    heard: Heard

    @property
    def is_blank(self) -> bool:
        """A 200 without a body, which the real service may answer at first: there is no document yet."""
        return not self.heard.body.strip()

    @property
    def tag(self) -> str:
        return self.heard.headers.get("etag", "")

    @property
    def date(self) -> datetime:
        """By the endpoint's clock if it says, else by ours."""
        return refusals.date(self.heard.answer) or MachineClock().now()

    def event(self, event_id: str) -> Event | None:
        return next((event for event in self.events if events.same_id(event, event_id)), None)


class Documents:
    """Asks for documents, and judges every one of them."""

    def __init__(self, asker: Asker, sheet: Sheet, newest: Version) -> None:
        self._asker = asker
        self._sheet = sheet
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

    def ask(self, version: Version, timeout: float | None = None) -> Document | None:
        question = get(version.name)
        heard = self._asker.ask(question, timeout)
        for _ in range(EMPTY_ANSWERS):
            if heard.status != 200 or heard.body.strip() or version in self._blank:
                break
            pause(self._asker.pace.settles)
            heard = self._asker.ask(question)
        return self.read(version, heard)

    def read(self, version: Version, heard: Heard) -> Document | None:
        judge = partial(self._sheet.judge, heard=heard)
        if not judge("endpoint.get", version, heard.status == 200, "200", heard):
            return None
        if not heard.body.strip() and version.name not in self._last:
            self._blank.add(version)
            self._sheet.skip_all(version, NO_DOCUMENT_YET, "document", "etag", "wait")
            return Document(version=version, heard=heard)
        judge("document.content-type", version, heard.media_type == JSON, JSON, heard.media_type)
        judge("etag.present", version, "etag" in heard.headers, "an ETag", "none")
        try:
            found = json.loads(heard.body.decode(), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            judge("document.compact", version, False, "JSON in UTF-8", error if heard.body else "no body")
            return None
        blank = re.search(rb"\s", _STRINGS.sub(b"", heard.body))
        judge("document.compact", version, blank is None, "no blanks or lines between parts", heard.body[:40])
        document = self._shaped(version, heard, found)
        if document is not None:
            self._compare(document)
            ids = [str(event.get("EventId")).upper() for event in document.events]
            for event in document.events:
                self._judge(document, event)
                once = ids.count(str(event.get("EventId")).upper()) == 1
                judge("event.once", version, once, "each id once", events.written(ids))
                self._judge_facts(document, event)
        return document

    def _shaped(self, version: Version, heard: Heard, found: Any) -> Document | None:
        judge = partial(self._sheet.judge, heard=heard)
        if not isinstance(found, dict) or not isinstance(found.get("Events"), list):
            judge("document.shape", version, False, f"{' and '.join(KEYS)}", heard.body[:60])
            return None
        listed = [event for event in found["Events"] if isinstance(event, dict)]
        sound = set(found) == set(KEYS) and len(listed) == len(found["Events"])
        judge("document.shape", version, sound, " and ".join(KEYS), ", ".join(found))
        judge("document.order", version, _in_order(found, KEYS), ", ".join(KEYS), ", ".join(found))
        number = found.get("DocumentIncarnation")
        judge("document.number", version, type(number) is int and number >= 1, "a number from 1 on", json.dumps(number))
        return Document(version=version, incarnation=_number(number), events=listed, heard=heard)

    # Beside others

    def _compare(self, new: Document) -> None:
        judge, version = partial(self._sheet.judge, heard=new.heard), new.version
        digest = sha256(new.heard.body).digest()
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
        judge = partial(self._sheet.judge, heard=later.heard)
        other = later.version if earlier.version is self.newest else earlier.version
        at_least = f"at least {earlier.incarnation}, as in {earlier.version.name} before"
        judge("document.all-versions", other, later.incarnation >= earlier.incarnation, at_least, later.incarnation)
        judge("document.all-versions", self.newest, True)
        newest = self._last.get(self.newest.name)
        if newest is None or newest.incarnation != later.incarnation or not newest.events:
            return
        version = later.version
        wanted = [str(event.get("EventId")) for event in newest.events if events.is_known(event, version)]
        listed = [str(event.get("EventId")) for event in later.events if events.is_known(event, version)]
        judge("version.same-events", version, wanted == listed, events.written(wanted), events.written(listed))
        for clause in ("version.same-events", "version.same-facts"):
            judge(clause, self.newest, True)
        for event in later.events:
            twin = newest.event(str(event.get("EventId")))
            if twin is None:
                continue
            # The names of VMs differ between versions, and have a clause of their own.
            facts, found = events.facts(twin), events.facts(event)
            for key in (facts.keys() & found.keys()) - {"Resources"}:
                same = facts[key] == found[key]
                judge("version.same-facts", version, same, f"{key} {facts[key]}", found[key])
            if isinstance(twin.get("Resources"), list):
                names = [_named(name, version) for name in twin["Resources"]]
                resources = event.get("Resources")
                judge("version.names", version, resources == names, events.written(names), json.dumps(resources))

    def _judge_facts(self, document: Document, event: Event) -> None:
        """Beside what was known of it; only VMs may be dropped."""
        version = document.version
        known = self._facts.setdefault((version.name, str(event.get("EventId")).upper()), {})
        for key, value in events.facts(event).items():
            before = known.get(key, value)
            dropped = isinstance(value, list) and isinstance(before, list) and all(name in before for name in value)
            same = value == before or dropped
            self._sheet.judge("life.same-facts", version, same, f"{key} {before}", value, document.heard)
            known[key] = value

    # By itself

    def _judge(self, document: Document, event: Event) -> None:
        judge, version = partial(self._sheet.judge, heard=document.heard), document.version
        judge("event.keys", version, set(event) == set(version.keys), ", ".join(version.keys), ", ".join(event))
        judge("document.order", version, _in_order(event, version.keys), ", ".join(version.keys), ", ".join(event))
        if events.status(event) == "Started":
            judge("life.started", version, True)
            self.started.add(str(event.get("EventId")))
        for clause, check in events.CHECKS.items():
            wrong = check(event, version)
            if wrong is not events.INAPPLICABLE:
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
