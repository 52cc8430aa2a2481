"""A server fails exactly the clauses that it breaks."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tests.conformance.wrong_server import LASTS, WrongServer, serving

from forenotice.client.discovery import parse
from forenotice.conformance.endpoint import clauses, run
from forenotice.conformance.endpoint.http import Pace
from forenotice.conformance.endpoint.session import Options, Progress
from forenotice.conformance.report import Report, Verdict
from forenotice.wire import versions

PACE = Pace(burst=1, wait=0.8, appears=0.5, starts=0.5, ends=3, lingers=1, settles=0.02, prompt=1, between=0.02)
AT_ONCE = 16
"""So many servers are judged side by side; mostly they wait."""
TWO = ("2017-03-01", "2020-07-01")


@dataclass(frozen=True)
class Case:
    versions: Sequence[str] = ("2020-07-01",)
    provoked: bool = False
    kind: str = "Reboot"
    lasts: float = LASTS
    """For so many seconds its events are Started."""


RESTING = Case()
LIVING = Case(provoked=True)
LONGER = Case(provoked=True, lasts=2)
TWO_LIVING = Case(TWO, provoked=True)

REPEATS = (
    "approval.idempotent approval.started approval.incarnation approval.unknown-keys approval.content-type"
    " approval.large etag.on-post endpoint.chunked endpoint.expect"
)

EACH: Sequence[tuple[Case, Mapping[str, str]]] = (
    (
        RESTING,
        {
            "no-tag": "etag.present",
            "no-instance": "instance.document instance.versions",
            "no-version-check": "version.missing version.unknown version.latest",
            "errors-as-text": "error.shape error.everywhere error.header error.version version.listed",
            "number-restless": "document.quiet etag.unchanged etag.forms wait.held",
            "random-tag": "etag.stable etag.unchanged etag.forms wait.held",
            "tag-ignored": "etag.unchanged etag.forms wait.held",
            "any-tag-matches": "etag.other wait.at-once",
            "no-wait": "wait.held",
        },
    ),
    (
        LIVING,
        {
            "no-header-check": "header.required header.required-on-post instance.header",
            "new-id-at-every-state": "life.same-id",
            "first-only": "approval.all-or-nothing approval.many",
            "malformed-accepted": "approval.malformed approval.all-or-nothing",
            "false-header-on-post": "header.required-on-post",
            "proxy-unchecked-on-post": "endpoint.proxy",
            "repeated-on-post": "endpoint.repeated",
            "version-unchecked-on-post": "approval.version endpoint.order",
            "not-before-moves": "life.same-facts",
            "number-stands": "document.stable document.grows etag.changes wait.answered",
            "lower-case-status": "event.status",
            "no-id": "event.keys event.id life.appears",
            "wait-sleeps": "wait.at-once wait.answered",
            "large-accepted": "approval.too-large",
            "unknown-accepted": "approval.unknown-id approval.all-or-nothing",
            "any-id-starts": "approval.unknown-id approval.no-effect approval.all-or-nothing",
            "starts-though-refused": "approval.no-effect",
            "no-effect": "approval.takes-effect",
            "all-refused": "approval.accepted",
            "id-case": "approval.id-case",
            "never-appears": "life.appears",
            "never-started": "life.started life.shown",
            "completed-stays": "event.status life.gone",
            "back-to-scheduled": "life.forwards",
        },
    ),
    (
        LONGER,
        {
            "answers-202": f"approval.accepted approval.ended {REPEATS}",
            "only-once": f"approval.ended {REPEATS}",
            "briefly-started": "life.shown",
        },
    ),
    (replace(LIVING, lasts=1), {"never-gone": "life.gone"}),
    (replace(LIVING, lasts=1.1), {"same-id-again": "life.forwards life.same-facts"}),
    (
        TWO_LIVING,
        {
            "version-unread": "version.missing version.unknown version.latest approval.version event.keys"
            " version.names",
            "hidden-from-old": "version.same-events",
        },
    ),
    (Case(TWO), {"number-by-version": "document.all-versions"}),
    (Case(("2019-04-01", "2020-07-01")), {"version-not-served": "endpoint.get"}),
    (Case(("2019-08-01", "2020-07-01"), provoked=True), {"description-by-version": "version.same-facts"}),
)
"""Mistakes, each of a server of its own, with the clauses that it breaks."""

TOGETHER: Sequence[tuple[Case, Mapping[str, str]]] = (
    (
        RESTING,
        {
            "header-value-exact": "header.case",
            "path-case": "endpoint.path-case",
            "head-like-get": "endpoint.other-methods",
            "no-allow": "endpoint.allow",
            "no-proxy-check": "endpoint.proxy instance.proxy",
            "via-accepted": "endpoint.proxy-signs",
            "any-host": "endpoint.host",
            "no-host-accepted": "endpoint.no-host",
            "repeated-accepted": "endpoint.repeated",
            "version-before-header": "endpoint.order",
            "absolute-form-unknown": "endpoint.absolute-form",
            "http-1-0-refused": "endpoint.http-1-0",
            "unknown-path-400": "error.path",
            "approval-errors-as-text": "error.everywhere",
            "no-newest-versions": "version.listed",
            "instance-one-version": "instance.any-version",
            "no-date": "document.date",
        },
    ),
    (
        RESTING,
        {
            "not-found-for-method": "endpoint.method endpoint.other-methods",
            "latest-accepted": "version.latest",
            "historic-path-unknown": "version.in-path",
            "other-words": "error.header error.version",
            "oldest-versions-named": "version.listed",
            "date-of-yesterday": "document.clock",
            "html": "document.content-type",
            "pretty": "document.compact",
            "other-order": "document.order",
            "extra-key": "document.shape",
            "number-as-text": "document.number",
            "tag-exact": "etag.forms",
            "tag-on-post": "etag.on-post",
            "wait-unconditional": "wait.unconditional",
            "empty-list-accepted": "approval.malformed",
            "few-keys": "instance.keys",
            "numbers-in-instance": "instance.text",
            "leaf-quoted": "instance.leaf",
            "leaf-in-json": "instance.leaf-json",
            "instance-any-version": "instance.version instance.no-version",
            "versions-are-numbers": "instance.versions",
        },
    ),
    (
        LIVING,
        {
            "listed-twice": "event.once",
            "completed-shown": "event.status",
            "short-notice": "life.notice",
            "other-name": "instance.name",
            "forgets-the-ended": "approval.ended",
        },
    ),
    (
        LIVING,
        {
            "underscores-everywhere": "version.names",
            "answers-with-body": "approval.empty",
            "form-refused": "approval.content-type",
            "number-beside-refused": "approval.incarnation",
            "unchanged-on-post": "etag.on-post",
            "only-small-accepted": "approval.large",
            "unknown-keys-refused": "approval.unknown-keys",
            "chunks-unread": "endpoint.chunked",
            "expectation-failed": "endpoint.expect",
        },
    ),
    (
        TWO_LIVING,
        {
            "header-on-every-post": "header.optional-on-post",
            "no-underscore": "version.names",
            "iso-dates": "event.not-before",
            "not-before-kept": "event.blank",
            "lower-case-ids": "event.id",
            "other-resource-type": "event.resource-type",
            "no-description-text": "event.description",
            "other-source": "event.source",
            "duration-as-text": "event.duration",
        },
    ),
    (
        Case(("2017-08-01", "2020-07-01"), provoked=True, kind="Preempt"),
        {"description-too-early": "event.keys", "type-too-early": "version.types", "no-resources": "event.resources"},
    ),
)
"""Mistakes of one server that cannot be confused, each with the clauses that it breaks."""

SERVERS: Sequence[tuple[Case, Mapping[str, str]]] = (
    *((case, {mistake: broken}) for case, mistakes in EACH for mistake, broken in mistakes.items()),
    *TOGETHER,
)


def silent(_: str) -> None:
    pass


def judged(
    wrong: WrongServer,
    case: Case,
    *,
    strict: bool = True,
    pace: Pace = PACE,
    speed: float = 1,
    progress: Progress = silent,
) -> Report:
    known = [version for version in versions.ALL if version.name in case.versions]
    with serving(wrong):
        provoke = wrong.provoke if case.provoked else None
        options = Options(
            versions=known, provoke=provoke, strict=strict, speed=speed, pace=replace(pace, shown=case.lasts * 0.9)
        )
        return run.judge(parse(wrong.url, "the test"), options, progress)


def having(report: Report, verdict: Verdict) -> set[str]:
    return {finding.clause for finding in report.findings if finding.verdict is verdict}


def test_every_mistake_breaks_exactly_its_clauses() -> None:
    def surprise(server: tuple[Case, Mapping[str, str]]) -> str:
        case, mistakes = server
        report = judged(WrongServer(*mistakes, kind=case.kind, lasts=case.lasts), case)
        assert all(finding.request for finding in report.findings if finding.verdict is Verdict.FAILED), report
        failed, wanted = having(report, Verdict.FAILED), set(" ".join(mistakes.values()).split())
        wrong = f"{', '.join(mistakes)}: fails also {failed - wanted}, does not fail {wanted - failed}"
        return "" if failed == wanted else wrong

    longest_first = sorted(SERVERS, key=lambda server: (server[0].lasts, server[0].provoked), reverse=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(surprise, longest_first))
    # Side by side with so many, one may have been slow.
    again = [surprise(server) for server, wrong in zip(longest_first, found, strict=True) if wrong]
    assert "\n".join(filter(None, again)) == ""


def test_every_clause_is_broken() -> None:
    broken = {clause for _, mistakes in SERVERS for ids in mistakes.values() for clause in ids.split()}
    assert {clause.id for clause in clauses.ALL} - {"error.rate"} == broken


def test_without_a_mistake_everything_passes_in_every_version() -> None:
    report = judged(WrongServer(), Case([version.name for version in versions.ALL], provoked=True))
    assert [finding for finding in report.findings if finding.verdict is Verdict.FAILED] == []
    assert having(report, Verdict.NOT_APPLICABLE) == {"error.rate"}
