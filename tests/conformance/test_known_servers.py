"""What is known of other endpoints: bodies captured from the real service, and the mock that everybody uses."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.client.scripted import Asked
from tests.conformance.test_wrong_server import RESTING, TWO, Case, having, judged
from tests.conformance.wrong_server import CAPTURED, HEADER, VERSION, Reply, WrongServer

from forenotice.conformance.endpoint import clauses
from forenotice.conformance.report import Report, Verdict

PASSED, FAILED, NOT_APPLICABLE = Verdict
CAPTURES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "wire" / "captures.jsonl").read_text().splitlines()
]
NOTICE = {"Preempt": timedelta(seconds=30)}


class Replaying(WrongServer):
    """Says what was captured in one version, at the time when it was captured; before, it has no document."""

    def __init__(self, version: str) -> None:
        super().__init__("other-words", "no-tag")
        self.bodies = [each["body"] for each in CAPTURES if each["api-version"] == version and each["body"]]
        self._captured = {event["EventStatus"]: event for body in self.bodies for event in json.loads(body)["Events"]}
        self._scheduled = self._captured["Scheduled"]
        self._incarnation = json.loads(self.bodies[0])["DocumentIncarnation"] - 1
        self._deadline = parsedate_to_datetime(self._scheduled["NotBefore"])
        self._told_at = self._deadline - NOTICE.get(self._scheduled["EventType"], timedelta(minutes=15))
        self._provoked_at: list[float] = []
        self.said: list[str] = []

    def _new_id(self) -> str:
        self._provoked_at.append(monotonic())
        return super()._new_id() if len(self._provoked_at) > 1 else str(self._scheduled["EventId"])

    @property
    def _later(self) -> timedelta:
        """The captured event comes a second time an hour later, under another id."""
        return timedelta(hours=len(self._provoked_at))

    def _document(self, version: str) -> dict[str, object]:
        event, listed = self._event, list[Any]()
        if event is not None:
            event.polls += 1
            listed = [
                {
                    **self._scheduled,
                    "EventStatus": event.status,
                    "NotBefore": "",
                    **self._captured.get(event.status, {}),
                }
            ]
            listed[0]["EventId"] = event.id
            if event.status == "Scheduled":
                at = self._deadline + self._later - timedelta(hours=1)
                listed[0]["NotBefore"] = format_datetime(at, usegmt=True)
        return {"DocumentIncarnation": self._incarnation, "Events": listed}

    def answer(self, asked: Asked) -> Reply:
        status, headers, body = super().answer(asked)
        if asked.method == "GET" and status == 200 and body.startswith(b'{"Doc'):
            body = body if self._provoked_at else b""
            self.said.append(body.decode())
        since = timedelta(seconds=monotonic() - self._provoked_at[-1]) if self._provoked_at else timedelta()
        date = self._told_at + self._later - timedelta(hours=1 if self._provoked_at else 0) + since
        return status, {**headers, "Date": format_datetime(date, usegmt=True)}, body


@pytest.mark.parametrize("version", sorted({capture["api-version"] for capture in CAPTURES}))
def test_what_was_captured_from_the_real_service_does_not_fail(version: str) -> None:
    server = Replaying(version)
    report = judged(server, Case([version], provoked=True), strict=False)
    assert [finding for finding in report.findings if finding.verdict is FAILED] == []
    assert set(server.bodies) <= set(server.said)
    assert server.said[0] == ""
    passed = having(report, PASSED)
    assert {clause.id for clause in clauses.ALL if clause.section == "event"} - passed <= {
        "event.description",
        "event.source",
        "event.duration",
    }
    assert passed >= {
        "endpoint.get",
        "document.compact",
        "document.order",
        "life.started",
        "error.shape",
        "version.listed",
    }
    assert {"error.header", "error.version"} <= having(report, NOT_APPLICABLE)


def test_the_captured_words_are_told_but_do_not_count_unless_strict() -> None:
    wrong = {"error.header": (HEADER, CAPTURED[HEADER]), "error.version": (VERSION, CAPTURED[VERSION])}
    for strict in (False, True):
        report = judged(WrongServer("other-words", "no-wait"), RESTING, strict=strict)
        found = {finding.clause: finding for finding in report.findings if finding.clause in wrong}
        assert having(report, FAILED) == ({*wrong, "wait.held"} if strict else set())
        for clause, (expected, seen) in wrong.items():
            assert f"expected {expected}, saw {seen}" in found[clause].reason
            assert found[clause].ours


def test_rfc_1123_dates_in_the_oldest_version_are_as_good_as_iso() -> None:
    server = WrongServer("no-wait", rfc_dates=True).provoke()
    report = judged(server, Case(TWO), strict=False)
    assert having(report, FAILED) == set()
    dates = [finding.verdict for finding in report.findings if finding.clause == "event.not-before"]
    assert dates == [PASSED, PASSED]


# The mock that everybody uses

MOCK = (
    "new-id-at-every-state",
    "completed-shown",
    "first-only",
    "unknown-accepted",
    "malformed-accepted",
    "empty-list-accepted",
    "large-accepted",
    "id-case",
    "iso-dates",
    "no-header-check",
    "no-version-check",
    "version-unread",
    "no-proxy-check",
    "via-accepted",
    "any-host",
    "repeated-accepted",
    "head-like-get",
    "errors-as-text",
    "no-tag",
    "no-instance",
)
"""Also: no header, version or proxy is checked, and there is neither a tag nor /metadata/instance."""

MOCK_FAILS = (
    "endpoint.proxy header.required header.required-on-post version.missing version.unknown version.latest"
    " version.names event.keys event.status event.not-before approval.version approval.id-case approval.many"
    " life.same-id"
)
OURS_IT_BREAKS = (
    "endpoint.other-methods endpoint.proxy-signs endpoint.host endpoint.repeated etag.present error.everywhere"
    " instance.document instance.versions approval.malformed approval.too-large approval.unknown-id"
    " approval.all-or-nothing"
)
PROVES_NOTHING = (
    "endpoint.chunked endpoint.expect header.optional-on-post approval.idempotent approval.incarnation"
    " approval.unknown-keys approval.large approval.content-type approval.started approval.ended"
)
"""It accepts what names no event."""
NEEDS_WHAT_IS_MISSING = (
    "version.listed error.shape error.header error.version error.rate"
    " etag.stable etag.unchanged etag.forms etag.other etag.changes"
    " wait.held wait.at-once wait.unconditional wait.answered"
    " instance.keys instance.text instance.leaf instance.leaf-json instance.any-version instance.version"
    " instance.no-version instance.header instance.proxy instance.name"
)


def test_the_mock_gets_its_verdict_clause_by_clause() -> None:
    def mock(strict: bool) -> Report:
        return judged(WrongServer(*MOCK), Case(TWO, provoked=True), strict=strict)

    with ThreadPoolExecutor() as pool:
        lenient, strict = pool.map(mock, (False, True))
    fails, ours = set(MOCK_FAILS.split()), set(OURS_IT_BREAKS.split())
    untold = set(PROVES_NOTHING.split()) | set(NEEDS_WHAT_IS_MISSING.split())
    passed = {clause.id for clause in clauses.ALL} - fails - ours - untold
    assert (having(lenient, FAILED), having(lenient, PASSED) - fails) == (fails, passed)
    assert (having(strict, FAILED), having(strict, PASSED) - fails) == (fails | ours, passed)
    whys = {finding.clause: finding.why for finding in lenient.findings}
    doubt = "a 200 proves nothing: an approval of no event was answered 200 (approval.unknown-id)"
    assert {whys[clause] for clause in PROVES_NOTHING.split()} == {doubt}
    for finding in (*lenient.findings, *strict.findings):
        assert bool(finding.request) == (bool(finding.expected) or "--strict" in finding.why), finding
