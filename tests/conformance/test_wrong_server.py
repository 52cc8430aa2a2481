"""A server fails exactly the clauses that it breaks."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tests.conformance.wrong_server import LASTS, Mistake, WrongServer, serving

from forenotice.client.discovery import parse
from forenotice.conformance.endpoint import clauses, run
from forenotice.conformance.endpoint.http import Pace
from forenotice.conformance.endpoint.run import Options
from forenotice.conformance.report import Report, Verdict
from forenotice.wire import versions

PACE = Pace(burst=1, wait=0.8, appears=0.5, starts=0.5, ends=3, lingers=1, settles=0.02, prompt=1, between=0.02)
AT_ONCE = 16
"""So many servers are judged side by side; mostly they wait."""


@dataclass(frozen=True)
class Case:
    breaks: str
    """Ids, apart by blanks."""
    versions: Sequence[str] = ("2020-07-01",)
    provoked: bool = False
    kind: str = "Reboot"
    lasts: float = LASTS
    """For so many seconds its events are Started."""


def living(breaks: str, versions: Sequence[str] = ("2020-07-01",), kind: str = "Reboot", lasts: float = LASTS) -> Case:
    return Case(breaks, versions, provoked=True, kind=kind, lasts=lasts)


REPEATS = (
    "approval.idempotent approval.started approval.incarnation approval.unknown-keys approval.content-type"
    " approval.large etag.on-post endpoint.chunked endpoint.expect"
)
TWO = ("2017-03-01", "2020-07-01")

CASES = {
    # Those of the mock that everybody uses
    Mistake.NO_HEADER_CHECK: living("header.required header.required-on-post instance.header"),
    Mistake.NO_VERSION_CHECK: Case("version.missing version.unknown version.latest"),
    Mistake.NEW_ID_AT_EVERY_STATE: living("life.same-id"),
    Mistake.FIRST_ONLY: living("approval.all-or-nothing approval.many"),
    Mistake.NO_TAG: Case("etag.present"),
    Mistake.NO_INSTANCE: Case("instance.document instance.versions"),
    Mistake.VERSION_UNREAD: living(
        "version.missing version.unknown version.latest approval.version event.keys version.names", TWO
    ),
    Mistake.MALFORMED_ACCEPTED: living("approval.malformed approval.all-or-nothing"),
    # What is let in
    Mistake.FALSE_HEADER_ON_POST: living("header.required-on-post"),
    Mistake.PROXY_UNCHECKED_ON_POST: living("endpoint.proxy"),
    Mistake.REPEATED_ON_POST: living("endpoint.repeated"),
    Mistake.VERSION_UNCHECKED_ON_POST: living("approval.version endpoint.order"),
    Mistake.HEADER_VALUE_EXACT: Case("header.case"),
    Mistake.HEADER_ON_EVERY_POST: living("header.optional-on-post", TWO),
    Mistake.LATEST_ACCEPTED: Case("version.latest"),
    Mistake.VERSION_NOT_SERVED: Case("endpoint.get", ("2019-04-01", "2020-07-01")),
    Mistake.HISTORIC_PATH_UNKNOWN: Case("version.in-path"),
    Mistake.PATH_CASE: Case("endpoint.path-case"),
    Mistake.NOT_FOUND_FOR_METHOD: Case("endpoint.method endpoint.other-methods"),
    Mistake.HEAD_LIKE_GET: Case("endpoint.other-methods"),
    Mistake.NO_ALLOW: Case("endpoint.allow"),
    Mistake.NO_PROXY_CHECK: Case("endpoint.proxy instance.proxy"),
    Mistake.VIA_ACCEPTED: Case("endpoint.proxy-signs"),
    Mistake.ANY_HOST: Case("endpoint.host"),
    Mistake.NO_HOST_ACCEPTED: Case("endpoint.no-host"),
    Mistake.REPEATED_ACCEPTED: Case("endpoint.repeated"),
    Mistake.VERSION_BEFORE_HEADER: Case("endpoint.order"),
    Mistake.ABSOLUTE_FORM_UNKNOWN: Case("endpoint.absolute-form"),
    Mistake.HTTP_1_0_REFUSED: Case("endpoint.http-1-0"),
    Mistake.UNKNOWN_PATH_400: Case("error.path"),
    # What refusals say
    Mistake.ERRORS_AS_TEXT: Case("error.shape error.everywhere error.header error.version version.listed"),
    Mistake.APPROVAL_ERRORS_AS_TEXT: Case("error.everywhere"),
    Mistake.OTHER_WORDS: Case("error.header error.version"),
    Mistake.NO_NEWEST_VERSIONS: Case("version.listed"),
    Mistake.OLDEST_VERSIONS_NAMED: Case("version.listed"),
    # The document
    Mistake.NO_DATE: Case("document.date"),
    Mistake.DATE_OF_YESTERDAY: Case("document.clock"),
    Mistake.NOT_BEFORE_MOVES: living("life.same-facts"),
    Mistake.DESCRIPTION_BY_VERSION: living("version.same-facts", ("2019-08-01", "2020-07-01")),
    Mistake.LISTED_TWICE: living("event.once"),
    Mistake.HTML: Case("document.content-type"),
    Mistake.PRETTY: Case("document.compact"),
    Mistake.OTHER_ORDER: Case("document.order"),
    Mistake.EXTRA_KEY: Case("document.shape"),
    Mistake.NUMBER_AS_TEXT: Case("document.number"),
    Mistake.NUMBER_RESTLESS: Case("document.quiet etag.unchanged etag.forms wait.held"),
    Mistake.NUMBER_STANDS: living("document.stable document.grows etag.changes wait.answered"),
    Mistake.NUMBER_BY_VERSION: Case("document.all-versions", TWO),
    Mistake.COMPLETED_SHOWN: living("event.status"),
    Mistake.LOWER_CASE_STATUS: living("event.status"),
    Mistake.NO_ID: living("event.keys event.id life.appears"),
    Mistake.DESCRIPTION_TOO_EARLY: living("event.keys", ("2017-08-01", "2020-07-01")),
    Mistake.TYPE_TOO_EARLY: living("version.types", ("2017-08-01", "2020-07-01"), "Preempt"),
    Mistake.HIDDEN_FROM_OLD: living("version.same-events", TWO),
    Mistake.NO_UNDERSCORE: living("version.names", TWO),
    Mistake.UNDERSCORES_EVERYWHERE: living("version.names"),
    # Tags and waiting
    Mistake.RANDOM_TAG: Case("etag.stable etag.unchanged etag.forms wait.held"),
    Mistake.TAG_IGNORED: Case("etag.unchanged etag.forms wait.held"),
    Mistake.TAG_EXACT: Case("etag.forms"),
    Mistake.ANY_TAG_MATCHES: Case("etag.other wait.at-once"),
    Mistake.TAG_ON_POST: Case("etag.on-post"),
    Mistake.NO_WAIT: Case("wait.held"),
    Mistake.WAIT_UNCONDITIONAL: Case("wait.unconditional"),
    Mistake.WAIT_SLEEPS: living("wait.at-once wait.answered"),
    # Approving
    Mistake.EMPTY_LIST_ACCEPTED: Case("approval.malformed"),
    Mistake.LARGE_ACCEPTED: living("approval.too-large"),
    Mistake.UNKNOWN_ACCEPTED: living("approval.unknown-id approval.all-or-nothing"),
    Mistake.ANY_ID_STARTS: living("approval.unknown-id approval.no-effect approval.all-or-nothing"),
    Mistake.STARTS_THOUGH_REFUSED: living("approval.no-effect"),
    Mistake.ANSWERS_202: living(f"approval.accepted approval.ended {REPEATS}", lasts=2),
    Mistake.NO_EFFECT: living("approval.takes-effect"),
    Mistake.ALL_REFUSED: living("approval.accepted"),
    Mistake.ID_CASE: living("approval.id-case"),
    Mistake.ONLY_ONCE: living(f"approval.ended {REPEATS}", lasts=2),
    Mistake.FORGETS_THE_ENDED: living("approval.ended"),
    # /metadata/instance
    Mistake.INSTANCE_ONE_VERSION: Case("instance.any-version"),
    Mistake.OTHER_NAME: living("instance.name"),
    # Life
    Mistake.NEVER_APPEARS: living("life.appears"),
    Mistake.SHORT_NOTICE: living("life.notice"),
    Mistake.NEVER_STARTED: living("life.started life.shown"),
    Mistake.BRIEFLY_STARTED: living("life.shown", lasts=2),
    Mistake.NEVER_GONE: living("life.gone", lasts=1),
    Mistake.COMPLETED_STAYS: living("event.status life.gone"),
    Mistake.SAME_ID_AGAIN: living("life.forwards life.same-facts", lasts=1.1),
    Mistake.BACK_TO_SCHEDULED: living("life.forwards"),
}


FAMILIES: Sequence[tuple[Mapping[Mistake, str], Case]] = (
    (
        {
            Mistake.ISO_DATES: "event.not-before",
            Mistake.NOT_BEFORE_KEPT: "event.blank",
            Mistake.LOWER_CASE_IDS: "event.id",
            Mistake.OTHER_RESOURCE_TYPE: "event.resource-type",
            Mistake.NO_RESOURCES: "event.resources",
            Mistake.NO_DESCRIPTION_TEXT: "event.description",
            Mistake.OTHER_SOURCE: "event.source",
            Mistake.DURATION_AS_TEXT: "event.duration",
        },
        living("", TWO),
    ),
    (
        {
            Mistake.ANSWERS_WITH_BODY: "approval.empty",
            Mistake.FORM_REFUSED: "approval.content-type",
            Mistake.NUMBER_BESIDE_REFUSED: "approval.incarnation",
            Mistake.UNCHANGED_ON_POST: "etag.on-post",
            Mistake.ONLY_SMALL_ACCEPTED: "approval.large",
            Mistake.UNKNOWN_KEYS_REFUSED: "approval.unknown-keys",
            Mistake.CHUNKS_UNREAD: "endpoint.chunked",
            Mistake.EXPECTATION_FAILED: "endpoint.expect",
        },
        living(""),
    ),
    (
        {
            Mistake.FEW_KEYS: "instance.keys",
            Mistake.NUMBERS_IN_INSTANCE: "instance.text",
            Mistake.LEAF_QUOTED: "instance.leaf",
            Mistake.LEAF_IN_JSON: "instance.leaf-json",
            Mistake.INSTANCE_ANY_VERSION: "instance.version instance.no-version",
            Mistake.VERSIONS_ARE_NUMBERS: "instance.versions",
        },
        Case(""),
    ),
)
"""Mistakes of one server that cannot be confused, each with the clause that it breaks."""

ALL: Mapping[tuple[Mistake, ...], Case] = {
    **{(mistake,): case for mistake, case in CASES.items()},
    **{tuple(family): replace(case, breaks=" ".join(family.values())) for family, case in FAMILIES},
}


def silent(_: str) -> None:
    pass


def judged(
    wrong: WrongServer,
    case: Case,
    *,
    strict: bool = True,
    pace: Pace = PACE,
    speed: float = 1,
    progress: run.Progress = silent,
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
    def failed(mistakes: Sequence[Mistake]) -> set[str]:
        case = ALL[tuple(mistakes)]
        report = judged(WrongServer(*mistakes, kind=case.kind, lasts=case.lasts), case)
        assert all(finding.request for finding in report.findings if finding.verdict is Verdict.FAILED), report
        return having(report, Verdict.FAILED)

    longest_first = sorted(ALL, key=lambda mistakes: ALL[mistakes].lasts, reverse=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(longest_first, pool.map(failed, longest_first), strict=True))
    wanted = {mistakes: set(case.breaks.split()) for mistakes, case in ALL.items()}
    # Side by side with so many, one may have been slow.
    found |= {mistakes: failed(mistakes) for mistakes in ALL if found[mistakes] != wanted[mistakes]}
    surprises = [
        f"{', '.join(mistakes)}: fails also {found[mistakes] - ids}, does not fail {ids - found[mistakes]}"
        for mistakes, ids in wanted.items()
        if found[mistakes] != ids
    ]
    assert "\n".join(surprises) == ""


def test_every_mistake_is_made_and_every_clause_broken() -> None:
    assert {mistake for mistakes in ALL for mistake in mistakes} == set(Mistake)
    elsewhere = {"error.rate"}
    broken = {clause_id for case in ALL.values() for clause_id in case.breaks.split()}
    assert {clause.id for clause in clauses.ALL} - elsewhere == broken


def test_without_a_mistake_everything_passes_in_every_version() -> None:
    report = judged(WrongServer(), living("", [version.name for version in versions.ALL]))
    assert [finding for finding in report.findings if finding.verdict is Verdict.FAILED] == []
    assert having(report, Verdict.NOT_APPLICABLE) == {"error.rate"}
