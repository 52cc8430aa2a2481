"""What a handler is judged by, from what was seen of it: one function for each clause, and the scoreboard.

docs/conformance.md has the same clauses, and a test compares.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from forenotice.conformance.handlers import evidence as hooks
from forenotice.conformance.handlers import situations
from forenotice.conformance.handlers.evidence import ANSWERED, Evidence, Life, Preparation
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.emulator import faults
from forenotice.emulator.request_log import LoggedRequest
from forenotice.wire import versions

BLINDING = frozenset(
    fault.name
    for fault in faults.ALL
    if isinstance(fault.effect, faults.DocumentChange) and fault.effect.document in situations.HIDING
)
TO_PREPARE = situations.TO_PREPARE.total_seconds()
PLAIN = "reboot"
"""The situation that is the same as under each fault, but for the fault."""
ENDED_EARLY = "its process had ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a handler does where nothing goes wrong: so it must where something does."""

    approves: bool = False
    prepares: bool = False
    has_hooks: bool = False
    """Its hooks write something of preparing, somewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    within: timedelta
    """To notice in."""
    must_approve: bool = False
    habits: Habits = Habits()


def habits(seen: Collection[Evidence]) -> Habits:
    """Unless the plain situation was played, nothing is known of them but whether hooks write."""
    plain = [(evidence, life) for evidence in seen if evidence.situation.name == PLAIN for life in evidence.own]
    return Habits(
        approves=any(evidence.has_approved(life) for evidence, life in plain),
        prepares=any(hooks.about(evidence.prepared, life.id) for evidence, life in plain),
        has_hooks=any(evidence.prepared for evidence in seen),
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    expected: str = ""
    seen: str = ""
    why: str = ""


PASSED = Judgement(Verdict.PASSED)
Judge = Callable[[Evidence, Options], Judgement]


@dataclass(frozen=True, slots=True)
class Clause:
    id: str
    short: str
    """At the head of its column."""
    says: str
    judge: Judge

    def finding(self, where: str, judgement: Judgement) -> Finding:
        return Finding(clause=self.id, says=self.says, where=where, **asdict(judgement))


ALL: list[Clause] = []


def clause(clause_id: str, short: str, says: str) -> Callable[[Judge], Clause]:
    def made(judge: Judge) -> Clause:
        ALL.append(Clause(clause_id, short, says, judge))
        return ALL[-1]

    return made


def judge(evidence: Evidence, options: Options) -> list[Finding]:
    saw = saw_document(evidence)
    found = []
    for clause in ALL:
        # A handler that never saw a document could do nothing else; if its process ended at once, not even poll.
        can_judge = saw or clause is runs or (clause is is_answered and evidence.exit_code is None)
        judgement = clause.judge(evidence, options) if can_judge else _not_judged("it never saw a document")
        found.append(clause.finding(evidence.situation.name, judgement))
    return found


def skipped(situation: str, why: str) -> list[Finding]:
    """Of one that was not played."""
    return [clause.finding(situation, _not_judged(why)) for clause in ALL]


def _failed(expected: str, seen: str) -> Judgement:
    return Judgement(Verdict.FAILED, expected=expected, seen=seen)


def _not_judged(why: str) -> Judgement:
    return Judgement(Verdict.NOT_APPLICABLE, why=why)


# Its process, its polls


@clause("process.runs", "runs", "Its process runs to the end")
def runs(evidence: Evidence, _: Options) -> Judgement:
    fault = evidence.situation.fault
    if evidence.exit_code is not None:
        output = f"; it said last: {evidence.output}" if evidence.output else ""
        return _failed("a process that runs", f"that it ended with code {evidence.exit_code}{output}")
    if fault and not any(fault in (request.fault or "").split("+") for request in evidence.requests):
        return _not_judged("it asked nothing while the fault was on")
    return PASSED


@clause("polling.answered", "asks", "Its polls are answered: address, header and api-version are right")
def is_answered(evidence: Evidence, _: Options) -> Judgement:
    if saw_document(evidence):
        return PASSED
    expected = "a GET of /metadata/scheduledevents that is answered with a document"
    listened = f"in the first {evidence.listened:g} s"
    if not evidence.requests:
        return _failed(expected, f"no request at all {listened}")
    last = evidence.requests[-1]
    return _failed(expected, f"{len(evidence.requests)} other requests {listened}, the last being {_told(last)}")


@clause("polling.goes-on", "goes on", "It still polls when all is over")
def goes_on(evidence: Evidence, _: Options) -> Judgement:
    if evidence.goes_on:
        return PASSED
    return _unless_ended(evidence, _failed("polls also after the last event is gone", "none"))


@clause("noticing.in-time", "notices", "It sees an event about itself in time")
def notices(evidence: Evidence, options: Options) -> Judgement:
    allowed = evidence.situation.allowed(options.within).total_seconds()
    judgement = _not_judged("no event here is about it, and shown for long enough")
    for life in evidence.own:
        since = _could_be_seen(evidence, life)
        seen = _seen_at(evidence, life)
        if seen is not None and seen - since <= allowed:
            judgement = PASSED
        elif life.ended - since > allowed:
            found = _unseen(evidence, life) if seen is None else f"one after {seen - since:.1f} s"
            return _unless_ended(evidence, _failed(f"a poll answered with the event within {allowed:g} s", found))
    return judgement


# Its preparation and its approvals


@clause("preparing.prepares", "prepares", "It prepares for an event about itself")
def prepares(evidence: Evidence, options: Options) -> Judgement:
    prepared = [life for life in evidence.own if hooks.about(evidence.prepared, life.id)]
    missing = [life for life in evidence.own if life not in prepared and _had_time(evidence, options, life)]
    if missing and evidence.situation.fault and options.habits.prepares:
        return _unless_ended(evidence, _failed(f"a preparation, as in {PLAIN}", "none"))
    return PASSED if prepared else _not_judged("its hooks say nothing of preparing")


@clause("approving.own", "own", "It approves no event that is only about others")
def only_own(evidence: Evidence, _: Options) -> Judgement:
    for life in evidence.others:
        if any(evidence.approvals_of(life)):
            names = ", ".join(life.event.resources)
            return _failed("no approval of an event that is only about others", f"one of the event of {names}")
    return PASSED if evidence.others else _not_judged("no event here is only about others")


@clause("approving.known", "known", "It approves only what was announced")
def only_known(evidence: Evidence, _: Options) -> Judgement:
    announced = {life.id for life in evidence.lives}
    for request, _lines in evidence.approvals:
        if unknown := set(request.event_ids) - announced:
            return _failed("EventIds that were announced", f"an approval of {', '.join(sorted(unknown))}")
        if not request.event_ids:
            return _failed("approvals in the form of the protocol", _told(request))
    return PASSED if evidence.approvals else _not_judged("it approved nothing")


@clause("approving.approves", "approves", "It approves what is its own to approve")
def approves(evidence: Evidence, options: Options) -> Judgement:
    if evidence.situation.fails:
        return _not_judged("here it is not to approve")
    missing = [life for life in evidence.own if _is_to_be_approved(evidence, options, life)]
    if refused := [request for life in missing for request in evidence.refusals_of(life)]:
        return _unless_ended(evidence, _failed("an approval that is answered 200", _told(refused[-1])))
    if missing and options.must_approve:
        return _unless_ended(evidence, _failed("an approval of the event", "none"))
    if missing and evidence.situation.fault and options.habits.approves:
        return _unless_ended(evidence, _failed(f"an approval of the event, as in {PLAIN}", "none"))
    if missing:
        return _not_judged("it did not approve, and need not")
    if any(evidence.has_approved(life) for life in evidence.own):
        return PASSED
    return _not_judged("no event here is its alone to approve" if evidence.exit_code is None else ENDED_EARLY)


@clause("approving.prepared", "prepared", "It approves only after its preparation")
def is_prepared(evidence: Evidence, options: Options) -> Judgement:
    if not options.habits.has_hooks:
        return _not_judged("its hooks say nothing of preparing")
    judgement = _not_judged("it approved nothing of its own")
    for life in evidence.own:
        for _request, lines in evidence.approvals_of(life):
            if hooks.preparation(lines, life.id) is Preparation.NONE:
                seen = "the approval first" if hooks.about(evidence.prepared, life.id) else "the approval alone"
                return _failed("its preparation before its approval", seen)
            judgement = PASSED
    return judgement


@clause("approving.not-failed", "not failed", "It does not approve after a preparation that failed")
def not_after_failure(evidence: Evidence, _: Options) -> Judgement:
    failed = [life for life in evidence.own if any(map(hooks.has_failed, hooks.about(evidence.prepared, life.id)))]
    for life in failed:
        for _request, lines in evidence.approvals_of(life):
            if hooks.preparation(lines, life.id) is Preparation.FAILED:
                return _failed("no approval after a preparation that failed", "one")
    if failed:
        return PASSED
    told_to = "its hooks do not say that they failed, as FORENOTICE_FAIL tells them to"
    return _not_judged(told_to if evidence.situation.fails else "no preparation failed")


# Its recovery


@clause("recovering.once", "recovers", "It recovers once, when the event is over")
def recovers_once(evidence: Evidence, _: Options) -> Judgement:
    judgement = _not_judged("its hooks say nothing of preparing or recovering")
    for life in evidence.own:
        times = len(hooks.about(evidence.recovered, life.id))
        prepared = hooks.preparation(evidence.prepared, life.id) is Preparation.DONE
        if times > 1:
            return _failed("one recovery", f"{times}")
        if life.id in evidence.recovered_early:
            return _failed("a recovery when the event is over", "one before that")
        if times:
            judgement = PASSED
        elif prepared and life.is_survived:
            return _unless_ended(evidence, _failed("a recovery after the event", "none"))
    return judgement


# What was seen


def _unless_ended(evidence: Evidence, failed: Judgement) -> Judgement:
    """What a dead process does not do is told once."""
    return failed if evidence.exit_code is None else _not_judged(ENDED_EARLY)


def saw_document(evidence: Evidence) -> bool:
    return any(poll.status in ANSWERED for poll in evidence.polls)


def _could_be_seen(evidence: Evidence, life: Life) -> float:
    """From when on: whoever starts later sees it later."""
    return max(life.announced, evidence.polls[0].monotonic)


def _seen_at(evidence: Evidence, life: Life) -> float | None:
    """When a poll was first answered with the event."""
    for poll in evidence.polls:
        in_time = life.announced <= poll.answered < life.ended and poll.status == 200
        if in_time and BLINDING.isdisjoint((poll.fault or "").split("+")) and _is_listed(life, poll):
            return poll.answered
    return None


def _unseen(evidence: Evidence, life: Life) -> str:
    last = evidence.polls[-1]
    lists = "" if _is_listed(life, last) else f": api-version {last.api_version} does not list {life.event.type}"
    return f"none before it was gone{lists}"


def _is_listed(life: Life, poll: LoggedRequest) -> bool:
    version = versions.lookup(poll.api_version or "")
    return version is None or life.event.type in version.types


def _is_to_be_approved(evidence: Evidence, options: Options, life: Life) -> bool:
    """It has not, though it alone could, and had the time."""
    is_its_alone = life.event.resources == (evidence.me,)
    return is_its_alone and not evidence.has_approved(life) and _had_time(evidence, options, life)


def _had_time(evidence: Evidence, options: Options, life: Life) -> bool:
    """To prepare, and to approve."""
    situation = evidence.situation
    needed = (situation.allowed(options.within) + situation.again).total_seconds() + TO_PREPARE
    return life.scheduled_until - _could_be_seen(evidence, life) >= needed


def _told(request: LoggedRequest) -> str:
    why = f" ({request.reason})" if request.reason else ""
    return f"{request.method} {request.target} that was answered {request.status or 'nothing'}{why}"


# The scoreboard

MARKS = {Verdict.PASSED: "✓", Verdict.FAILED: "✗", Verdict.NOT_APPLICABLE: "·"}
FIRST = "situation"
MOST_NAMES = 4
CHANGING = re.compile(
    r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}|forenotice-conformance-\w+|line \d+|:\d+|[0-9.]+ s\b|\d+ other",
    re.IGNORECASE,
)
"""What may differ where the reason is the same: ids, folders, lines, ports, seconds, counts. The first is shown."""


def rows(report: Report) -> Iterator[str]:
    """A row for each situation, a column for each clause."""
    verdicts = {(finding.where, finding.clause): finding.verdict for finding in report.findings}
    situations = list(dict.fromkeys(finding.where for finding in report.findings))
    widths = [max(map(len, (FIRST, *situations))), *(len(clause.short) for clause in ALL)]
    yield _row([FIRST, *(clause.short for clause in ALL)], widths)
    yield _row(["-" * widths[0], *(f":{'-' * (width - 2)}:" for width in widths[1:])], widths)
    for situation in situations:
        yield _row([situation, *(MARKS[verdicts[situation, clause.id]] for clause in ALL)], widths)


def summary(report: Report) -> str:
    verdicts: dict[str, set[Verdict]] = {}
    for finding in report.findings:
        verdicts.setdefault(finding.where, set()).add(finding.verdict)
    clean = sum(Verdict.PASSED in found and Verdict.FAILED not in found for found in verdicts.values())
    return f"{clean} of {len(verdicts)} situations without a failure"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *marks = cells
    padded = (mark.center(width) for mark, width in zip(marks, widths[1:], strict=True))
    return f"| {' | '.join((name.ljust(widths[0]), *padded))} |"
