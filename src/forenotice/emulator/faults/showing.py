"""Faults of the document: what a poll is shown in place of what is true."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum

from forenotice.core.documents import Document
from forenotice.metadata import answers
from forenotice.metadata.answers import Answer
from forenotice.wire import document as wire_document
from forenotice.wire.versions import Version


class Part(Enum):
    """How much of the body is sent."""

    WHOLE = "whole"
    HALF = "half"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a poll is shown, before it is bytes. A document that looks different has another tag, so that no 304 hides
    the fault from a client that knows the true one."""

    document: Document
    version: Version
    part: Part = Part.WHOLE

    def tagged(self, sign: str) -> "Shown":
        return replace(self, document=replace(self.document, tag=f"{self.document.tag}.{sign}"))


@dataclass(slots=True)
class Began:
    """How things were when a fault began."""

    documents: dict[str, Document] = field(default_factory=dict)
    """By scope."""

    def document(self, now: Document) -> Document:
        return self.documents.setdefault(now.scope, now)


Change = Callable[[Shown, Began, timedelta], Shown]


def stale(shown: Shown, began: Began, _: timedelta) -> Shown:
    return replace(shown, document=began.document(shown.document))


def restarted(shown: Shown, began: Began, _: timedelta) -> Shown:
    before = began.document(shown.document).incarnation - 1
    incarnation = max(1, shown.document.incarnation - before)
    return replace(shown, document=replace(shown.document, incarnation=incarnation)).tagged(f"from-{before}")


def skewed(shown: Shown, _: Began, amount: timedelta) -> Shown:
    events = tuple(replace(event, not_before=event.not_before + amount) for event in shown.document.events)
    document = replace(shown.document, events=events)
    return replace(shown, document=document).tagged(f"skew-{amount.total_seconds():g}")


def with_iso_dates(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, version=replace(shown.version, iso_dates=True)).tagged("iso")


def with_rfc1123_dates(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, version=replace(shown.version, iso_dates=False)).tagged("rfc1123")


def with_sorted_keys(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, version=replace(shown.version, keys=tuple(sorted(shown.version.keys)))).tagged("sorted")


def halved(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, part=Part.HALF if shown.part is Part.WHOLE else shown.part)


def emptied(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, part=Part.NONE)


def answer(shown: Shown, condition: str | None) -> tuple[Answer, int]:
    """What is sent, and how many bytes of it are missing at the end."""
    if shown.part is Part.NONE:
        return answers.whole(200, b""), 0
    etag = wire_document.etag(shown.document)
    if shown.part is Part.WHOLE and condition is not None and wire_document.matches(condition, etag):
        return answers.unchanged(shown.document), 0
    body = wire_document.render(shown.document, shown.version)
    found = answers.whole(200, body, answers.JSON + answers.known_by(shown.document))
    return found, (len(body) + 1) // 2 if shown.part is Part.HALF else 0
