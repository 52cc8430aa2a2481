"""What a judge found, for people and for machines."""

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from forenotice.conformance.report import Finding, Report, Verdict

PASSED, FAILED, NOT_APPLICABLE = Verdict


def found(clause: str, verdict: Verdict, where: str = "", **more: Any) -> Finding:
    return Finding(clause=clause, says=f"{clause} holds", where=where, verdict=verdict, **more)


REPORT = Report(
    subject="http://x",
    findings=[
        found("a.one", PASSED, "2017"),
        found("a.one", PASSED, "2020"),
        found("a.other", FAILED, "2017", expected="400", seen="200", request="GET /"),
        found("a.other", PASSED, "2020"),
        found("b.both", FAILED, "2017", expected="1", seen="2 \x1b[31m"),
        found("b.both", FAILED, "2020", expected="1", seen="3"),
        found("b.none", NOT_APPLICABLE, why="no event was listed"),
        replace(found("b.ours", PASSED), ours=True),
    ],
)


def test_a_line_for_each_clause_verdict_and_reason() -> None:
    assert [(line.verdict, line.text) for line in REPORT.lines()] == [
        (PASSED, "a.one    a.one holds"),
        (FAILED, "a.other  a.other holds [2017]: expected 400, saw 200"),
        (PASSED, "a.other  a.other holds [2020]"),
        (FAILED, "b.both   b.both holds [2017]: expected 1, saw 2 \x1b[31m"),
        (FAILED, "b.both   b.both holds [2020]: expected 1, saw 3"),
        (NOT_APPLICABLE, "b.none   b.none holds: no event was listed"),
        (PASSED, "b.ours   b.ours holds (ours)"),
    ]
    assert [line.request for line in REPORT.lines()] == ["", "GET /", *[""] * 5]
    assert REPORT.summary() == "3 pass, 3 fail, 1 not applicable"


def test_one_failure_fails_the_whole() -> None:
    assert not REPORT.passed
    assert Report(subject="x", findings=[found("a", PASSED), found("b", NOT_APPLICABLE, why="x")]).passed
    assert Report(subject="x", findings=[]).summary() == "0 pass, 0 fail, 0 not applicable"


def test_json_has_every_finding() -> None:
    data = REPORT.data()
    assert data["summary"] == {"pass": 4, "fail": 3, "not applicable": 1}
    assert isinstance(data["findings"], list)
    assert data["findings"][2] == {
        "clause": "a.other",
        "says": "a.other holds",
        "ours": False,
        "where": "2017",
        "verdict": "fail",
        "expected": "400",
        "seen": "200",
        "why": "",
        "request": "GET /",
    }


def test_junit_has_a_case_for_every_finding_and_can_be_read() -> None:
    suite = ElementTree.fromstring(REPORT.junit())[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["8", "3", "0", "1"]
    assert [case.get("name") for case in suite][:2] == ["a.one [2017]", "a.one [2020]"]
    assert suite[6].get("classname") == "conformance.b"
    assert suite[2].findtext("failure") == "a.other holds; request: GET /"
    messages = [part.get("message") for case in (suite[4], suite[6]) for part in case]
    assert messages == ["expected 1, saw 2 \N{REPLACEMENT CHARACTER}[31m", "no event was listed"]
