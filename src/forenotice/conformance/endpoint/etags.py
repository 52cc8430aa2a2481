"""Judging ETags, and the waiting that builds on them."""

from collections.abc import Sequence

from forenotice.conformance.endpoint.documents import Document, Documents
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import PendingRequest, Requester, Response, get, pause
from forenotice.wire.versions import Version

OTHER = '"0-other"'
LONG_WAIT = 60


class Tags:
    def __init__(self, http: Requester, findings: Findings, documents: Documents) -> None:
        self._http = http
        self._findings = findings
        self._documents = documents
        self._seconds = http.pace.wait
        self._early = http.pace.wait / 2
        """An answer before this was not held."""
        self.waiting: list[Version] = []
        """In which waiting is offered."""

    def judge(self, version: Version) -> None:
        """Twice, because a document may change between asking for its tag and using it."""
        first = self._documents.fetch(version)
        again = self._documents.fetch(version)
        if first is None or again is None or first.is_blank or again.is_blank:
            return
        if first.incarnation != again.incarnation and first.events != again.events:
            first, again = again, self._documents.fetch(version) or again
        if first.events == again.events:
            same = first.incarnation == again.incarnation
            self._findings.judge(
                "document.quiet", version, same, str(first.incarnation), again.incarnation, again.response
            )
        if again.tag:
            self._judge_conditions(version, again)
        else:
            for clause in ("etag.stable", "etag.unchanged", "etag.forms", "etag.other", "etag.changes"):
                self._findings.skip(clause, version, "there is no ETag")

    def _judge_conditions(self, version: Version, document: Document) -> None:
        bare = document.tag.removeprefix("W/").strip('"')
        forms = {"bare": bare, "weak": f'W/"{bare}"', "in a list": f'{OTHER}, "{bare}"'}
        response = self._conditional(version, document.tag)
        sound, seen = response.status == 304 and not response.body, f"{response} with {len(response.body)} bytes"
        self._findings.judge("etag.unchanged", version, sound, "304 without a body", seen, response)
        for form, text in forms.items():
            answer = self._conditional(version, text)
            self._findings.judge("etag.forms", version, answer.status == 304, f"304 for one that is {form}", answer)
        answer = self._conditional(version, OTHER)
        self._findings.judge("etag.other", version, answer.status == 200, "200", answer)

    def _conditional(self, version: Version, tag: str) -> Response:
        return self._http.send(get(version.name).having(If_None_Match=tag))

    # Waiting

    def judge_waiting(self, versions: Sequence[Version]) -> None:
        """All versions at once, because each wait takes its time, unless they cannot be asked at once."""
        for together in [[version] for version in versions] if self._http.is_paced else [versions]:
            self._judge_waits(together)

    def _judge_waits(self, versions: Sequence[Version]) -> None:
        pending: dict[Version, PendingRequest] = {}
        for version in versions:
            document = self._documents.fetch(version)
            if document is not None and document.tag:
                pending[version] = self.wait(version, document.tag, self._seconds)
            else:
                self._skip(version, "there is no ETag to wait with")
        pause(self._early)
        early = {version for version, sent in pending.items() if sent.is_answered() and sent.age < self._seconds}
        for version, pending_request in pending.items():
            response = pending_request.finish()
            held = version not in early and response.status == 304
            seen = f"{response} {'at once' if version in early else 'later'}"
            self._findings.judge("wait.held", version, held, "304 when the time is up", seen, response)
            if version in early:
                self._skip(version, "waiting is not offered")
            else:
                self.waiting.append(version)
                self._judge_at_once(version)

    def wait(self, version: Version, tag: str, seconds: float) -> PendingRequest:
        request = get(version.name).having(If_None_Match=tag, Prefer=f"wait={seconds:g}")
        return self._http.begin(request, self._http.pace.answer + seconds)

    def _judge_at_once(self, version: Version) -> None:
        preferring = get(version.name).having(Prefer=f"wait={self._seconds:g}")
        other = preferring.having(If_None_Match=OTHER)
        for clause, request in (("wait.unconditional", preferring), ("wait.at-once", other)):
            response = self._http.send(request)
            sound = response.status == 200 and response.seconds < self._early
            self._findings.judge(
                clause, version, sound, "200 at once", f"{response} after {response.seconds:.1f} s", response
            )

    def _skip(self, version: Version, why: str) -> None:
        for clause in ("wait.held", "wait.at-once", "wait.unconditional", "wait.answered"):
            self._findings.skip(clause, version, why)
