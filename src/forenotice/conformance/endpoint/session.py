"""An endpoint that is being judged: what is sent to it, and for each clause and version one verdict."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from forenotice.client import errors as client_errors
from forenotice.client.discovery import Candidate
from forenotice.clock import MachineClock
from forenotice.conformance.command import Provoke
from forenotice.conformance.endpoint import clauses, documents
from forenotice.conformance.endpoint.clauses import Basis, Clause, Needs
from forenotice.conformance.endpoint.documents import Document, Event, id_of, is_known, written
from forenotice.conformance.endpoint.http import JSON, PATH, Pace, Request, Requester, Response, get, pause
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.wire import dates, versions
from forenotice.wire.versions import Version

Progress = Callable[[str], None]

LONGEST = 160
"""Of what was seen, in characters."""
BLANK_RESPONSES = 5
"""So often a document is requested that comes as a 200 without a body."""
SKEW = timedelta(minutes=5)
"""Between the endpoint's clock and ours."""
NO_DOCUMENT_YET = "no document yet: the 200 had no body"
UNSEEN = {
    Needs.NOTHING: "it could not be judged",
    Needs.EVENT: "no event was listed",
    Needs.PROVOKED: "needs an event: give --provoke",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    versions: Sequence[Version] = versions.ALL
    """Oldest first."""
    provoke: Provoke | None = None
    speed: float = 1
    """By which the durations of the endpoint are divided."""
    strict: bool = False
    """What only forenotice promises counts, too."""
    pace: Pace = field(default_factory=Pace)


class Findings:
    def __init__(self, versions: Sequence[Version], *, strict: bool) -> None:
        self._versions = versions
        self._strict = strict
        self._found: dict[tuple[str, str], Finding] = {}
        self._skipped: dict[tuple[str, str], Finding] = {}
        self._moot: set[str] = set()
        self.unseen = dict(UNSEEN)
        """Why a clause that nothing was found about is not applicable."""

    def judge(
        self,
        clause_id: str,
        version: Version | None,
        ok: bool,
        expected: str = "",
        seen: object = "",
        response: Response | None = None,
    ) -> bool:
        """The first failure stays. A clause that does not concern the version is left alone."""
        clause = clauses.BY_ID[clause_id]
        where = self._where(clause, version)
        if where is None or (ok and clause_id in self._moot):
            return ok
        known = self._found.get((clause_id, where))
        if known is None or (known.verdict is Verdict.PASSED and not ok):
            about = response or (seen if isinstance(seen, Response) else None)
            self._found[clause_id, where] = self._judged(
                clause, where, ok, expected, str(seen)[:LONGEST], str(about.request) if about else ""
            )
        return ok

    def judged(self, clause_id: str, version: Version | None = None) -> bool | None:
        """Whether it holds, so far; None: nothing was found about it."""
        found = self._found.get((clause_id, self._where(clauses.BY_ID[clause_id], version) or ""))
        return None if found is None else found.verdict is Verdict.PASSED

    def skip(self, clause_id: str, version: Version | None, why: str) -> None:
        """It stays so unless it is judged after all."""
        clause = clauses.BY_ID[clause_id]
        where = self._where(clause, version)
        if where is not None:
            self._skipped.setdefault((clause_id, where), _finding(clause, where, why=why))

    def skip_all(self, version: Version | None, why: str, *sections: str) -> None:
        """That concern the version, or have nothing to do with versions if it is None."""
        for clause in clauses.ALL:
            concerned = (clause.versions is clauses.once) == (version is None)
            if concerned and (not sections or clause.section in sections):
                self.skip(clause.id, version, why)

    def make_moot(self, clause_ids: Iterable[str], why: str) -> None:
        """From now on it proves nothing that they seem to hold."""
        for clause_id in clause_ids:
            self._moot.add(clause_id)
            for version in self._versions:
                self.skip(clause_id, version, why)

    def report(self, subject: str) -> Report:
        return Report(
            subject=subject,
            findings=[
                self._found.get((clause.id, where))
                or self._skipped.get((clause.id, where))
                or _finding(clause, where, why=self.unseen[clause.needs])
                for clause in clauses.ALL
                for where in dict.fromkeys(self._where(clause, version) for version in self._versions)
                if where is not None
            ],
        )

    def _where(self, clause: Clause, version: Version | None) -> str | None:
        if clause.versions is clauses.once:
            return ""
        return version.name if version in self._versions and version and clause.versions(version) else None

    def _judged(self, clause: Clause, where: str, ok: bool, expected: str, seen: str, request: str) -> Finding:
        if ok:
            return _finding(clause, where, Verdict.PASSED)
        if clause.basis is Basis.OURS and not self._strict:
            why = f"judged only with --strict; expected {expected}, saw {seen}"
            return _finding(clause, where, why=why, request=request)
        return _finding(clause, where, Verdict.FAILED, expected=expected, seen=seen, request=request)


def _finding(clause: Clause, where: str, verdict: Verdict = Verdict.NOT_APPLICABLE, **facts: str) -> Finding:
    ours = clause.basis is Basis.OURS
    return Finding(clause=clause.id, says=clause.says, ours=ours, where=where, verdict=verdict, **facts)


class Session(Findings):
    """Sends requests, and judges every response and every document."""

    def __init__(self, endpoint: Candidate, options: Options, progress: Progress = lambda _: None) -> None:
        super().__init__(options.versions, strict=options.strict)
        self.http = Requester(endpoint.host, endpoint.port, options.pace, self.judge_response, progress)
        self.pace = options.pace
        self.send = self.http.send
        self.versions = list(options.versions)
        """Those that are judged; the others are held against the newest."""
        self.started: set[str] = set()
        """Ids of events that have been seen so."""
        self._blank: set[Version] = set()
        """In which no document came, however often it was requested."""
        self._known: dict[tuple[str, int], tuple[bytes, str]] = {}
        self._last: dict[str, Document] = {}
        self._latest: Document | None = None
        self._facts: dict[tuple[str, str], dict[str, object]] = {}

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def expect(
        self, clause: str, version: Version | None, status: int, request: Request, expected: str = ""
    ) -> Response:
        response = self.send(request)
        self.judge(clause, version, response.status == status, expected or str(status), response)
        return response

    def risk(self) -> str:
        """Why nothing is sent that a wrong server might take for an approval; the newest version shows all events."""
        document = self.fetch(self.newest)
        if document is None:
            return (
                "whether an event is announced could not be seen: nothing is sent that might be taken for its approval"
            )
        return "an event is announced: nothing is sent that might be taken for its approval" if document.events else ""

    def judge_response(self, response: Response) -> None:
        """What holds for every response."""
        if not response.status:
            return
        request = response.request
        for version in [each for each in self.versions if each.name == request.version] or self.versions:
            date = response.headers.get("date", "none")
            moment = client_errors.date_of(response)
            self.judge("document.date", version, moment is not None, "a Date", date, response)
            if moment is not None:
                now = MachineClock().now()
                about = f"about {dates.http(now)}"
                self.judge("document.clock", version, abs(moment - now) <= SKEW, about, date, response)
            if 400 <= response.status < 500 and request.method != "HEAD":
                # The refusal of the header or the version alone has a clause of its own.
                plain = response.status == 400 and request.method == "GET" and request.path == PATH
                known = plain and set(request.headers) <= {"Metadata"} and request.query.count("api-version") < 2
                sound = bool(error(response)) and response.media_type == JSON
                seen = f"{response.media_type} {response.body[:60]!r}"
                clause = "error.shape" if known else "error.everywhere"
                self.judge(clause, version, sound, '{"error":"..."} as JSON in UTF-8', seen, response)

    # Documents

    def fetch(self, version: Version) -> Document | None:
        response = self.send(get(version.name))
        for _ in range(BLANK_RESPONSES):
            if response.status != 200 or response.body.strip() or version in self._blank:
                break
            pause(self.pace.settles)
            response = self.send(get(version.name))
        return self.read(version, response)

    def read(self, version: Version, response: Response) -> Document | None:
        judge = partial(self.judge, response=response)
        if not judge("endpoint.get", version, response.status == 200, "200", response):
            return None
        if not response.body.strip() and version.name not in self._last:
            self._blank.add(version)
            self.skip_all(version, NO_DOCUMENT_YET, "document", "etag", "wait")
            return Document(version=version, response=response)
        judge("document.content-type", version, response.media_type == JSON, JSON, response.media_type)
        judge("etag.present", version, "etag" in response.headers, "an ETag", "none")
        try:
            found = documents.decode(response.body)
        except (ValueError, RecursionError) as error:
            judge("document.compact", version, False, "JSON in UTF-8", error if response.body else "no body")
            return None
        compact = documents.is_compact(response.body)
        judge("document.compact", version, compact, "no blanks or lines between parts", response.body[:40])
        document = self._shaped(version, response, found)
        if document is not None:
            self._compare(document)
            ids = [id_of(event).upper() for event in document.events]
            for event in document.events:
                self._judge_event(document, event)
                judge("event.once", version, ids.count(id_of(event).upper()) == 1, "each id once", written(ids))
                self._judge_facts(document, event)
        return document

    def _shaped(self, version: Version, response: Response, found: Any) -> Document | None:
        judge = partial(self.judge, response=response)
        keys = documents.KEYS
        if not isinstance(found, dict) or not isinstance(found.get("Events"), list):
            judge("document.shape", version, False, " and ".join(keys), response.body[:60])
            return None
        listed = [event for event in found["Events"] if isinstance(event, dict)]
        sound = set(found) == set(keys) and len(listed) == len(found["Events"])
        judge("document.shape", version, sound, " and ".join(keys), ", ".join(found))
        judge("document.order", version, documents.in_order(found, keys), ", ".join(keys), ", ".join(found))
        number = found.get("DocumentIncarnation")
        judge("document.number", version, type(number) is int and number >= 1, "a number from 1 on", json.dumps(number))
        return Document(version=version, incarnation=documents.number(number), events=listed, response=response)

    def _judge_event(self, document: Document, event: Event) -> None:
        """By itself."""
        judge, version = partial(self.judge, response=document.response), document.version
        keys = ", ".join(version.keys)
        judge("event.keys", version, set(event) == set(version.keys), keys, ", ".join(event))
        judge("document.order", version, documents.in_order(event, version.keys), keys, ", ".join(event))
        if documents.status(event) == "Started":
            judge("life.started", version, True)
            self.started.add(id_of(event))
        for clause, (key, expected, is_sound) in documents.checks(event, version).items():
            judge(clause, version, bool(is_sound(event.get(key))), expected, json.dumps(event.get(key)))

    def _judge_facts(self, document: Document, event: Event) -> None:
        """Beside what was known of it; only VMs may be dropped."""
        version = document.version
        known = self._facts.setdefault((version.name, id_of(event).upper()), {})
        for key, value in documents.facts(event).items():
            before = known.get(key, value)
            dropped = isinstance(value, list) and isinstance(before, list) and all(name in before for name in value)
            same = value == before or dropped
            self.judge("life.same-facts", version, same, f"{key} {before}", value, document.response)
            known[key] = value

    def _compare(self, new: Document) -> None:
        """Beside those that came before."""
        judge, version = partial(self.judge, response=new.response), new.version
        digest = sha256(new.response.body).digest()
        body, tag = self._known.setdefault((version.name, new.incarnation), (digest, new.tag))
        judge("document.stable", version, body == digest, "the same bytes", f"others with number {new.incarnation}")
        if new.tag:
            judge("etag.stable", version, tag == new.tag, tag, new.tag)
        last, latest = self._last.get(version.name), self._latest
        self._last[version.name] = self._latest = new
        if last is not None and last.events != new.events:
            grown = f"more than {last.incarnation}"
            judge("document.grows", version, new.incarnation > last.incarnation, grown, new.incarnation)
            if new.tag:
                judge("etag.changes", version, new.tag != last.tag, "another tag", f"{new.tag} again")
        elif last is not None and new.incarnation < last.incarnation:
            judge("document.grows", version, False, f"at least {last.incarnation}", new.incarnation)
        if latest is not None and latest.version is not version:
            self._compare_versions(latest, new)

    def _compare_versions(self, earlier: Document, later: Document) -> None:
        judge, version = partial(self.judge, response=later.response), later.version
        other = version if earlier.version is self.newest else earlier.version
        at_least = f"at least {earlier.incarnation}, as in {earlier.version.name} before"
        judge("document.all-versions", other, later.incarnation >= earlier.incarnation, at_least, later.incarnation)
        judge("document.all-versions", self.newest, True)
        newest = self._last.get(self.newest.name)
        if newest is None or newest.incarnation != later.incarnation or not newest.events:
            return
        wanted, listed = (
            [id_of(event) for event in document.events if is_known(event, version)] for document in (newest, later)
        )
        judge("version.same-events", version, wanted == listed, written(wanted), written(listed))
        for clause in ("version.same-events", "version.same-facts"):
            judge(clause, self.newest, True)
        for event in later.events:
            twin = newest.event(id_of(event))
            if twin is None:
                continue
            # The names of VMs differ between versions, and have a clause of their own.
            facts, found = documents.facts(twin), documents.facts(event)
            for key in (facts.keys() & found.keys()) - {"Resources"}:
                judge("version.same-facts", version, facts[key] == found[key], f"{key} {facts[key]}", found[key])
            if isinstance(twin.get("Resources"), list):
                names = [documents.renamed(name, version) for name in twin["Resources"]]
                resources = event.get("Resources")
                judge("version.names", version, resources == names, written(names), json.dumps(resources))


def json_of(response: Response) -> dict[str, object]:
    """Empty where it is no JSON object."""
    try:
        found = json.loads(response.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def error(response: Response) -> str:
    """What a refusal says, in the one shape that it should have."""
    found = json_of(response).get("error")
    return found if isinstance(found, str) else ""
