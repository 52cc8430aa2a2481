"""Following one event from its approval to its end, and approving it again meanwhile in every form."""

from collections.abc import Sequence
from itertools import cycle
from time import monotonic

from notbefore.conformance.endpoint import events
from notbefore.conformance.endpoint.asking import Asker, pause
from notbefore.conformance.endpoint.documents import Document, Documents
from notbefore.conformance.endpoint.events import Event
from notbefore.conformance.endpoint.repeats import Repeat
from notbefore.conformance.endpoint.sheet import Sheet
from notbefore.wire.versions import Version


class Watch:
    def __init__(
        self,
        asker: Asker,
        sheet: Sheet,
        documents: Documents,
        versions: Sequence[Version],
        pending: list[Repeat],
        event: Event,
        since: float,
    ) -> None:
        self._asker = asker
        self._sheet = sheet
        self._documents = documents
        self._versions = versions
        self._pending = pending
        self._event = event
        self._not_before = events.not_before(event)
        self._others = cycle(versions)
        self._waiting_since = since
        """The event cannot have started before."""
        self._started = False
        self._in_time = False
        self._unshown = [version for version in versions if events.is_known(event, version)]
        """Versions in which it has not been seen Started."""
        self.told = ""
        """What it last was."""

    @property
    def event_id(self) -> str:
        return str(self._event.get("EventId"))

    def born_started(self) -> None:
        why = "the event was Started from the beginning"
        for version in self._versions:
            for clause in ("approval.all-or-nothing", "header.required-on-post", "life.notice"):
                self._sheet.skip(clause, version, why)
        for clause in ("approval.accepted", "approval.takes-effect", "approval.no-effect", "approval.many"):
            self._sheet.skip(clause, None, why)

    def until_started(self) -> bool:
        """Whether an approval brought it on, rather than its time."""
        deadline = monotonic() + self._asker.pace.starts
        while not self._started and monotonic() < deadline:
            if not self._look():
                return True
            # No approval but that one.
            self._look_around()
        return self._in_time

    def until_gone(self) -> bool:
        newest = self._documents.newest
        seconds = self._asker.pace.ends
        deadline = monotonic() + seconds
        while listed := self._look():
            if monotonic() >= deadline:
                break
            self._go_on()
        if listed:
            self._sheet.judge("life.gone", newest, False, f"gone within {seconds:g} s", self.told)
            return False
        self._judge_end()
        return True

    # One step

    def _look(self) -> bool:
        """Whether it is still listed."""
        document = self._documents.ask(self._documents.newest)
        if document is None:
            return True
        event = self._follow(document)
        if event is None:
            self._gone_at = document.at
            return False
        status = event.get("EventStatus")
        self.told = f"it is {status}"
        if status == "Started":
            self._in_time |= not self._started and (self._not_before is None or document.date < self._not_before)
            self._started = True
            self._show(document.version)
        elif status == "Scheduled":
            self._sheet.judge("life.forwards", None, not self._started, "Started or gone", "Scheduled again")
            self._waiting_since = document.asked
        return True

    def _go_on(self) -> None:
        """Something else about it: in another version, or one more approval."""
        if self._started and self._unshown:
            self._look_at(self._unshown[0])
            return
        status = self._event.get("EventStatus")
        repeat = next((repeat for repeat in self._pending if repeat.fits(status)), None)
        if repeat is None:
            self._look_around()
            return
        self._pending.remove(repeat)
        heard = self._asker.ask(repeat.question(self.event_id))
        if self._sheet.judge(repeat.clause, repeat.version, heard.status == 200, "200", heard):
            self._sheet.judge("approval.empty", repeat.version, not heard.body, "no body", f"{len(heard.body)} bytes")

    def _look_around(self) -> None:
        pause(self._asker.pace.between)
        self._look_at(next(self._others))

    def _look_at(self, version: Version) -> None:
        document = self._documents.ask(version)
        event = document.event(self.event_id) if document else None
        if event is not None and event.get("EventStatus") == "Started":
            self._show(version)
        elif self._started and version in self._unshown:
            # It may have ended meanwhile; if not, it is looked at once more.
            self._unshown.append(self._unshown.pop(0))

    def _show(self, version: Version) -> None:
        self._sheet.judge("life.started", version, True, "", "")
        if version in self._unshown:
            self._unshown.remove(version)

    def _follow(self, document: Document) -> Event | None:
        found = document.event(self.event_id)
        if found is None and document.events:
            # Nothing else was announced before: this must be it.
            found = document.events[0]
            self._sheet.judge("life.same-id", None, False, self.event_id, found.get("EventId"))
        if found is not None:
            self._event = found
        return found

    # The end

    def _judge_end(self) -> None:
        judge = self._sheet.judge
        judge("life.same-id", None, True, "", "")
        if not self._started:
            judge("life.started", self._documents.newest, False, "Started", "gone without it")
        listed = self._gone_at - self._waiting_since
        shown = self._asker.pace.shown
        judge("life.shown", None, listed >= shown, f"at least {shown:g} s", f"at most {listed:.1f} s")
        for version in self._versions:
            document = self._documents.ask(version)
            if document is not None:
                gone = document.event(self.event_id) is None
                judge("life.gone", version, gone, "no longer listed", "still listed")
            if version in self._unshown:
                self._sheet.skip("life.started", version, "it ended before it could be looked at")
            elif not events.is_known(self._event, version):
                kind = self._event.get("EventType")
                self._sheet.skip("life.started", version, f"this version does not list {kind}")
