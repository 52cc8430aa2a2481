"""Judging the life of provoked events: announced, approved, Started, gone."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic

from forenotice.client import errors as client_errors
from forenotice.conformance.command import Provoke, Provoked
from forenotice.conformance.endpoint import approvals, checks, documents
from forenotice.conformance.endpoint.approvals import Approval
from forenotice.conformance.endpoint.clauses import Needs
from forenotice.conformance.endpoint.documents import Document
from forenotice.conformance.endpoint.http import PendingRequest, Response, pause, post
from forenotice.conformance.endpoint.session import Session
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

LONG_WAIT = 60
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
        session: Session,
        versions: Sequence[Version],
        waiting: Sequence[Version],
        name: str,
        provoke: Provoke,
        speed: float,
    ) -> None:
        """`waiting`: versions in which waiting is offered; `name`: of this VM."""
        self._session = session
        self._versions = versions
        self._waiting = waiting
        self._name = name
        self._provoke = provoke
        self._speed = speed
        self._bad = list(approvals.bad(versions, session))
        self._pending = list(approvals.each(approvals.REPEATED, versions))
        self._ended: list[str] = []
        self._is_spoiled = False
        """The last event was started by what must be refused."""
        self._is_idle = False
        """What was accepted did not start it: this is waited for once."""
        self._takes: float | None = None
        """Seconds from an approval to the start, once this was seen."""

    def run(self) -> None:
        session, oldest, newest = self._session, self._versions[0], self._versions[-1]
        session.unseen |= dict.fromkeys((Needs.EVENT, Needs.PROVOKED), "the provoked event did not get that far")
        if self._live(oldest) and self._live(newest) and self._is_spoiled:
            unsent, self._bad = self._bad, []
            self._live(newest)
            self._send_late(unsent)
        pause(session.pace.settles)
        shown = [found for version in self._versions if (found := session.fetch(version)) is not None]
        for event_id in self._ended:
            back = [document.response for document in shown if document.event(event_id)]
            session.judge("life.forwards", None, not back, "gone for good", "listed again", *back[:1])
        if self._ended:
            for repeat in self._pending:
                session.skip(repeat.clause, repeat.version, "the events were over before it could be sent")

    def _live(self, version: Version) -> bool:
        """One event from its announcement to its end; whether it came to that."""
        session = self._session
        before = session.fetch(session.newest)
        if before is None:
            return self._fail("no document")
        if before.events:
            return self._fail("others that are announced already", before.response)
        with ExitStack() as stack:
            pending = {} if self._ended else self._waits()
            for sent in pending.values():
                stack.callback(sent.close)
            session.http.progress("waiting for the event to appear")
            try:
                provoked = self._provoke()
            except errors.RefusedError as error:
                return self._fail(error.message)
            stack.push(lambda kind, *_: provoked.close(at_once=kind is not None))
            sighting = self._appear(provoked, before)
            if sighting is None:
                return False
            checks.judge_name(session, self._name, sighting.event, sighting.document.response)
            self._judge_waits(pending)
            self._judge_announced(sighting)
            self._is_spoiled = False
            watch = Watch(session, self._versions, self._pending, sighting)
            why = self._send_bad(watch, sighting.document) if sighting.is_scheduled else BORN_STARTED
            if self._ended or why:
                for left in self._bad:
                    session.skip(left.clause, left.version, why or "the notice was over before it could be sent")
            return self._carry_on(watch, version, why)

    # Announced

    def _waits(self) -> dict[Version, PendingRequest]:
        shown = {version: self._session.fetch(version) for version in self._waiting}
        return {
            version: checks.wait(self._session, version, document.tag, LONG_WAIT)
            for version, document in shown.items()
            if document is not None
        }

    def _appear(self, provoked: Provoked, before: Document) -> Sighting | None:
        session = self._session
        deadline = monotonic() + session.pace.appears
        while monotonic() < deadline:
            document = session.fetch(session.newest)
            if document is not None and document.events:
                event, response = document.events[0], document.response
                event_id = event.get("EventId")
                if not isinstance(event_id, str):
                    self._fail("one without an EventId", response)
                    return None
                if event_id in self._ended:
                    session.judge("life.forwards", None, False, "a new EventId", f"{event_id} again", response)
                    return None
                session.judge("life.appears", None, True)
                return Sighting(event=event, before=before, document=document)
            before = document or before
            if failure := provoked.failure():
                self._fail(f"none: the command {failure}", before.response)
                return None
            pause(session.pace.between)
        self._fail(f"none within {session.pace.appears:g} s", before.response)
        return None

    def _fail(self, seen: str, response: Response | None = None) -> bool:
        self._session.judge("life.appears", None, False, "an event", seen, response)
        why = f"there was no event to follow: {seen}"
        self._session.unseen |= {Needs.EVENT: why, Needs.PROVOKED: why}
        return False

    def _judge_waits(self, pending: Mapping[Version, PendingRequest]) -> None:
        for version, sent in pending.items():
            response = sent.finish(self._session.pace.prompt)
            if response.status == 304:
                self._session.skip("wait.answered", version, "the event came only after the wait was over")
            else:
                self._session.judge("wait.answered", version, response.status == 200, "200", response)

    def _judge_announced(self, sighting: Sighting) -> None:
        kind = documents.known_type(sighting.event)
        for version in self._versions:
            document = self._session.fetch(version)
            event = document.event(documents.id_of(sighting.event)) if document else None
            moment = documents.not_before(event) if event else None
            if not sighting.is_scheduled:
                self._session.skip("life.notice", version, BORN_STARTED)
            elif document is None or kind is None or moment is None:
                self._session.skip("life.notice", version, "no NotBefore could be read of it")
            else:
                notice, ahead = NOTICES[kind] / self._speed, moment - sighting.before.date
                expected, seen = f"{notice.total_seconds():g} s for {kind}", f"{ahead.total_seconds():g} s"
                self._session.judge("life.notice", version, ahead >= notice, expected, seen, document.response)

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
        pause(self._session.pace.settles)
        return check()

    def _send(self, bad: Approval, watch: Watch) -> Response:
        session = self._session
        expected = "400 while the event is Scheduled"
        response = session.expect(bad.clause, bad.version, 400, bad.request(watch.event_id), expected)
        if not response.is_success:
            return response
        if bad.names_it and not self._is_idle:
            self._is_idle = not self._starts(watch, tentatively=True)
        else:
            pause(session.pace.settles)
        if bad.form is approvals.BAD_FIRST:
            expected = "Started by the second of two ids"
            session.judge(MANY, None, watch.has_started, expected, f"{response}; {watch.state}", response)
        if not bad.names_it:
            why = f"a 200 proves nothing: an approval of no event was answered {response} ({bad.clause})"
            session.make_moot(("approval.ended", *(repeat.clause for repeat in self._pending)), why)
            self._pending.clear()
            for version in self._versions:
                session.skip("approval.empty", version, why)
        return response

    def _send_late(self, unsent: Sequence[Approval]) -> None:
        """Accepted for an event that is over, it is accepted always; a refusal may be for that, and says nothing."""
        for bad in unsent:
            response = self._session.send(bad.request(self._ended[-1]))
            if response.is_success:
                self._session.judge(bad.clause, bad.version, False, "400", response)

    def _effect(self, bad: Approval, response: Response, watch: Watch) -> str:
        """Of what should have none; but what names the event and is accepted may start it."""
        stays = watch.look() and not watch.has_started
        if watch.not_before is not None and watch.date >= watch.not_before:
            self._session.skip("approval.no-effect", None, f"{LATE} when it was looked at")
            return LATE
        if not (bad.names_it and response.is_success):
            seen = f"{response}; {watch.state}"
            self._session.judge("approval.no-effect", None, stays, "it stays Scheduled", seen, response)
        if stays:
            return ""
        self._is_spoiled = True
        if not bad.names_it:
            self._bad = [other for other in self._bad if other.names_it]
            self._session.make_moot(APPROVED, "an approval of no event starts an event, too (approval.no-effect)")
        return f"a wrong approval had started the event ({bad.clause})"

    # Approved

    def _carry_on(self, watch: Watch, version: Version, why: str) -> bool:
        """Whether it came to its end."""
        if watch.has_started or watch.is_gone:
            for clause in APPROVED:
                self._session.skip(clause, None, why)
        elif not self._approve(watch, version):
            return False
        if not watch.until_gone():
            return False
        self._ended.append(watch.event_id)
        accepted = [
            self._approved("approval.ended", each, self._post(each, [watch.event_id])) for each in self._versions
        ]
        if all(accepted) and len(self._ended) >= EVENTS:
            watch.repeat_after_the_end()
        return True

    def _post(self, version: Version, event_ids: Sequence[str]) -> Response:
        return self._session.send(post(version.name, approvals.body(event_ids)))

    def _approved(self, clause: str, version: Version, response: Response) -> bool:
        return approvals.judge_accepted(self._session, clause, version, response)

    def _approve(self, watch: Watch, version: Version) -> bool:
        """Whether it has started: by an approval in a form that is yet to be judged, else by a plain one."""
        judge = partial(self._session.judge, version=None)
        clause, event_ids = self._unjudged_form(watch, version)
        special = self._post(version, event_ids) if clause else None
        if special is not None and special.is_success and self._starts(watch, tentatively=True):
            judge(clause, ok=True)
            judge(STARTS, ok=True)
            self._approved(ACCEPTED, version, special)
            return True
        response = self._post(version, [watch.event_id])
        self._approved(ACCEPTED, version, response)
        if self._starts(watch):
            judge(STARTS, ok=True)
            if special is not None:
                seen = f"{special}; it stayed Scheduled"
                judge(clause, ok=False, expected="200, and the event Started", seen=seen, response=special)
            return True
        accepted = special if special is not None and special.is_success else response
        date = client_errors.date_of(accepted)
        in_time = date is None or watch.not_before is None or date < watch.not_before
        if in_time and accepted.is_success:
            expected = f"Started within {self._session.pace.starts:g} s, before its NotBefore"
            judge(STARTS, ok=False, expected=expected, seen=f"{accepted}; {watch.state}", response=accepted)
        why = "no approval started the event"
        if not accepted.is_success:
            why = f"the approval was refused ({ACCEPTED})"
        elif watch.has_started:
            why = f"{LATE} when it was approved"
        for clause in APPROVED:
            self._session.skip(clause, None, why)
        return watch.has_started

    def _starts(self, watch: Watch, *, tentatively: bool = False) -> bool:
        """Where the start is known to take a second, an approval without effect is not waited for as if it might."""
        pace, begun = self._session.pace, monotonic()
        known = tentatively and self._takes is not None
        within = min(pace.starts, max(pace.starts_again, SLOWER * (self._takes or 0))) if known else pace.starts
        started = watch.until_started(within, tentatively=tentatively)
        if started:
            self._takes = max(self._takes or 0, monotonic() - begun)
        return started

    def _unjudged_form(self, watch: Watch, version: Version) -> tuple[str, Sequence[str]]:
        if self._ended and self._session.judged(MANY) is None:
            if self._post(version, self._ended).is_success:
                return MANY, [*self._ended, watch.event_id]
            why = "an approval that names another event beside a live one is refused here"
            self._session.skip(MANY, None, why)
        if self._session.judged(ID_CASE) is None:
            return ID_CASE, [watch.event_id.swapcase()]
        return "", []
