"""Judging the life of provoked events: announced, approved, Started, gone."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from notbefore.conformance.endpoint import approvals, events, repeats
from notbefore.conformance.endpoint.asking import Asker, Flight, Heard, pause
from notbefore.conformance.endpoint.documents import Document, Documents
from notbefore.conformance.endpoint.events import Event
from notbefore.conformance.endpoint.gates import FAULTS
from notbefore.conformance.endpoint.provoking import Provoke, Provoked
from notbefore.conformance.endpoint.questions import Question, post
from notbefore.conformance.endpoint.sheet import Sheet
from notbefore.conformance.endpoint.tags import LONG_WAIT, Tags
from notbefore.conformance.endpoint.watching import Watch
from notbefore.core import errors
from notbefore.core.operations import EventType
from notbefore.wire.approvals import MAX_BODY
from notbefore.wire.versions import Version

EVENTS = 2
"""One is approved in the oldest version that is judged, one in the newest."""

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
        for repeat in self._pending:
            self._sheet.skip(repeat.clause, repeat.version, "the events were over before it could be sent")

    def _live(self, version: Version) -> bool:
        """One event from its announcement to its end; whether it came to that."""
        before = self._documents.ask(self._documents.newest)
        if before is None or before.events:
            raise errors.ConflictError("events are announced already: provoke some when nothing else is announced")
        with ExitStack() as stack:
            flights = {} if self._ended else self._waits()
            for flight in flights.values():
                stack.callback(flight.close)
            provoked = stack.enter_context(closing(self._provoke()))
            sighting = self._appear(provoked, before)
            if sighting is None:
                return False
            self.seen.append(sighting.event)
            self._judge_waits(flights)
            self._judge_announced(sighting)
            if sighting.is_scheduled and not self._ended:
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
                raise errors.RefusedError(f"--provoke caused no event: {failure}")
            pause(self._asker.pace.between)
        self._sheet.judge("life.appears", None, False, f"an event within {seconds:g} s", "none")
        return None

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
            event = document.event(str(sighting.event.get("EventId"))) if document else None
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
        event_id = str(sighting.event.get("EventId"))
        good = approvals.body([event_id])
        mixed = ([event_id, approvals.unknown_id()], [approvals.unknown_id(), event_id], [event_id, "x"])
        for version in self._versions:
            for event_ids in mixed:
                self._refused("approval.all-or-nothing", version, post(version.name, approvals.body(event_ids)))
            padded = good + b" " * (MAX_BODY + 1 - len(good))
            self._refused("approval.too-large", version, post(version.name, padded))
            self._refused("approval.malformed", version, post(version.name, good + b"garbage"))
            if version.header_enforced_on_post:
                self._refused("header.required-on-post", version, FAULTS["header"](post(version.name, good)))
        pause(self._asker.pace.settles)
        document = self._documents.ask(self._documents.newest)
        event = document.event(event_id) if document else None
        same = event is not None and event == sighting.event
        status = event.get("EventStatus") if event else "gone"
        self._sheet.judge("approval.no-effect", None, same, "the event as it was", f"it is {status}")

    def _refused(self, clause: str, version: Version, question: Question) -> None:
        heard = self._asker.ask(question)
        self._sheet.judge(clause, version, heard.status == 400, "400", heard)

    def _carry_on(self, sighting: Sighting, version: Version) -> bool:
        since = (sighting.document if sighting.is_scheduled else sighting.before).asked
        watch = Watch(self._asker, self._sheet, self._documents, self._versions, self._pending, sighting.event, since)
        if not sighting.is_scheduled:
            watch.born_started()
        elif self._approve_many(watch, version):
            self._sheet.judge("approval.takes-effect", None, True, "", "")
        else:
            self._accept(version, [watch.event_id])
            effective = watch.until_started()
            expected = f"Started within {self._asker.pace.starts:g} s, before its NotBefore"
            if not self._sheet.judge("approval.takes-effect", None, effective, expected, watch.told):
                return False
        if not watch.until_gone():
            return False
        accepted = self._judge_ended(watch.event_id)
        self._ended.append(watch.event_id)
        if accepted and len(self._ended) == EVENTS:
            watch.repeat_after_the_end()
        return True

    def _approve_many(self, watch: Watch, version: Version) -> bool:
        """Together with one that has ended, if that is accepted; whether the event started by it."""
        if not self._ended:
            return False
        ended = self._asker.ask(post(version.name, approvals.body(self._ended)))
        if ended.status != 200:
            self._sheet.skip("approval.many", None, "an event that has ended can no longer be approved here")
            return False
        self._accept(version, [*self._ended, watch.event_id])
        effective = watch.until_started()
        return self._sheet.judge("approval.many", None, effective, "Started by the second of two ids", watch.told)

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
