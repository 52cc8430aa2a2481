"""Judging an endpoint from beginning to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from forenotice.client.discovery import Candidate
from forenotice.conformance.command import Provoke
from forenotice.conformance.endpoint import approvals, checks
from forenotice.conformance.endpoint.checks import Instance
from forenotice.conformance.endpoint.clauses import Needs
from forenotice.conformance.endpoint.documents import Document, Documents
from forenotice.conformance.endpoint.etags import Tags
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import Lost, Pace, Requester, Response, get
from forenotice.conformance.endpoint.lifecycle import Lifecycle
from forenotice.conformance.report import Report
from forenotice.core import errors
from forenotice.wire import versions
from forenotice.wire.versions import Version

Progress = Callable[[str], None]


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


def judge(endpoint: Candidate, options: Options, progress: Progress) -> Report:
    return Judge(endpoint, options, progress).judge()


class Judge:
    def __init__(self, endpoint: Candidate, options: Options, progress: Progress) -> None:
        self._endpoint = endpoint
        self._options = options
        self._progress = progress
        self._findings = Findings(options.versions, strict=options.strict)
        self._named = {version.name: version for version in options.versions}
        self._http = Requester(
            endpoint.host, endpoint.port, options.pace, partial(checks.hear, self._findings, self._named), progress
        )
        self._documents = Documents(self._http, self._findings, options.versions[-1])
        self._tags = Tags(self._http, self._findings, self._documents)
        self._instance = Instance(self._http, self._findings)

    def judge(self) -> Report:
        self._progress("waiting for the first answer")
        first = self._http.send_once(get(self._options.versions[-1].name), self._options.pace.first)
        if not first.status:
            raise errors.UnavailableError(f"{self._endpoint.url} cannot be judged: {first.problem}")
        try:
            self._judge_all(self._known(first))
        except Lost as lost:
            newest = self._options.versions[-1]
            self._findings.judge("endpoint.get", newest, False, "answers to the end", lost, lost.response)
            self._findings.unseen = dict.fromkeys(Needs, str(lost))
        return self._findings.report(self._endpoint.url)

    def _known(self, first: Response) -> Sequence[Version]:
        """Without those at the end that are newer than the endpoint."""
        known = list(self._options.versions)
        while known and first.status in (400, 404):
            known.pop()
            first = self._http.send_once(get(known[-1].name)) if known else first
        known = known or list(self._options.versions)
        for version in self._options.versions[len(known) :]:
            self._findings.skip_all(version, f"the endpoint knows no version after {known[-1].name}")
            del self._named[version.name]
        self._documents.newest = known[-1]
        return known

    def _judge_all(self, known: Sequence[Version]) -> None:
        served = self._served(known)
        if served:
            self._judge_resting(served)
            self._judge_living(list(served))
            self._progress("many requests at once")
            checks.judge_rate(self._http, self._findings, self._documents.newest)

    def _served(self, known: Sequence[Version]) -> dict[Version, Document]:
        """By version, as far as there is a document."""
        found = {version: self._documents.fetch(version) for version in reversed(known)}
        for version, document in found.items():
            if document is None:
                self._findings.skip_all(version, "there is no document in this version")
        served = {version: document for version, document in found.items() if document is not None}
        return dict(sorted(served.items(), key=lambda item: item[0].name))

    def _judge_resting(self, served: dict[Version, Document]) -> None:
        for version in served:
            self._progress(f"{version.name}: what is let in and what is refused")
            checks.judge(self._http, self._findings, version, self._skip_reason)
            self._tags.judge(version)
            self._progress(f"{version.name}: what is no approval")
            approvals.judge(self._http, self._findings, version, self._skip_reason)
        self._progress("versions")
        checks.judge_versions(self._http, self._findings, list(served))
        self._progress("waiting")
        self._tags.judge_waiting(list(served))
        self._progress("/metadata/instance")
        self._instance.judge()
        newest = next(reversed(served.values()))
        for event in newest.events:
            self._instance.judge_name(event, newest.response)

    def _skip_reason(self) -> str:
        """Why nothing is sent that a wrong server might take for an approval; the newest version shows all events."""
        document = self._documents.fetch(self._documents.newest)
        if document is None:
            return (
                "whether an event is announced could not be seen: nothing is sent that might be taken for its approval"
            )
        return "an event is announced: nothing is sent that might be taken for its approval" if document.events else ""

    def _judge_living(self, served: Sequence[Version]) -> None:
        if self._options.provoke is None:
            return
        self._progress("the life of an event")
        why = "the provoked event did not get that far"
        self._findings.unseen |= {Needs.EVENT: why, Needs.PROVOKED: why}
        life = Lifecycle(
            self._http,
            self._findings,
            self._documents,
            self._tags,
            served,
            provoke=self._options.provoke,
            speed=self._options.speed,
        )
        life.run()
        for sighting in life.seen:
            self._instance.judge_name(sighting.event, sighting.document.response)
