"""Judging the life of provoked events: announced, approved, Started, gone."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from time import monotonic

from forenotice.client import refusals
from forenotice.conformance.endpoint import approvals, events, refused, repeats
from forenotice.conformance.endpoint.asking import Asker, Flight, Heard, pause
from forenotice.conformance.endpoint.clauses import Needs
from forenotice.conformance.endpoint.documents import Document, Documents
from forenotice.conformance.endpoint.events import Event
from forenotice.conformance.endpoint.provoking import Provoke, Provoked
from forenotice.conformance.endpoint.questions import post
from forenotice.conformance.endpoint.sheet import Sheet
from forenotice.conformance.endpoint.tags import LONG_WAIT, Tags
from forenotice.conformance.endpoint.watching import Watch
from forenotice.core import errors
from forenotice.core.operations import EventType
from forenotice.wire.versions import Version

EVENTS = 2
"""One is approved in the oldest version that is judged, one in the newest."""

RESERVED = 4.0
"""Seconds of the notice that are kept for the approval itself, at the pace of a polite client."""
LATE = "its NotBefore had been reached"

NOTICES: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(minutes=15),
    EventType.REBOOT: timedelta(minutes=15),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(minutes=5),
}
"""At least (PROTOCOL, notice)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The first document that shows an event, and the last one before."""

    event: Event
    before: Document
    document: Document

    @property
    def event_id(self) -> str:
        return str(self.event.get("EventId"))

    @property
    def is_scheduled(self) -> bool:
        return bool(self.event.get("EventStatus") == "Scheduled")


class Life:
    def __init__(
        self,
        asker: Asker,
        sheet: Sheet,
        documents: Documents,
        tags: Tags,
        versions: Sequence[Version],
        *,
        provoke: Provoke,
        speed: float,
    ) -> None:
        self._asker = asker
        self._sheet = sheet
        self._documents = documents
        self._tags = tags
        self._versions = versions
        self._provoke = provoke
        self._speed = speed
        self._refused = list(refused.everything(versions))
        self._pending = list(repeats.everything(versions))
        self._ended: list[str] = []
        self.seen: list[Event] = []

    def run(self) -> None:
        for version in (self._versions[0], self._versions[-1]):
            if not self._live(version):
                break
        pause(self._asker.pace.settles)
        documents = [found for version in self._versions if (found := self._documents.ask(version)) is not None]
        for event_id in self._ended:
            back = any(document.event(event_id) for document in documents)
            self._sheet.judge("life.forwards", None, not back, "gone for good", "listed again")
        if self.seen:
            for left in self._refused:
                self._sheet.skip(left.clause, left.version, "the notice was over before it could be sent")
            for repeat in self._pending:
                self._sheet.skip(repeat.clause, repeat.version, "the events were over before it could be sent")

    def _live(self, version: Version) -> bool:
        """One event from its announcement to its end; whether it came to that."""
        before = self._documents.ask(self._documents.newest)
        if before is None or before.events:
            return self._fail("others that are announced already" if before else "no document")
        with ExitStack() as stack:
            flights = {} if self._ended else self._waits()
            for flight in flights.values():
                stack.callback(flight.close)
            try:
                provoked = self._provoke()
            except errors.RefusedError as error:
                return self._fail(error.message)
            stack.push(lambda kind, *_: provoked.close(at_once=kind is not None))
            sighting = self._appear(provoked, before)
            if sighting is None:
                return False
            self.seen.append(sighting.event)
            self._judge_waits(flights)
            self._judge_announced(sighting)
            if sighting.is_scheduled:
                self._judge_refused(sighting)
            return self._carry_on(sighting, version)

    # Announced

    def _waits(self) -> dict[Version, Flight]:
        found = {}
        for version in self._tags.waiting:
            document = self._documents.ask(version)
            if document is not None:
                found[version] = self._tags.wait(version, document.tag, LONG_WAIT)
        return found

    def _appear(self, provoked: Provoked, before: Document) -> Sighting | None:
        seconds = self._asker.pace.appears
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            document = self._documents.ask(self._documents.newest)
            if document is not None and document.events:
                self._sheet.judge("life.appears", None, True, "", "")
                return Sighting(event=document.events[0], before=before, document=document)
            before = document or before
            failure = provoked.failure()
            if failure:
                self._fail(f"none: the command {failure}")
                return None
            pause(self._asker.pace.between)
        self._fail(f"none within {seconds:g} s")
        return None

    def _fail(self, seen: str) -> bool:
        self._sheet.judge("life.appears", None, False, "an event", seen)
        why = f"the provoked event did not appear: {seen}"
        self._sheet.unseen |= {Needs.EVENT: why, Needs.PROVOKED: why}
        return False

    def _judge_waits(self, flights: Mapping[Version, Flight]) -> None:
        for version, flight in flights.items():
            heard = flight.finish(self._asker.pace.prompt)
            if heard.status == 304:
                self._sheet.skip("wait.answered", version, "the event came only after the wait was over")
            else:
                self._sheet.judge("wait.answered", version, heard.status == 200, "200", heard)

    def _judge_announced(self, sighting: Sighting) -> None:
        kind = events.known_type(sighting.event)
        for version in self._versions:
            document = self._documents.ask(version)
            event = document.event(sighting.event_id) if document else None
            if not sighting.is_scheduled:
                continue
            moment = events.not_before(event) if event else None
            if kind is None or moment is None:
                self._sheet.skip("life.notice", version, "no NotBefore could be read of it")
                continue
            notice = NOTICES[kind] / self._speed
            ahead = moment - sighting.before.date
            expected = f"{notice.total_seconds():g} s for {kind}"
            self._sheet.judge("life.notice", version, ahead >= notice, expected, f"{ahead.total_seconds():g} s")

    # Approved

    def _judge_refused(self, sighting: Sighting) -> None:
        """As much as the notice allows; the rest has the next event."""
        shown, not_before = sighting.document, events.not_before(sighting.event)
        left = (not_before - shown.date).total_seconds() if not_before else inf
        sent = False
        while self._refused and monotonic() < shown.at + left - RESERVED:
            bad = self._refused.pop(0)
            heard = self._asker.ask(bad.question(sighting.event_id))
            self._sheet.judge(bad.clause, bad.version, heard.status == 400, "400", heard)
            sent = True
        if sent:
            self._judge_unchanged(sighting, not_before)

    def _judge_unchanged(self, sighting: Sighting, not_before: datetime | None) -> None:
        pause(max(self._asker.pace.settles, sighting.document.at + self._asker.pace.moves - monotonic()))
        document = self._documents.ask(self._documents.newest)
        event = document.event(sighting.event_id) if document else None
        if document is not None and not_before is not None and document.date >= not_before:
            self._sheet.skip("approval.no-effect", None, f"{LATE} when it was looked at")
            return
        status = event.get("EventStatus") if event else "gone"
        self._sheet.judge("approval.no-effect", None, event == sighting.event, "the event as it was", f"it is {status}")

    def _carry_on(self, sighting: Sighting, version: Version) -> bool:
        since = (sighting.document if sighting.is_scheduled else sighting.before).asked
        watch = Watch(self._asker, self._sheet, self._documents, self._versions, self._pending, sighting.event, since)
        if not sighting.is_scheduled:
            watch.born_started()
        elif not self._approve(watch, version):
            return False
        if not watch.until_gone():
            return False
        accepted = self._judge_ended(watch.event_id)
        self._ended.append(watch.event_id)
        if accepted and len(self._ended) == EVENTS:
            watch.repeat_after_the_end()
        return True

    def _approve(self, watch: Watch, version: Version) -> bool:
        """Whether it has started."""
        if self._ended and self._approve_many(watch, version):
            return True
        heard = self._accept(version, [watch.event_id])
        expected = f"Started within {self._asker.pace.starts:g} s, before its NotBefore"
        return self._has_effect("approval.takes-effect", watch, heard, expected)

    def _approve_many(self, watch: Watch, version: Version) -> bool:
        """Together with one that has ended, if that is accepted."""
        ended = self._asker.ask(post(version.name, approvals.body(self._ended)))
        if ended.status != 200:
            self._sheet.skip("approval.many", None, "an event that has ended can no longer be approved here")
            return False
        heard = self._accept(version, [*self._ended, watch.event_id])
        return self._has_effect("approval.many", watch, heard, "Started by the second of two ids")

    def _has_effect(self, clause: str, watch: Watch, approved: Heard, expected: str) -> bool:
        """Whether it has started; that says nothing of an approval that came too late to bring it on."""
        if watch.until_started():
            self._sheet.judge("approval.takes-effect", None, True, "", "")
            return self._sheet.judge(clause, None, True, "", "")
        date = refusals.date(approved.answer)
        if date is None or watch.not_before is None or date < watch.not_before:
            return self._sheet.judge(clause, None, False, expected, watch.told)
        self._sheet.skip(clause, None, f"{LATE} when it was approved")
        return watch.has_started

    def _accept(self, version: Version, event_ids: Sequence[str]) -> Heard:
        heard = self._asker.ask(post(version.name, approvals.body(event_ids)))
        if self._sheet.judge("approval.accepted", None, heard.status == 200, f"200 in {version.name}", heard):
            self._sheet.judge("approval.empty", version, not heard.body, "no body", f"{len(heard.body)} bytes")
        return heard

    # Gone

    def _judge_ended(self, event_id: str) -> bool:
        """Whether it may be approved in every version."""
        accepted = True
        for version in self._versions:
            heard = self._asker.ask(post(version.name, approvals.body([event_id])))
            accepted &= self._sheet.judge("approval.ended", version, heard.status == 200, "200", heard)
        return accepted
