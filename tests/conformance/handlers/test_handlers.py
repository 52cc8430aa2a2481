"""Real handlers, judged: our own agent has a clean sheet, and each mistake that others make is caught."""

import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.acceptance.running import PROGRAMS, environment

from forenotice.conformance.handlers import situations, trial
from forenotice.conformance.handlers.trial import Handler
from forenotice.conformance.handlers.verdicts import Options
from forenotice.conformance.report import Report, Verdict

HERE = Path(__file__).parent
AGENT = [str(PROGRAMS / "forenotice"), "agent", "run", "--config", str(HERE / "agent.toml"), "--state", "{dir}/state"]
ME = "web-0"
WITHIN = timedelta(seconds=2)


@dataclass(frozen=True)
class Case:
    mistake: str
    situations: tuple[str, ...]
    caught: set[tuple[str, str]]
    """By which clause, in which situation."""
    must_approve: bool = False

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-I", str(HERE / "handler.py"), self.mistake]


MISTAKES = (
    Case("none", ("two-events", "empty-body", "error-500", "failed-preparation"), set(), must_approve=True),
    Case(
        "approves-others",
        ("two-events", "others-event"),
        {("approving.own", "two-events"), ("approving.own", "others-event")},
    ),
    Case("approves-after-failure", ("failed-preparation", "reboot"), {("approving.not-failed", "failed-preparation")}),
    Case("never-recovers", ("reboot",), {("recovering.once", "reboot")}),
    Case("recovers-twice", ("reboot",), {("recovering.once", "reboot")}),
    Case("recovers-early", ("reboot",), {("recovering.once", "reboot")}),
    Case("dies-on-empty-body", ("empty-body", "reboot"), {("process.runs", "empty-body")}),
    Case("stops-polling", ("reboot",), {("polling.goes-on", "reboot")}),
    Case("approves-first", ("reboot",), {("approving.prepared", "reboot")}),
    Case("approves-the-unknown", ("reboot",), {("approving.known", "reboot")}),
    Case("polls-slowly", ("reboot",), {("noticing.in-time", "reboot")}),
    Case("sends-no-header", ("reboot",), {("polling.answered", "reboot")}),
    Case("never-approves", ("reboot",), set()),
    Case("never-approves", ("reboot",), {("approving.approves", "reboot")}, must_approve=True),
    Case("drops-what-is-refused", ("reboot", "error-500"), {("approving.approves", "error-500")}),
    Case(
        "ignores-lower-numbers",
        ("reboot", "incarnation-restart"),
        {("preparing.prepares", "incarnation-restart"), ("approving.approves", "incarnation-restart")},
    ),
    Case(
        "reads-no-iso-dates",
        ("reboot", "iso-dates"),
        {("preparing.prepares", "iso-dates"), ("approving.approves", "iso-dates")},
    ),
    Case("prepares-for-reboots-only", ("reboot", "redeploy"), {("approving.prepared", "redeploy")}),
    Case("recovers-at-each-poll", ("reboot",), {("recovering.once", "reboot")}),
    Case("has-no-hooks", ("reboot", "failed-preparation"), set()),
)


def failures(report: Report) -> set[tuple[str, str]]:
    return {(finding.clause, finding.where) for finding in report.findings if finding.verdict is Verdict.FAILED}


def told(report: Report) -> str:
    return "\n".join(line.text for line in report.lines() if line.verdict is Verdict.FAILED)


def test_our_agent_has_a_clean_sheet_and_each_mistake_of_others_is_caught(tmp_path: Path) -> None:
    """All at once: they mostly wait."""
    starting = threading.Semaphore(2)

    def judged(argv: Sequence[str], only: Collection[str] = (), *, must_approve: bool) -> Report:
        handler = Handler(
            argv=argv,
            me=ME,
            within=WITHIN,
            to_ask=4 if "sends-no-header" in argv else 20,
            environment=environment(tmp_path),
            starting=starting,
        )
        found = situations.find(ME, WITHIN, only)
        options = Options(within=WITHIN, must_approve=must_approve)
        return trial.run(handler, found, options, jobs=len(found), progress=lambda _: None)

    with ThreadPoolExecutor(1 + len(MISTAKES)) as pool:
        agent = pool.submit(judged, AGENT, must_approve=True)
        others = [pool.submit(judged, case.argv, case.situations, must_approve=case.must_approve) for case in MISTAKES]

    assert agent.result().passed, told(agent.result())
    # Nothing is clean only because nobody looked.
    judged_by = {finding.clause for finding in agent.result().findings if finding.verdict is Verdict.PASSED}
    assert judged_by == {finding.clause for finding in agent.result().findings}
    for case, other in zip(MISTAKES, others, strict=True):
        assert failures(other.result()) == case.caught, f"{case.mistake}\n{told(other.result())}"
