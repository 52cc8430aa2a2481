"""What was found of a handler, for people: a scoreboard in Markdown, to publish, and a line for each reason."""

import re
from collections.abc import Iterator, Sequence

from forenotice.conformance.handlers import clauses
from forenotice.conformance.report import Report, Verdict

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
    widths = [max(map(len, (FIRST, *situations))), *(len(clause.short) for clause in clauses.ALL)]
    yield _row([FIRST, *(clause.short for clause in clauses.ALL)], widths)
    yield _row(["-" * widths[0], *(f":{'-' * (width - 2)}:" for width in widths[1:])], widths)
    for situation in situations:
        yield _row([situation, *(MARKS[verdicts[situation, clause.id]] for clause in clauses.ALL)], widths)


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
