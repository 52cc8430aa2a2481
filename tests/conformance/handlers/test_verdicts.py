"""From what was seen to what is held against a handler. Every event here is announced at 100 and gone at 110."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forenotice.conformance.handlers import evidence as hooks
from forenotice.conformance.handlers import situations, trial, verdicts
from forenotice.conformance.handlers.evidence import Evidence, HookFile, Life, Lines, Preparation, RequestLog
from forenotice.conformance.handlers.verdicts import Clause, Habits, Options
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.core.operations import Event, EventType, Source, Status
from forenotice.emulator.request_log import LoggedRequest

START = datetime(2026, 1, 1, tzinfo=UTC)
ME = "web-0"
WITHIN = timedelta(seconds=2)
WRITES = Habits(has_hooks=True)
OPTIONS = Options(within=WITHIN, habits=WRITES)
STRICT = Options(within=WITHIN, must_approve=True, habits=WRITES)
HABITUAL = Options(within=WITHIN, habits=Habits(approves=True, prepares=True, has_hooks=True))
WITHOUT_HOOKS = Options(within=WITHIN)
ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
OTHER = "F020BA2E-3BC0-4C40-A10B-86575A9EABD5"
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
PASSED, FAILED, NOT_APPLICABLE = Verdict
SITUATIONS = {situation.name: situation for situation in situations.find(ME, WITHIN)}
HERE = Path(__file__)
PAGE = (HERE.parents[3] / "docs" / "conformance.md").read_text().partition("# Judging a handler")[2]


def life(key: str = ID, names: tuple[str, ...] = (ME,), kind: EventType = EventType.REBOOT, **times: Any) -> Life:
    event = Event(
        id=key,
        operation="o",
        scope="s",
        resources=names,
        update_domain=0,
        type=kind,
        source=Source.USER,
        description="",
        duration=-1,
        status=Status.COMPLETED,
        created_at=START,
        not_before=START,
    )
    return replace(Life(event=event, announced=100, scheduled_until=108, ended=110), **times)


def request(at: float, method: str = "GET", status: int | None = 200, **more: Any) -> LoggedRequest:
    found = LoggedRequest(
        at=START,
        monotonic=at,
        answered=at,
        vm=ME,
        method=method,
        target=PATH,
        api_version="2020-07-01",
        headers={},
        body=b"",
        status=status,
        fault=None,
    )
    return replace(found, **more)


def approval(*ids: str, status: int = 200, prepared: Lines = ()) -> tuple[LoggedRequest, Lines]:
    return request(102, "POST", status, event_ids=ids), prepared


def polls(*at: float, **more: Any) -> list[LoggedRequest]:
    return [request(each, **more) for each in at]


SEEN = Evidence(
    situation=SITUATIONS["reboot"],
    me=ME,
    lives=[life()],
    requests=polls(99, 101, 111),
    listened=22,
    approvals=[approval(ID, prepared=[ID])],
    prepared=[ID],
    recovered=[f"{ID} is over"],
    recovered_early=frozenset(),
    goes_on=True,
    exit_code=None,
    output="",
)
DEAD: dict[str, Any] = {
    "exit_code": 3,
    "output": "no JSON",
    "goes_on": False,
    "recovered": [],
    "requests": polls(99),
    "approvals": [],
}
BOTH = [life(), life(OTHER, ("web-01",))]
OLD = polls(99, 101, 111, api_version="2017-08-01")
FAILURE = f"failed {ID.lower()}"
ENDED = "its process had ended"
POSTED = request(102, "POST", 500, event_ids=(ID,))
UNDER = {"situation": SITUATIONS["iso-dates"], "approvals": [], "prepared": []}
REFUSED_AT_FIRST = {"situation": SITUATIONS["error-500"], "approvals": []}
FAILS = {"situation": SITUATIONS["failed-preparation"]}


def test_what_is_right_is_found_right() -> None:
    found = {finding.clause: finding.verdict for finding in verdicts.judge(SEEN, STRICT)}
    assert found.pop(verdicts.only_own.id) is NOT_APPLICABLE
    assert found.pop(verdicts.not_after_failure.id) is NOT_APPLICABLE
    assert set(found.values()) == {PASSED}


CASES: list[tuple[Clause, dict[str, Any], Options, Verdict, str]] = [
    # A process that ended fails once.
    (verdicts.runs, DEAD, OPTIONS, FAILED, "saw that it ended with code 3; it said last: no JSON"),
    *(
        (clause, DEAD, STRICT, NOT_APPLICABLE, ENDED)
        for clause in (verdicts.goes_on, verdicts.notices, verdicts.approves, verdicts.recovers_once)
    ),
    (verdicts.approves, {**DEAD, "lives": []}, OPTIONS, NOT_APPLICABLE, ENDED),
    # A fault counts only for a handler that met it.
    (verdicts.runs, {"situation": SITUATIONS["empty-body"]}, OPTIONS, NOT_APPLICABLE, "while the fault was on"),
    (
        verdicts.runs,
        {"situation": SITUATIONS["empty-body"], "requests": polls(99, fault="latency+empty-body")},
        OPTIONS,
        PASSED,
        "",
    ),
    (verdicts.goes_on, {"goes_on": False}, OPTIONS, FAILED, "saw none"),
    # Noticing; one that starts in the middle is not late, and has as much time again as a fault took.
    (verdicts.notices, {"requests": polls(99, 102)}, OPTIONS, PASSED, ""),
    (verdicts.notices, {"requests": polls(99, 103)}, OPTIONS, FAILED, "within 2 s, saw one after 3.0 s"),
    (verdicts.notices, {"requests": polls(99, 111)}, OPTIONS, FAILED, "within 2 s, saw none before it was gone"),
    (verdicts.notices, {"requests": [*polls(99), request(101, status=304), request(103)]}, OPTIONS, FAILED, "3.0 s"),
    (
        verdicts.notices,
        {"requests": [*polls(99), request(101, fault="stale-document"), request(103)]},
        OPTIONS,
        FAILED,
        "saw one after 3.0 s",
    ),
    (verdicts.notices, {"requests": [*polls(99), request(101, fault="iso-dates")]}, OPTIONS, PASSED, ""),
    (verdicts.notices, {"requests": polls(105)}, OPTIONS, PASSED, ""),
    (verdicts.notices, {"situation": SITUATIONS["error-500"], "requests": polls(99, 105.9)}, OPTIONS, PASSED, ""),
    (verdicts.notices, {"situation": SITUATIONS["error-500"], "requests": polls(99, 106.1)}, OPTIONS, FAILED, ""),
    (verdicts.notices, {"lives": [life(ended=101.5)], "requests": polls(99, 103)}, OPTIONS, NOT_APPLICABLE, ""),
    # What its version does not list cannot be noticed.
    (verdicts.notices, {"requests": OLD}, OPTIONS, PASSED, ""),
    *(
        (
            verdicts.notices,
            {"requests": OLD, "lives": [life(kind=kind)]},
            OPTIONS,
            FAILED,
            f"saw none before it was gone: api-version 2017-08-01 does not list {kind}",
        )
        for kind in (EventType.PREEMPT, EventType.TERMINATE)
    ),
    # Only own events are approved; a refused request was one all the same.
    (verdicts.only_own, {"lives": BOTH}, OPTIONS, PASSED, ""),
    (
        verdicts.only_own,
        {"lives": BOTH, "approvals": [*SEEN.approvals, approval(ID, OTHER, status=503)]},
        OPTIONS,
        FAILED,
        "saw one of the event of web-01",
    ),
    (verdicts.only_known, {"approvals": [approval(ID, OTHER, status=400)]}, OPTIONS, FAILED, f"an approval of {OTHER}"),
    (
        verdicts.only_known,
        {"approvals": [approval(status=400)]},
        OPTIONS,
        FAILED,
        f"expected approvals in the form of the protocol, saw POST {PATH} that was answered 400",
    ),
    (verdicts.only_known, {"approvals": []}, OPTIONS, NOT_APPLICABLE, ""),
    # Whether it must approve
    (verdicts.approves, {"approvals": []}, OPTIONS, NOT_APPLICABLE, "it did not approve, and need not"),
    (verdicts.approves, {"approvals": []}, STRICT, FAILED, "expected an approval of the event, saw none"),
    *(
        (verdicts.approves, {"approvals": [], "lives": [lived]}, STRICT, NOT_APPLICABLE, "")
        for lived in (life(names=(ME, "web-1")), life(scheduled_until=100), life(scheduled_until=103))
    ),
    (verdicts.approves, {**FAILS, "approvals": []}, STRICT, NOT_APPLICABLE, "here it is not to approve"),
    # A refused approval is none that was withheld, unless it is of another event or comes too late.
    *(
        (
            verdicts.approves,
            {"approvals": [], "requests": [*SEEN.requests, attempt]},
            OPTIONS,
            FAILED,
            f"expected an approval that is answered 200, saw {attempt.method} {PATH} that was answered {seen}",
        )
        for attempt, seen in (
            (POSTED, "500"),
            (replace(POSTED, status=None), "nothing"),
            (request(102, "PUT", 405), "405"),
        )
    ),
    *(
        (verdicts.approves, {"approvals": [], "requests": [*SEEN.requests, other]}, OPTIONS, NOT_APPLICABLE, "")
        for other in (replace(POSTED, event_ids=(OTHER,)), replace(POSTED, monotonic=109))
    ),
    (verdicts.approves, {**REFUSED_AT_FIRST, "lives": [life(scheduled_until=109.9)]}, STRICT, NOT_APPLICABLE, ""),
    (verdicts.approves, {**REFUSED_AT_FIRST, "lives": [life(scheduled_until=110)]}, STRICT, FAILED, ""),
    # What it does in reboot it does under faults; other situations may be handled differently on purpose.
    (verdicts.approves, UNDER, HABITUAL, FAILED, "expected an approval of the event, as in reboot, saw none"),
    (verdicts.prepares, UNDER, HABITUAL, FAILED, "expected a preparation, as in reboot, saw none"),
    *(
        (clause, {**UNDER, **changes}, options, NOT_APPLICABLE, told)
        for clause in (verdicts.approves, verdicts.prepares)
        for changes, options, told in (
            ({}, OPTIONS, ""),
            ({"lives": [life(scheduled_until=103)]}, HABITUAL, ""),
            ({"situation": SITUATIONS["redeploy"]}, HABITUAL, ""),
            ({"exit_code": 3}, HABITUAL, ENDED),
        )
    ),
    # The preparation comes first.
    (verdicts.is_prepared, {"approvals": [approval(ID), approval(ID, prepared=[ID])]}, OPTIONS, FAILED, ""),
    (
        verdicts.is_prepared,
        {"approvals": [approval(ID)], "prepared": []},
        OPTIONS,
        FAILED,
        "expected its preparation before its approval, saw the approval alone",
    ),
    (verdicts.is_prepared, {"prepared": []}, WITHOUT_HOOKS, NOT_APPLICABLE, "its hooks say nothing of preparing"),
    (verdicts.is_prepared, {"approvals": []}, OPTIONS, NOT_APPLICABLE, ""),
    # None after a failure
    *(
        (clause, {"approvals": [approval(ID, prepared=[FAILURE])], "prepared": [FAILURE]}, OPTIONS, verdict, "")
        for clause, verdict in ((verdicts.not_after_failure, FAILED), (verdicts.is_prepared, PASSED))
    ),
    (
        verdicts.not_after_failure,
        {"approvals": [approval(ID, prepared=[FAILURE, ID])], "prepared": [FAILURE, ID]},
        OPTIONS,
        PASSED,
        "",
    ),
    (verdicts.not_after_failure, FAILS, OPTIONS, NOT_APPLICABLE, "as FORENOTICE_FAIL tells them to"),
    # One recovery, when the event is over; a VM that is gone need not recover.
    (verdicts.recovers_once, {"recovered": []}, OPTIONS, FAILED, "expected a recovery after the event, saw none"),
    (verdicts.recovers_once, {"recovered": [ID, "x", ID]}, OPTIONS, FAILED, "expected one recovery, saw 2"),
    (verdicts.recovers_once, {"recovered_early": frozenset({ID})}, OPTIONS, FAILED, ""),
    (verdicts.recovers_once, {"prepared": [], "recovered": []}, OPTIONS, NOT_APPLICABLE, ""),
    (verdicts.recovers_once, {"prepared": [], "recovered": [ID, ID]}, OPTIONS, FAILED, ""),
    *(
        (verdicts.recovers_once, {"lives": [life(kind=kind)], "recovered": []}, OPTIONS, NOT_APPLICABLE, "")
        for kind in (EventType.PREEMPT, EventType.TERMINATE)
    ),
]


@pytest.mark.parametrize(("clause", "changes", "options", "verdict", "told"), CASES)
def test_a_clause(clause: Clause, changes: dict[str, Any], options: Options, verdict: Verdict, told: str) -> None:
    findings = verdicts.judge(replace(SEEN, **changes), options)
    (finding,) = (each for each in findings if each.clause == clause.id)
    assert finding.verdict is verdict
    assert finding.reason.endswith(told)


@pytest.mark.parametrize(
    ("requests", "seen"),
    [
        ([], "no request at all in the first 22 s"),
        (polls(99, status=400, reason="No header"), f"GET {PATH} that was answered 400 (No header)"),
        (polls(99, target="/x", status=404), "1 other requests in the first 22 s, the last being GET /x that was"),
        (polls(99, status=None), f"GET {PATH} that was answered nothing"),
    ],
)
def test_a_handler_that_never_saw_a_document_is_judged_by_that_alone(requests: list[LoggedRequest], seen: str) -> None:
    unseen = replace(SEEN, requests=requests, approvals=[], goes_on=False)
    found = {finding.clause: finding for finding in verdicts.judge(unseen, STRICT)}
    assert found.pop(verdicts.runs.id).verdict is PASSED
    answered = found.pop(verdicts.is_answered.id)
    assert answered.verdict is FAILED
    assert seen in answered.reason
    assert {finding.verdict for finding in found.values()} == {NOT_APPLICABLE}
    at_once = verdicts.judge(replace(unseen, exit_code=3), OPTIONS)
    assert [finding.clause for finding in at_once if finding.verdict is FAILED] == [verdicts.runs.id]


def test_habits_are_those_of_the_plain_situation() -> None:
    assert verdicts.habits([SEEN]) == HABITUAL.habits
    assert verdicts.habits([replace(SEEN, approvals=[], prepared=[])]) == Habits()
    assert verdicts.habits([replace(SEEN, situation=SITUATIONS["iso-dates"])]) == WRITES


# What hooks write


def test_lines_count_when_they_are_complete(tmp_path: Path) -> None:
    file = HookFile(tmp_path / "prepared")
    assert file.lines() == []
    file.path.write_text(f"drained for {ID.lower()}\nfailed {ID}")
    assert hooks.preparation(file.lines(), ID) is Preparation.DONE
    file.path.write_bytes(b"\xff\n\n" + f"  Failed {ID}\n".encode())
    assert hooks.preparation(file.lines(), ID) is Preparation.FAILED
    assert hooks.preparation(file.lines(), "X") is Preparation.NONE
    file.path.unlink()
    assert file.lines() == []


def test_an_approval_is_kept_with_what_was_prepared_by_then(tmp_path: Path) -> None:
    file = HookFile(tmp_path / "prepared")
    requests = RequestLog(file)
    requests.record(POSTED)
    file.path.write_text(f"{ID}\n")
    requests.record(POSTED)
    assert list(requests.approvals_with_hooks) == [(POSTED, []), (POSTED, [ID])]
    assert len(requests) == 2


# What people read


def test_the_same_reason_is_shown_once() -> None:
    def lines(*seen: str) -> list[str]:
        findings = [
            Finding(clause="x", says="x", where=f"s{number}", verdict=FAILED, expected="x", seen=each)
            for number, each in enumerate(seen)
        ]
        report = Report(subject="x", findings=findings)
        return [line.text for line in report.lines(verdicts.MOST_NAMES, verdicts.CHANGING)]

    first = f"code 1 after 3.1 s: line 7 of forenotice-conformance-a_1/x: :80 has no {ID}"
    again = f"code 1 after 4 s: line 12 of forenotice-conformance-b/x: :8080 has no {OTHER.lower()}"
    (line,) = lines(first, again)
    assert line.endswith(f"saw {first}")
    assert len(lines("code 1", "code 3")) == 2


def test_the_page_has_every_clause_every_variable_and_the_agent_that_is_judged() -> None:
    rows = re.findall(r"^\| `([a-z-]+\.[a-z-]+)` \| (.+?) \| (.+?) \|", PAGE, re.MULTILINE)
    assert rows == [(clause.id, clause.short, clause.says) for clause in verdicts.ALL]
    (table,) = re.findall(r"\| variable \|.*?\n\n", PAGE, re.DOTALL)
    given = re.findall(r'"(FORENOTICE_\w+)"', Path(trial.__file__).read_text())
    assert sorted(re.findall(r"FORENOTICE_\w+", table)) == sorted(given)
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert HERE.with_name("agent.toml").read_text().endswith(shown)
