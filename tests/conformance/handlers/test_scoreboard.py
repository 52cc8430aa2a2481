"""What people read: one line for each reason, also where it is told with ids and the like."""

from forenotice.conformance.handlers import clauses
from forenotice.conformance.report import Finding, Report, Verdict


def finding(where: str, seen: str) -> Finding:
    clause = clauses.RUNS
    return Finding(clause=clause.id, says=clause.says, where=where, verdict=Verdict.FAILED, expected="x", seen=seen)


def lines(*seen: str) -> list[str]:
    report = Report(subject="x", findings=[finding(f"s{number}", each) for number, each in enumerate(seen)])
    return [line.text for line in report.lines(clauses.MOST_NAMES, clauses.CHANGING)]


def test_the_same_reason_is_told_once() -> None:
    first = (
        "code 1 after 3.1 s: line 7 of forenotice-conformance-a_1/x: :80 has no C7061BAC-AFDC-4513-B24B-AA5F13A16123"
    )
    again = "code 1 after 4 s: line 12 of forenotice-conformance-b/x: :8080 has no f020ba2e-3bc0-4c40-a10b-86575a9eabd5"
    (line,) = lines(first, again)
    assert line.endswith(f"saw {first}")
    assert len(lines("code 1", "code 3")) == 2
