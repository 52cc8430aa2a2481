"""Following one event from its announcement to its end, and approving it again meanwhile in every form."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import cycle
from math import inf
from time import monotonic

from forenotice.conformance.endpoint import approvals
from forenotice.conformance.endpoint.approvals import ON_POST, Approval
from forenotice.conformance.endpoint.documents import Document, Documents, Event, is_known, not_before, status
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import Requester, pause
from forenotice.wire.versions import Version

REPEATS = 3
"""Approvals between two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The first document that shows an event, and the last one before."""

    event: Event
    before: Document
    document: Document

    @property
    def is_scheduled(self) -> bool:
        return status(self.event) != "Started"


class Watch:
    def __init__(
        self,
        http: Requester,
        findings: Findings,
        documents: Documents,
        versions: Sequence[Version],
        pending: list[Approval],
        sighting: Sighting,
    ) -> None:
        self._http = http
        self._findings = findings
        self._documents = documents
        self._versions = versions
        self._pending = pending
        self._event = event = sighting.event
        self._document = sighting.document
        self._ids = {self.event_id}
        """More than one, if it does not keep the first."""
        self._beside: set[str] = set()
        """Ids of others that were listed together with it."""
        self.not_before = not_before(event)
        self._others = cycle(versions)
        self._waiting_since = (sighting.document if sighting.is_scheduled else sighting.before).response.asked
        self.has_started = not sighting.is_scheduled
        self.is_gone = False
        self._in_time = False
        self._unshown = [version for version in versions if is_known(event, version)]
        """Versions in which it has not been seen Started."""
        self._hidden: list[Version] = []
        self.told = ""
        """What it last was."""

    @property
    def date(self) -> datetime:
        """Of the last look."""
        return self._document.date

    @property
    def event_id(self) -> str:
        return str(self._event.get("EventId"))

    def until_started(self, within: float, *, tentatively: bool = False) -> bool:
        """Whether an approval brought it on, rather than its time; half of that is left for the next approval."""
        left = (self.not_before - self.date).total_seconds() if tentatively and self.not_before else inf
        seconds = min(within, max(self._http.pace.settles, left / 2))
        self._http.say(f"approved: waiting for the event to start, at most {seconds:.0f} s")
        deadline = monotonic() + seconds
        while not self.has_started and monotonic() < deadline:
            if not self.look():
                return True
            # No approval but that one.
            self._look_around()
        return self._in_time

    def until_gone(self) -> bool:
        pace, begun = self._http.pace, monotonic()
        deadline = begun + pace.ends
        self._http.say(f"waiting for the event to end, at most {pace.ends:.0f} s")
        while self.look():
            if status(self._event) not in ("Scheduled", "Started"):
                deadline = min(deadline, monotonic() + pace.lingers)
            if monotonic() >= deadline:
                seen, at = f"{self.told} after {monotonic() - begun:.0f} s", self._document
                return self._findings.judge("life.gone", at.version, False, "no longer listed", seen, at.response)
            self._go_on()
        self._judge_end()
        return True

    # One step

    def look(self) -> bool:
        """Whether it is still listed; in a version that has not shown it as Started, if there is one."""
        newest = self._documents.newest
        version = self._unshown[0] if self.has_started and self._unshown else newest
        document = self._documents.fetch(version)
        if document is not None and version is not newest and document.event(self.event_id) is None:
            # Perhaps it is over, perhaps this version hides it.
            self._unshown.remove(version)
            self._hidden.append(version)
            document = self._documents.fetch(newest)
        if document is None:
            return True
        self._document = document
        event = self._follow(document)
        self.is_gone = event is None
        if event is None:
            self._gone_at = document.response.at
            self.told = "it is gone"
            return False
        event_status = status(event)
        self.told = f"it is {event_status}"
        if event_status == "Started":
            self._in_time |= not self.has_started and (self.not_before is None or document.date < self.not_before)
            self.has_started = True
            if document.version in self._unshown:
                self._unshown.remove(document.version)
        elif event_status == "Scheduled":
            forwards = not self.has_started
            self._findings.judge(
                "life.forwards", None, forwards, "Started or gone", "Scheduled again", document.response
            )
            self._waiting_since = document.response.asked
        return True

    def _go_on(self) -> None:
        """Approve it again in a few ways, once it has been seen Started in all versions."""
        if self.has_started and self._unshown:
            return
        fitting = self._fitting(status(self._event))[:REPEATS]
        for repeat in fitting:
            if not self._repeat(repeat, even_if_gone=False):
                break
        if not fitting:
            self._look_around()

    def repeat_after_the_end(self) -> None:
        """What there was no time for, where an event that is over may be approved, too."""
        for repeat in self._fitting("gone"):
            self._repeat(repeat, even_if_gone=True)

    def _fitting(self, status: str) -> list[Approval]:
        return [repeat for repeat in self._pending if repeat.clause != "approval.started" or status == "Started"]

    def _repeat(self, repeat: Approval, *, even_if_gone: bool) -> bool:
        """Whether it was judged: what is refused when the event has just ended says nothing."""
        request = repeat.request(self.event_id)
        if repeat.clause == ON_POST and (document := self._documents.fetch(repeat.version)) is not None:
            request = request.having(If_None_Match=document.tag or "*")
        response = self._http.send(request)
        if response.status != 200 and not even_if_gone:
            shown = self._documents.fetch(self._documents.newest)
            if shown is None or shown.event(self.event_id) is None:
                return False
        self._pending.remove(repeat)
        approvals.judge_accepted(self._findings, repeat.clause, repeat.version, response)
        return True

    def _look_around(self) -> None:
        pause(self._http.pace.between)
        self._documents.fetch(next(self._others))

    def _follow(self, document: Document) -> Event | None:
        found = document.event(self.event_id)
        ids = {str(event.get("EventId")) for event in document.events}
        if found is not None:
            self._beside |= ids - self._ids
        elif ids - self._beside:
            # Nothing else was announced: this must be it.
            found = next(event for event in document.events if str(event.get("EventId")) not in self._beside)
            self._findings.judge("life.same-id", None, False, self.event_id, found.get("EventId"), document.response)
        if found is not None:
            self._event = found
            self._ids.add(self.event_id)
        return found

    # The end

    def _judge_end(self) -> None:
        judge = partial(self._findings.judge, response=self._document.response)
        judge("life.same-id", None, True)
        if not self._ids & self._documents.started:
            judge("life.started", self._documents.newest, False, "Started", "gone without it")
        listed = self._gone_at - self._waiting_since
        shown = self._http.pace.shown
        judge("life.shown", None, listed >= shown, f"at least {shown:g} s", f"at most {listed:.1f} s")
        for version in self._versions:
            document = self._documents.fetch(version)
            if document is not None:
                gone = document.event(self.event_id) is None
                self._findings.judge("life.gone", version, gone, "no longer listed", "still listed", document.response)
            if version in self._unshown or version in self._hidden:
                self._findings.skip("life.started", version, "it was not listed when it was looked at")
            elif not is_known(self._event, version):
                kind = self._event.get("EventType")
                self._findings.skip("life.started", version, f"this version does not list {kind}")
