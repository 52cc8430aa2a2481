"""What a handler is judged by: one table, one row each. docs/conformance.md is this table, and a test compares."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from forenotice.conformance.report import Report, Verdict


@dataclass(frozen=True, slots=True)
class Clause:
    id: str
    short: str
    """At the head of its column."""
    says: str


RUNS = Clause("process.runs", "runs", "Its process runs to the end")
ANSWERED = Clause("polling.answered", "asks", "Its polls are answered: address, header and api-version are right")
GOES_ON = Clause("polling.goes-on", "goes on", "It still polls when all is over")
IN_TIME = Clause("noticing.in-time", "notices", "It sees an event about itself in time")
PREPARES = Clause("preparing.prepares", "prepares", "It prepares for an event about itself")
OWN = Clause("approving.own", "own", "It approves no event that is only about others")
KNOWN = Clause("approving.known", "known", "It approves only what was announced")
APPROVES = Clause("approving.approves", "approves", "It approves what is its own to approve")
PREPARED = Clause("approving.prepared", "prepared", "It approves only after its preparation")
NOT_FAILED = Clause("approving.not-failed", "not failed", "It does not approve after a preparation that failed")
ONCE = Clause("recovering.once", "recovers", "It recovers once, when the event is over")

ALL = (RUNS, ANSWERED, GOES_ON, IN_TIME, PREPARES, OWN, KNOWN, APPROVES, PREPARED, NOT_FAILED, ONCE)
BY_ID = MappingProxyType({clause.id: clause for clause in ALL})


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
