"""Judging an endpoint from beginning to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from forenotice.client.finding import Candidate
from forenotice.conformance.endpoint import approvals, gates
from forenotice.conformance.endpoint.asking import Asker, Heard, Lost, Pace
from forenotice.conformance.endpoint.clauses import Needs
from forenotice.conformance.endpoint.documents import Document, Documents
from forenotice.conformance.endpoint.instance import Instance
from forenotice.conformance.endpoint.life import Life
from forenotice.conformance.endpoint.provoking import Provoke
from forenotice.conformance.endpoint.questions import get
from forenotice.conformance.endpoint.sheet import Sheet
from forenotice.conformance.endpoint.tags import Tags
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
        self._sheet = Sheet(options.versions, strict=options.strict)
        self._named = {version.name: version for version in options.versions}
        self._asker = Asker(
            endpoint.host, endpoint.port, options.pace, partial(gates.hear, self._sheet, self._named), progress
        )
        self._documents = Documents(self._asker, self._sheet, options.versions[-1])
        self._tags = Tags(self._asker, self._sheet, self._documents)
        self._instance = Instance(self._asker, self._sheet)

    def judge(self) -> Report:
        self._progress("waiting for the first answer")
        first = self._asker.ask_once(get(self._options.versions[-1].name), self._options.pace.first)
        if not first.status:
            raise errors.UnavailableError(f"{self._endpoint.url} cannot be judged: {first.problem}")
        try:
            self._judge_all(self._known(first))
        except Lost as lost:
            newest = self._options.versions[-1]
            self._sheet.judge("endpoint.get", newest, False, "answers to the end", lost, lost.heard)
            self._sheet.unseen = dict.fromkeys(Needs, str(lost))
        return self._sheet.report(self._endpoint.url)

    def _known(self, first: Heard) -> Sequence[Version]:
        """Without those at the end that are newer than the endpoint."""
        known = list(self._options.versions)
        while known and first.status in (400, 404):
            known.pop()
            first = self._asker.ask_once(get(known[-1].name)) if known else first
        known = known or list(self._options.versions)
        for version in self._options.versions[len(known) :]:
            self._sheet.skip_all(version, f"the endpoint knows no version after {known[-1].name}")
            del self._named[version.name]
        self._documents.newest = known[-1]
        return known

    def _judge_all(self, known: Sequence[Version]) -> None:
        served = self._served(known)
        if served:
            self._judge_resting(served)
            self._judge_living(list(served))
            self._progress("many requests at once")
            gates.judge_rate(self._asker, self._sheet, self._documents.newest)

    def _served(self, known: Sequence[Version]) -> dict[Version, Document]:
        """By version, as far as there is a document."""
        found = {version: self._documents.ask(version) for version in reversed(known)}
        for version, document in found.items():
            if document is None:
                self._sheet.skip_all(version, "there is no document in this version")
        served = {version: document for version, document in found.items() if document is not None}
        return dict(sorted(served.items(), key=lambda item: item[0].name))

    def _judge_resting(self, served: dict[Version, Document]) -> None:
        for version in served:
            self._progress(f"{version.name}: what is let in and what is refused")
            gates.judge(self._asker, self._sheet, version, self._hindrance)
            self._tags.judge(version)
            self._progress(f"{version.name}: what is no approval")
            approvals.judge(self._asker, self._sheet, version, self._hindrance)
        self._progress("versions")
        gates.judge_versions(self._asker, self._sheet, list(served))
        self._progress("waiting")
        self._tags.judge_waiting(list(served))
        self._progress("/metadata/instance")
        self._instance.judge()
        newest = next(reversed(served.values()))
        for event in newest.events:
            self._instance.judge_name(event, newest.heard)

    def _hindrance(self) -> str:
        """Why nothing is sent that a wrong server might take for an approval; the newest version shows all events."""
        document = self._documents.ask(self._documents.newest)
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
        self._sheet.unseen |= {Needs.EVENT: why, Needs.PROVOKED: why}
        life = Life(
            self._asker,
            self._sheet,
            self._documents,
            self._tags,
            served,
            provoke=self._options.provoke,
            speed=self._options.speed,
        )
        life.run()
        for sighting in life.seen:
            self._instance.judge_name(sighting.event, sighting.document.heard)
