"""Judging the life of provoked events: announced, approved, Started, gone."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic

from forenotice.client import errors as client_errors
from forenotice.conformance.command import Provoke, Provoked
from forenotice.conformance.endpoint import approvals, documents
from forenotice.conformance.endpoint.approvals import Approval
from forenotice.conformance.endpoint.clauses import Needs
from forenotice.conformance.endpoint.documents import Document, Documents, Event
from forenotice.conformance.endpoint.etags import LONG_WAIT, Tags
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import PendingRequest, Requester, Response, pause, post
from forenotice.conformance.endpoint.watch import Sighting, Watch
from forenotice.core import errors
from forenotice.core.operations import EventType
from forenotice.wire.versions import Version

EVENTS = 2
"""One is approved in the oldest version that is judged, one in the newest; another if the last was spoiled."""
ACCEPTED, STARTS, MANY, ID_CASE = APPROVED = (
    "approval.accepted",
    "approval.takes-effect",
    "approval.many",
    "approval.id-case",
)
"""What an event shows that only a good approval has started."""

RESERVED = 4.0
"""Seconds of the notice that are kept for the approval itself, at the pace of a polite client."""
SLOWER = 5
"""So many times as long as before a start may take."""
LATE = "its NotBefore had been reached"
BORN_STARTED = "the event was Started from the beginning"
TOO_EARLY = "the event had started before the kit sent anything"

NOTICES: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(minutes=15),
    EventType.REBOOT: timedelta(minutes=15),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(minutes=5),
}
"""At least (docs/fleet.md)."""


class Lifecycle:
    def __init__(
        self,
        http: Requester,
        findings: Findings,
        documents: Documents,
        tags: Tags,
        versions: Sequence[Version],
        *,
        provoke: Provoke,
        speed: float,
    ) -> None:
        self._http = http
        self._findings = findings
        self._documents = documents
        self._tags = tags
        self._versions = versions
        self._provoke = provoke
        self._speed = speed
        self._bad = list(approvals.bad(versions, findings))
        self._pending = list(approvals.each(approvals.REPEATED, versions))
        self._ended: list[str] = []
        self._is_spoiled = False
        """The last event was started by what must be refused."""
        self._is_idle = False
        """What was accepted did not start it: this is waited for once."""
        self._takes: float | None = None
        """Seconds from an approval to the start, once this was seen."""
        self.seen: list[Sighting] = []

    def run(self) -> None:
        oldest, newest = self._versions[0], self._versions[-1]
        if self._live(oldest) and self._live(newest) and self._is_spoiled:
            unsent, self._bad = self._bad, []
            self._live(newest)
            self._send_late(unsent)
        pause(self._http.pace.settles)
        documents = [found for version in self._versions if (found := self._documents.fetch(version)) is not None]
        for event_id in self._ended:
            back = [document.response for document in documents if document.event(event_id)]
            self._findings.judge("life.forwards", None, not back, "gone for good", "listed again", *back[:1])
        if self._ended:
            for repeat in self._pending:
                self._findings.skip(repeat.clause, repeat.version, "the events were over before it could be sent")

    def _live(self, version: Version) -> bool:
        """One event from its announcement to its end; whether it came to that."""
        before = self._documents.fetch(self._documents.newest)
        if before is None or before.events:
            if before is None:
                return self._fail("no document")
            return self._fail("others that are announced already", before.response)
        with ExitStack() as stack:
            pending = {} if self._ended else self._waits()
            for pending_request in pending.values():
                stack.callback(pending_request.close)
            self._http.say("waiting for the event to appear")
            try:
                provoked = self._provoke()
            except errors.RefusedError as error:
                return self._fail(error.message)
            stack.push(lambda kind, *_: provoked.close(at_once=kind is not None))
            sighting = self._appear(provoked, before)
            if sighting is None:
                return False
            self.seen.append(sighting)
            self._judge_waits(pending)
            self._judge_announced(sighting)
            self._is_spoiled = False
            watch = Watch(self._http, self._findings, self._documents, self._versions, self._pending, sighting)
            why = self._send_bad(watch, sighting.document) if sighting.is_scheduled else BORN_STARTED
            if self._ended or why:
                for left in self._bad:
                    self._findings.skip(left.clause, left.version, why or "the notice was over before it could be sent")
            return self._carry_on(watch, version, why)

    # Announced

    def _waits(self) -> dict[Version, PendingRequest]:
        found = {}
        for version in self._tags.waiting:
            document = self._documents.fetch(version)
            if document is not None:
                found[version] = self._tags.wait(version, document.tag, LONG_WAIT)
        return found

    def _appear(self, provoked: Provoked, before: Document) -> Sighting | None:
        seconds = self._http.pace.appears
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            document = self._documents.fetch(self._documents.newest)
            if document is not None and document.events:
                event = document.events[0]
                if not self._can_be_followed(event, document.response):
                    return None
                self._findings.judge("life.appears", None, True)
                return Sighting(event=event, before=before, document=document)
            before = document or before
            failure = provoked.failure()
            if failure:
                self._fail(f"none: the command {failure}", before.response)
                return None
            pause(self._http.pace.between)
        self._fail(f"none within {seconds:g} s", before.response)
        return None

    def _can_be_followed(self, event: Event, response: Response) -> bool:
        event_id = event.get("EventId")
        if not isinstance(event_id, str):
            return self._fail("one without an EventId", response)
        if event_id in self._ended:
            return self._findings.judge("life.forwards", None, False, "a new EventId", f"{event_id} again", response)
        return True

    def _fail(self, seen: str, response: Response | None = None) -> bool:
        self._findings.judge("life.appears", None, False, "an event", seen, response)
        why = f"there was no event to follow: {seen}"
        self._findings.unseen |= {Needs.EVENT: why, Needs.PROVOKED: why}
        return False

    def _judge_waits(self, pending: Mapping[Version, PendingRequest]) -> None:
        for version, pending_request in pending.items():
            response = pending_request.finish(self._http.pace.prompt)
            if response.status == 304:
                self._findings.skip("wait.answered", version, "the event came only after the wait was over")
            else:
                self._findings.judge("wait.answered", version, response.status == 200, "200", response)

    def _judge_announced(self, sighting: Sighting) -> None:
        kind = documents.known_type(sighting.event)
        for version in self._versions:
            document = self._documents.fetch(version)
            event = document.event(str(sighting.event.get("EventId"))) if document else None
            if not sighting.is_scheduled:
                self._findings.skip("life.notice", version, BORN_STARTED)
                continue
            moment = documents.not_before(event) if event else None
            if document is None or kind is None or moment is None:
                self._findings.skip("life.notice", version, "no NotBefore could be read of it")
                continue
            notice = NOTICES[kind] / self._speed
            ahead = moment - sighting.before.date
            expected = f"{notice.total_seconds():g} s for {kind}"
            seen = f"{ahead.total_seconds():g} s"
            self._findings.judge("life.notice", version, ahead >= notice, expected, seen, document.response)

    # Scheduled

    def _send_bad(self, watch: Watch, shown: Document) -> str:
        """As much as the notice allows; the next event has the rest. Why the event says nothing of its approval."""
        if watch.look() and watch.has_started:
            return TOO_EARLY
        left = (watch.not_before - shown.date).total_seconds() if watch.not_before else inf
        check: Callable[[], str] = str
        while self._bad and monotonic() < shown.response.at + left - RESERVED:
            if self._bad[0].names_it and not self._ended:
                # The first event is for those that do not name it, so that its own approval can be judged.
                break
            bad = self._bad.pop(0)
            check = partial(self._effect, bad, self._send(bad, watch), watch)
            if why := check():
                return why
        pause(self._http.pace.settles)
        return check()

    def _send(self, bad: Approval, watch: Watch) -> Response:
        response = self._http.send(bad.request(watch.event_id))
        self._findings.judge(
            bad.clause, bad.version, response.status == 400, "400 while the event is Scheduled", response
        )
        if not response.is_success:
            return response
        if bad.names_it and not self._is_idle:
            self._is_idle = not self._starts(watch, tentatively=True)
        else:
            pause(self._http.pace.settles)
        if bad.form is approvals.BAD_FIRST:
            expected = "Started by the second of two ids"
            self._findings.judge(MANY, None, watch.has_started, expected, f"{response}; {watch.told}", response)
        if not bad.names_it:
            why = f"a 200 proves nothing: an approval of no event was answered {response} ({bad.clause})"
            self._findings.make_moot(("approval.ended", *(repeat.clause for repeat in self._pending)), why)
            self._pending.clear()
            for version in self._versions:
                self._findings.skip("approval.empty", version, why)
        return response

    def _send_late(self, unsent: Sequence[Approval]) -> None:
        """Accepted for an event that is over, it is accepted always; a refusal may be for that, and says nothing."""
        for bad in unsent:
            response = self._http.send(bad.request(self._ended[-1]))
            if response.is_success:
                self._findings.judge(bad.clause, bad.version, False, "400", response)

    def _effect(self, bad: Approval, response: Response, watch: Watch) -> str:
        """Of what should have none; but what names the event and is accepted may start it."""
        stays = watch.look() and not watch.has_started
        if watch.not_before is not None and watch.date >= watch.not_before:
            self._findings.skip("approval.no-effect", None, f"{LATE} when it was looked at")
            return LATE
        if not (bad.names_it and response.is_success):
            self._findings.judge(
                "approval.no-effect", None, stays, "it stays Scheduled", f"{response}; {watch.told}", response
            )
        if stays:
            return ""
        self._is_spoiled = True
        if not bad.names_it:
            self._bad = [other for other in self._bad if other.names_it]
            self._findings.make_moot(APPROVED, "an approval of no event starts an event, too (approval.no-effect)")
        return f"a wrong approval had started the event ({bad.clause})"

    # Approved

    def _carry_on(self, watch: Watch, version: Version, why: str) -> bool:
        """Whether it came to its end."""
        if watch.has_started or watch.is_gone:
            for clause in APPROVED:
                self._findings.skip(clause, None, why)
        elif not self._approve(watch, version):
            return False
        if not watch.until_gone():
            return False
        self._ended.append(watch.event_id)
        if self._judge_ended(watch.event_id) and len(self._ended) >= EVENTS:
            watch.repeat_after_the_end()
        return True

    def _approve(self, watch: Watch, version: Version) -> bool:
        """Whether it has started: by an approval in a form that is yet to be judged, else by a plain one."""
        clause, event_ids = self._unjudged_form(watch, version)
        special = self._http.send(post(version.name, approvals.body(event_ids))) if clause else None
        if special is not None and special.is_success and self._starts(watch, tentatively=True):
            self._findings.judge(clause, None, True)
            self._findings.judge(STARTS, None, True)
            approvals.judge_accepted(self._findings, ACCEPTED, version, special)
            return True
        response = self._http.send(post(version.name, approvals.body([watch.event_id])))
        approvals.judge_accepted(self._findings, ACCEPTED, version, response)
        if self._starts(watch):
            self._findings.judge(STARTS, None, True)
            if special is not None:
                expected, seen = "200, and the event Started", f"{special}; it stayed Scheduled"
                self._findings.judge(clause, None, False, expected, seen, special)
            return True
        accepted = special if special is not None and special.is_success else response
        date = client_errors.date_of(accepted.answer)
        in_time = date is None or watch.not_before is None or date < watch.not_before
        if in_time and accepted.is_success:
            expected = f"Started within {self._http.pace.starts:g} s, before its NotBefore"
            self._findings.judge(STARTS, None, False, expected, f"{accepted}; {watch.told}", accepted)
        why = "no approval started the event"
        if not accepted.is_success:
            why = f"the approval was refused ({ACCEPTED})"
        elif watch.has_started:
            why = f"{LATE} when it was approved"
        for clause in APPROVED:
            self._findings.skip(clause, None, why)
        return watch.has_started

    def _starts(self, watch: Watch, *, tentatively: bool = False) -> bool:
        """Where the start is known to take a second, an approval without effect is not waited for as if it might."""
        pace, begun = self._http.pace, monotonic()
        known = tentatively and self._takes is not None
        within = min(pace.starts, max(pace.starts_again, SLOWER * (self._takes or 0))) if known else pace.starts
        started = watch.until_started(within, tentatively=tentatively)
        if started:
            self._takes = max(self._takes or 0, monotonic() - begun)
        return started

    def _unjudged_form(self, watch: Watch, version: Version) -> tuple[str, Sequence[str]]:
        if self._ended and self._findings.judged(MANY) is None:
            if self._http.send(post(version.name, approvals.body(self._ended))).is_success:
                return MANY, [*self._ended, watch.event_id]
            self._findings.skip(MANY, None, "an approval that names another event beside a live one is refused here")
        if self._findings.judged(ID_CASE) is None:
            return ID_CASE, [watch.event_id.swapcase()]
        return "", []

    # Gone

    def _judge_ended(self, event_id: str) -> bool:
        """Whether it may be approved in every version."""
        accepted = True
        for version in self._versions:
            response = self._http.send(post(version.name, approvals.body([event_id])))
            accepted &= approvals.judge_accepted(self._findings, "approval.ended", version, response)
        return accepted
