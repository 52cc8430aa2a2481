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
from forenotice.conformance.endpoint.documents import Document, Event, id_of, is_known, not_before, status
from forenotice.conformance.endpoint.http import pause
from forenotice.conformance.endpoint.session import Session
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
        self, session: Session, versions: Sequence[Version], pending: list[Approval], sighting: Sighting
    ) -> None:
        self._session = session
        self._versions = versions
        self._pending = pending
        self._event = sighting.event
        self._document = sighting.document
        self._ids = {self.event_id}
        """More than one, if it does not keep the first."""
        self._beside: set[str] = set()
        """Ids of others that were listed together with it."""
        self.not_before = not_before(sighting.event)
        self._others = cycle(versions)
        self._waiting_since = (sighting.document if sighting.is_scheduled else sighting.before).response.asked
        self.has_started = not sighting.is_scheduled
        self.is_gone = False
        self._in_time = False
        self._unshown = [version for version in versions if is_known(sighting.event, version)]
        """Versions in which it has not been seen Started."""
        self._hidden: list[Version] = []
        self.state = ""
        """What it last was, in words."""

    @property
    def date(self) -> datetime:
        """Of the last look."""
        return self._document.date

    @property
    def event_id(self) -> str:
        return id_of(self._event)

    def until_started(self, within: float, *, tentatively: bool = False) -> bool:
        """Whether an approval brought it on, rather than its time; half of that is left for the next approval."""
        left = (self.not_before - self.date).total_seconds() if tentatively and self.not_before else inf
        seconds = min(within, max(self._session.pace.settles, left / 2))
        self._session.http.progress(f"approved: waiting for the event to start, at most {seconds:.0f} s")
        deadline = monotonic() + seconds
        while not self.has_started and monotonic() < deadline:
            if not self.look():
                return True
            # No approval but that one.
            self._look_around()
        return self._in_time

    def until_gone(self) -> bool:
        pace, begun = self._session.pace, monotonic()
        deadline = begun + pace.ends
        self._session.http.progress(f"waiting for the event to end, at most {pace.ends:.0f} s")
        while self.look():
            if status(self._event) not in ("Scheduled", "Started"):
                deadline = min(deadline, monotonic() + pace.lingers)
            if monotonic() >= deadline:
                seen, at = f"{self.state} after {monotonic() - begun:.0f} s", self._document
                return self._session.judge("life.gone", at.version, False, "no longer listed", seen, at.response)
            self._go_on()
        self._judge_end()
        return True

    def look(self) -> bool:
        """Whether it is still listed; in a version that has not shown it as Started, if there is one."""
        newest = self._session.newest
        version = self._unshown[0] if self.has_started and self._unshown else newest
        document = self._session.fetch(version)
        if document is not None and version is not newest and document.event(self.event_id) is None:
            # Perhaps it is over, perhaps this version hides it.
            self._unshown.remove(version)
            self._hidden.append(version)
            document = self._session.fetch(newest)
        if document is None:
            return True
        self._document = document
        event = self._follow(document)
        self.is_gone = event is None
        self.state = "it is gone" if event is None else f"it is {status(event)}"
        if event is None:
            self._gone_at = document.response.at
            return False
        if status(event) == "Started":
            self._in_time |= not self.has_started and (self.not_before is None or document.date < self.not_before)
            self.has_started = True
            if document.version in self._unshown:
                self._unshown.remove(document.version)
        elif status(event) == "Scheduled":
            forwards = not self.has_started
            seen = "Scheduled again"
            self._session.judge("life.forwards", None, forwards, "Started or gone", seen, document.response)
            self._waiting_since = document.response.asked
        return True

    def _follow(self, document: Document) -> Event | None:
        found = document.event(self.event_id)
        ids = {id_of(event) for event in document.events}
        if found is not None:
            self._beside |= ids - self._ids
        elif ids - self._beside:
            # Nothing else was announced: this must be it.
            found = next(event for event in document.events if id_of(event) not in self._beside)
            self._session.judge("life.same-id", None, False, self.event_id, found.get("EventId"), document.response)
        if found is not None:
            self._event = found
            self._ids.add(self.event_id)
        return found

    def _look_around(self) -> None:
        pause(self._session.pace.between)
        self._session.fetch(next(self._others))

    # Approving it again

    def _go_on(self) -> None:
        """In a few ways, once it has been seen Started in all versions."""
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
        """Whether it was judged: what is refused when the event has just ended shows nothing."""
        request = repeat.request(self.event_id)
        if repeat.clause == ON_POST and (document := self._session.fetch(repeat.version)) is not None:
            request = request.having(If_None_Match=document.tag or "*")
        response = self._session.send(request)
        if response.status != 200 and not even_if_gone:
            shown = self._session.fetch(self._session.newest)
            if shown is None or shown.event(self.event_id) is None:
                return False
        self._pending.remove(repeat)
        approvals.judge_accepted(self._session, repeat.clause, repeat.version, response)
        return True

    def _judge_end(self) -> None:
        session = self._session
        judge = partial(session.judge, response=self._document.response)
        judge("life.same-id", None, True)
        if not self._ids & session.started:
            judge("life.started", session.newest, False, "Started", "gone without it")
        listed, shown = self._gone_at - self._waiting_since, session.pace.shown
        judge("life.shown", None, listed >= shown, f"at least {shown:g} s", f"at most {listed:.1f} s")
        for version in self._versions:
            document = session.fetch(version)
            if document is not None:
                gone = document.event(self.event_id) is None
                session.judge("life.gone", version, gone, "no longer listed", "still listed", document.response)
            if version in self._unshown or version in self._hidden:
                session.skip("life.started", version, "it was not listed when it was looked at")
            elif not is_known(self._event, version):
                kind = self._event.get("EventType")
                session.skip("life.started", version, f"this version does not list {kind}")
