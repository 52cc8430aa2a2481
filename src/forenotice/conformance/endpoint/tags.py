"""Judging ETags, and the waiting that builds on them."""

from collections.abc import Sequence

from forenotice.conformance.endpoint.asking import Asker, Flight, Heard, pause
from forenotice.conformance.endpoint.documents import Document, Documents
from forenotice.conformance.endpoint.questions import get
from forenotice.conformance.endpoint.sheet import Sheet
from forenotice.wire.versions import Version

OTHER = '"0-other"'
LONG_WAIT = 60


class Tags:
    def __init__(self, asker: Asker, sheet: Sheet, documents: Documents) -> None:
        self._asker = asker
        self._sheet = sheet
        self._documents = documents
        self._seconds = asker.pace.wait
        self._early = asker.pace.wait / 2
        """An answer before this was not held."""
        self.waiting: list[Version] = []
        """In which waiting is offered."""

    def judge(self, version: Version) -> None:
        """Twice, because a document may change between asking for its tag and using it."""
        first = self._documents.ask(version)
        again = self._documents.ask(version)
        if first is None or again is None or first.is_blank or again.is_blank:
            return
        if first.incarnation != again.incarnation and first.events != again.events:
            first, again = again, self._documents.ask(version) or again
        if first.events == again.events:
            same = first.incarnation == again.incarnation
            self._sheet.judge("document.quiet", version, same, str(first.incarnation), again.incarnation, again.heard)
        if again.tag:
            self._judge_conditions(version, again)
        else:
            for clause in ("etag.stable", "etag.unchanged", "etag.forms", "etag.other", "etag.changes"):
                self._sheet.skip(clause, version, "there is no ETag")

    def _judge_conditions(self, version: Version, document: Document) -> None:
        bare = document.tag.removeprefix("W/").strip('"')
        forms = {"bare": bare, "weak": f'W/"{bare}"', "in a list": f'{OTHER}, "{bare}"'}
        heard = self._conditional(version, document.tag)
        sound, seen = heard.status == 304 and not heard.body, f"{heard} with {len(heard.body)} bytes"
        self._sheet.judge("etag.unchanged", version, sound, "304 without a body", seen, heard)
        for form, text in forms.items():
            answer = self._conditional(version, text)
            self._sheet.judge("etag.forms", version, answer.status == 304, f"304 for one that is {form}", answer)
        answer = self._conditional(version, OTHER)
        self._sheet.judge("etag.other", version, answer.status == 200, "200", answer)

    def _conditional(self, version: Version, tag: str) -> Heard:
        return self._asker.ask(get(version.name).having(If_None_Match=tag))

    # Waiting

    def judge_waiting(self, versions: Sequence[Version]) -> None:
        """All versions at once, because each wait takes its time, unless they cannot be asked at once."""
        for together in [[version] for version in versions] if self._asker.is_paced else [versions]:
            self._judge_waits(together)

    def _judge_waits(self, versions: Sequence[Version]) -> None:
        flights: dict[Version, Flight] = {}
        for version in versions:
            document = self._documents.ask(version)
            if document is not None and document.tag:
                flights[version] = self.wait(version, document.tag, self._seconds)
            else:
                self._skip(version, "there is no ETag to wait with")
        pause(self._early)
        early = {version for version, flight in flights.items() if flight.is_answered() and flight.age < self._seconds}
        for version, flight in flights.items():
            heard = flight.finish()
            held = version not in early and heard.status == 304
            seen = f"{heard} {'at once' if version in early else 'later'}"
            self._sheet.judge("wait.held", version, held, "304 when the time is up", seen, heard)
            if version in early:
                self._skip(version, "waiting is not offered")
            else:
                self.waiting.append(version)
                self._judge_at_once(version)

    def wait(self, version: Version, tag: str, seconds: float) -> Flight:
        question = get(version.name).having(If_None_Match=tag, Prefer=f"wait={seconds:g}")
        return self._asker.begin(question, self._asker.pace.answer + seconds)

    def _judge_at_once(self, version: Version) -> None:
        preferring = get(version.name).having(Prefer=f"wait={self._seconds:g}")
        other = preferring.having(If_None_Match=OTHER)
        for clause, question in (("wait.unconditional", preferring), ("wait.at-once", other)):
            heard = self._asker.ask(question)
            sound = heard.status == 200 and heard.seconds < self._early
            self._sheet.judge(clause, version, sound, "200 at once", f"{heard} after {heard.seconds:.1f} s", heard)

    def _skip(self, version: Version, why: str) -> None:
        for clause in ("wait.held", "wait.at-once", "wait.unconditional", "wait.answered"):
            self._sheet.skip(clause, version, why)
