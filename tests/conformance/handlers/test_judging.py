"""From what was seen to what is held against a handler. Every event here is announced at 100 and gone at 110."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forenotice.conformance.handlers import clauses, situations, verdicts
from forenotice.conformance.handlers.evidence import Evidence, Life, Lines
from forenotice.conformance.handlers.verdicts import Habits, Options
from forenotice.conformance.report import Verdict
from forenotice.core.operations import Event, EventType, Source, Status
from forenotice.emulator.request_log import LoggedRequest

START = datetime(2026, 1, 1, tzinfo=UTC)
ME = "web-0"
WITHIN = timedelta(seconds=2)
SPEAKS = Habits(tells=True)
OPTIONS = Options(within=WITHIN, habits=SPEAKS)
STRICT = Options(within=WITHIN, must_approve=True, habits=SPEAKS)
HABITUAL = Options(within=WITHIN, habits=Habits(approves=True, prepares=True, tells=True))
ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
OTHER = "F020BA2E-3BC0-4C40-A10B-86575A9EABD5"
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
PASSED, FAILED, NOT_APPLICABLE = Verdict
SITUATIONS = {situation.name: situation for situation in situations.find(ME, WITHIN)}


def life(
    key: str = ID,
    names: tuple[str, ...] = (ME,),
    *,
    scheduled_until: float = 108,
    ended: float = 110,
    kind: EventType = EventType.REBOOT,
) -> Life:
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
    return Life(event=event, announced=100, scheduled_until=scheduled_until, ended=ended)


def request(
    at: float, *, method: str = "GET", status: int | None = 200, fault: str | None = None, **more: object
) -> LoggedRequest:
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
        fault=fault,
    )
    return replace(found, **more)  # type: ignore[arg-type]


def approval(*ids: str, status: int = 200, prepared: Lines = ()) -> tuple[LoggedRequest, Lines]:
    return request(102, method="POST", status=status, event_ids=ids), prepared


def polls(*at: float) -> list[LoggedRequest]:
    return [request(each) for each in at]


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
    said="",
)


def judged(evidence: Evidence, clause: clauses.Clause, options: Options = OPTIONS) -> tuple[Verdict, str]:
    (finding,) = (each for each in verdicts.judge(evidence, options) if each.clause == clause.id)
    return finding.verdict, finding.told


def test_what_is_right_is_found_right() -> None:
    found = {finding.clause: finding.verdict for finding in verdicts.judge(SEEN, STRICT)}
    assert found.pop(clauses.OWN.id) is NOT_APPLICABLE
    assert found.pop(clauses.NOT_FAILED.id) is NOT_APPLICABLE
    assert set(found.values()) == {PASSED}


def test_a_process_that_ended_is_told_once() -> None:
    dead = replace(SEEN, exit_code=3, said="no JSON", goes_on=False, recovered=[], requests=polls(99), approvals=[])
    assert judged(dead, clauses.RUNS) == (
        FAILED,
        "expected a process that runs, saw that it ended with code 3; it said last: no JSON",
    )
    for clause in (clauses.GOES_ON, clauses.IN_TIME, clauses.APPROVES, clauses.ONCE):
        assert judged(dead, clause, STRICT) == (NOT_APPLICABLE, "its process had ended")
    before = replace(dead, lives=[])
    assert judged(before, clauses.APPROVES) == (NOT_APPLICABLE, "its process had ended")
    at_once = replace(dead, requests=[], prepared=[])
    assert [finding.clause for finding in verdicts.judge(at_once, OPTIONS) if finding.verdict is FAILED] == [
        clauses.RUNS.id
    ]


@pytest.mark.parametrize(
    ("requests", "seen"),
    [
        ([], "no request at all in the first 22 s"),
        (
            [request(99, status=400, reason="No header")],
            f"1 other requests in the first 22 s, the last being GET {PATH} that was answered 400 (No header)",
        ),
        (
            [request(99, target="/x", status=404)],
            "1 other requests in the first 22 s, the last being GET /x that was answered 404",
        ),
        (
            [request(99, status=None)],
            f"1 other requests in the first 22 s, the last being GET {PATH} that was answered nothing",
        ),
    ],
)
def test_whoever_never_saw_a_document_is_judged_by_that_alone(requests: Sequence[LoggedRequest], seen: str) -> None:
    unheard = replace(SEEN, requests=requests, approvals=[], goes_on=False)
    verdict, told = judged(unheard, clauses.ANSWERED)
    assert verdict is FAILED
    assert told.endswith(f"saw {seen}")
    others = {
        f.verdict for f in verdicts.judge(unheard, STRICT) if f.clause not in (clauses.ANSWERED.id, clauses.RUNS.id)
    }
    assert others == {NOT_APPLICABLE}


def test_a_fault_counts_only_for_those_who_met_it() -> None:
    empty = replace(SEEN, situation=SITUATIONS["empty-body"])
    assert judged(empty, clauses.RUNS) == (NOT_APPLICABLE, "it asked nothing while the fault was on")
    met = replace(empty, requests=[*empty.requests, request(112, fault="latency+empty-body")])
    assert judged(met, clauses.RUNS)[0] is PASSED


def test_polls_go_on() -> None:
    assert judged(replace(SEEN, goes_on=False), clauses.GOES_ON)[0] is FAILED


NOTICING = [
    (polls(99, 102), PASSED, ""),
    (polls(99, 103), FAILED, "expected a poll answered with the event within 2 s, saw one after 3.0 s"),
    (polls(99, 111), FAILED, "expected a poll answered with the event within 2 s, saw none before it was gone"),
    ([request(99), request(101, status=304), request(103)], FAILED, "saw one after 3.0 s"),
    ([request(99), request(101, fault="stale-document"), request(103)], FAILED, "saw one after 3.0 s"),
    ([request(99), request(101, fault="iso-dates")], PASSED, ""),
    # Whoever starts in the middle of it is not late.
    (polls(105), PASSED, ""),
]


@pytest.mark.parametrize(("requests", "verdict", "told"), NOTICING)
def test_noticing(requests: Sequence[LoggedRequest], verdict: Verdict, told: str) -> None:
    found = judged(replace(SEEN, requests=requests), clauses.IN_TIME)
    assert found[0] is verdict
    assert found[1].endswith(told)


def test_noticing_has_as_much_time_again_as_a_fault_took() -> None:
    late = replace(SEEN, situation=SITUATIONS["error-500"], requests=polls(99, 105.9))
    assert judged(late, clauses.IN_TIME)[0] is PASSED
    assert judged(replace(late, requests=polls(99, 106.1)), clauses.IN_TIME)[0] is FAILED


@pytest.mark.parametrize("kind", [EventType.PREEMPT, EventType.TERMINATE])
def test_what_the_version_does_not_list_cannot_be_noticed(kind: EventType) -> None:
    old = [replace(poll, api_version="2017-08-01") for poll in SEEN.requests]
    listed = replace(SEEN, requests=old)
    assert judged(listed, clauses.IN_TIME)[0] is PASSED
    verdict, told = judged(replace(listed, lives=[life(kind=kind)]), clauses.IN_TIME)
    assert verdict is FAILED
    assert told.endswith(f"saw none before it was gone: api-version 2017-08-01 does not list {kind}")


def test_what_is_gone_at_once_need_not_be_noticed() -> None:
    short = replace(SEEN, lives=[life(ended=101.5)], requests=polls(99, 103))
    assert judged(short, clauses.IN_TIME)[0] is NOT_APPLICABLE


def test_only_own_events_are_approved() -> None:
    both = replace(SEEN, lives=[life(), life(OTHER, ("web-01",))])
    assert judged(both, clauses.OWN)[0] is PASSED
    # Also what was refused counts: it was asked for.
    wrong = replace(both, approvals=[*SEEN.approvals, approval(ID, OTHER, status=503)])
    verdict, told = judged(wrong, clauses.OWN)
    assert verdict is FAILED
    assert told.endswith("saw one of the event of web-01")


def test_only_what_was_announced_is_approved() -> None:
    assert judged(replace(SEEN, approvals=[approval(ID, OTHER, status=400)]), clauses.KNOWN) == (
        FAILED,
        f"expected EventIds that were announced, saw an approval of {OTHER}",
    )
    assert judged(replace(SEEN, approvals=[approval(status=400)]), clauses.KNOWN) == (
        FAILED,
        f"expected approvals in the form of the protocol, saw POST {PATH} that was answered 400",
    )
    assert judged(replace(SEEN, approvals=[]), clauses.KNOWN)[0] is NOT_APPLICABLE


def test_who_need_not_approve() -> None:
    never = replace(SEEN, approvals=[])
    assert judged(never, clauses.APPROVES) == (NOT_APPLICABLE, "it did not approve, and need not")
    assert judged(never, clauses.APPROVES, STRICT) == (FAILED, "expected an approval of the event, saw none")
    for lives in ([life(names=(ME, "web-1"))], [life(scheduled_until=100)], [life(scheduled_until=103)]):
        assert judged(replace(never, lives=lives), clauses.APPROVES, STRICT)[0] is NOT_APPLICABLE
    fails = replace(never, situation=SITUATIONS["failed-preparation"])
    assert judged(fails, clauses.APPROVES, STRICT) == (NOT_APPLICABLE, "here it is not to approve")


@pytest.mark.parametrize(
    ("attempt", "seen"),
    [
        (request(102, method="POST", status=500, event_ids=(ID,)), f"POST {PATH} that was answered 500"),
        (request(102, method="POST", status=None, event_ids=(ID,)), f"POST {PATH} that was answered nothing"),
        (request(102, method="PUT", status=405), f"PUT {PATH} that was answered 405"),
    ],
)
def test_who_is_refused_has_not_abstained(attempt: LoggedRequest, seen: str) -> None:
    refused = replace(SEEN, requests=[*SEEN.requests, attempt], approvals=[])
    expected = f"expected an approval that is answered 200, saw {seen}"
    assert judged(refused, clauses.APPROVES) == (FAILED, expected)
    # Others', and what comes when it is too late.
    for other in (replace(attempt, event_ids=(OTHER,)), replace(attempt, monotonic=109)):
        assert judged(replace(refused, requests=[*SEEN.requests, other]), clauses.APPROVES)[0] is NOT_APPLICABLE


def test_what_a_handler_does_in_reboot_it_does_under_faults() -> None:
    idle = replace(SEEN, approvals=[], prepared=[])
    assert verdicts.habits([SEEN]) == HABITUAL.habits
    assert verdicts.habits([idle]) == Habits()
    under = replace(idle, situation=SITUATIONS["iso-dates"])
    assert verdicts.habits([replace(SEEN, situation=under.situation)]) == SPEAKS
    expected = "expected an approval of the event, as in reboot, saw none"
    assert judged(under, clauses.APPROVES, HABITUAL) == (FAILED, expected)
    assert judged(under, clauses.PREPARES, HABITUAL) == (FAILED, "expected a preparation, as in reboot, saw none")
    for clause in (clauses.APPROVES, clauses.PREPARES):
        assert judged(under, clause)[0] is NOT_APPLICABLE
        assert judged(replace(under, lives=[life(scheduled_until=103)]), clause, HABITUAL)[0] is NOT_APPLICABLE
        # Others may be handled differently on purpose.
        assert judged(replace(idle, situation=SITUATIONS["redeploy"]), clause, HABITUAL)[0] is NOT_APPLICABLE
        assert judged(replace(under, exit_code=3), clause, HABITUAL) == (NOT_APPLICABLE, "its process had ended")


def test_a_refused_approval_has_time_to_come_again() -> None:
    never = replace(SEEN, situation=SITUATIONS["error-500"], approvals=[])
    assert judged(replace(never, lives=[life(scheduled_until=109.9)]), clauses.APPROVES, STRICT)[0] is NOT_APPLICABLE
    assert judged(replace(never, lives=[life(scheduled_until=110)]), clauses.APPROVES, STRICT)[0] is FAILED


def test_approved_after_preparation() -> None:
    first = replace(SEEN, approvals=[approval(ID), approval(ID, prepared=[ID])])
    assert judged(first, clauses.PREPARED)[0] is FAILED
    without = replace(SEEN, approvals=[approval(ID)], prepared=[])
    told = "expected its preparation before its approval, saw the approval alone"
    assert judged(without, clauses.PREPARED) == (FAILED, told)
    silent = Options(within=WITHIN)
    assert judged(without, clauses.PREPARED, silent) == (NOT_APPLICABLE, "its hooks say nothing of preparing")
    assert judged(replace(SEEN, approvals=[]), clauses.PREPARED)[0] is NOT_APPLICABLE


def test_not_approved_after_failure() -> None:
    failed = f"failed {ID.lower()}"
    after = replace(SEEN, approvals=[approval(ID, prepared=[failed])], prepared=[failed])
    assert judged(after, clauses.NOT_FAILED)[0] is FAILED
    assert judged(after, clauses.PREPARED)[0] is PASSED
    again = replace(SEEN, approvals=[approval(ID, prepared=[failed, ID])], prepared=[failed, ID])
    assert judged(again, clauses.NOT_FAILED)[0] is PASSED
    silent = replace(SEEN, situation=SITUATIONS["failed-preparation"])
    assert "FORENOTICE_FAIL" in judged(silent, clauses.NOT_FAILED)[1]


def test_recovered_once() -> None:
    assert judged(replace(SEEN, recovered=[]), clauses.ONCE)[1] == "expected a recovery after the event, saw none"
    assert judged(replace(SEEN, recovered=[ID, "x", ID]), clauses.ONCE)[1] == "expected one recovery, saw 2"
    assert judged(replace(SEEN, recovered_early=frozenset({ID})), clauses.ONCE)[0] is FAILED
    unprepared = replace(SEEN, prepared=[], recovered=[])
    assert judged(unprepared, clauses.ONCE)[0] is NOT_APPLICABLE
    assert judged(replace(unprepared, recovered=[ID, ID]), clauses.ONCE)[0] is FAILED


@pytest.mark.parametrize("kind", [EventType.PREEMPT, EventType.TERMINATE])
def test_who_is_gone_need_not_recover(kind: EventType) -> None:
    evicted = replace(SEEN, lives=[life(kind=kind)], recovered=[])
    assert judged(evicted, clauses.ONCE)[0] is NOT_APPLICABLE
