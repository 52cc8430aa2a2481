"""A handler lives through all situations, several at a time; what was found makes one report."""

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from notbefore.conformance.handlers import clauses, judging, living
from notbefore.conformance.handlers.judging import Options
from notbefore.conformance.handlers.living import Handler
from notbefore.conformance.handlers.situations import Situation
from notbefore.conformance.report import Finding, Report, Verdict

ENOUGH = 2
"""Whoever has seen no document in so many situations, and none in any other, will see none in the rest."""

Progress = Callable[[str], None]


def run(
    handler: Handler, situations: Sequence[Situation], options: Options, *, jobs: int, progress: Progress
) -> Report:
    run = Run(handler, options, len(situations), progress)
    # The longest first, so that none of them is left alone at the end.
    longest_first = sorted(situations, key=lambda situation: situation.longest, reverse=True)
    with ThreadPoolExecutor(jobs, thread_name_prefix="situation") as pool:
        futures = {situation.name: pool.submit(run.live_through, situation) for situation in longest_first}
        try:
            wait(futures.values(), return_when=FIRST_EXCEPTION)
            found = _results(futures)
        except BaseException:
            handler.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    by_place = {(finding.clause, finding.where): finding for findings in found.values() for finding in findings}
    return Report(
        subject=shlex.join(handler.argv),
        findings=[by_place[clause.id, situation.name] for clause in clauses.ALL for situation in situations],
    )


def _results(futures: dict[str, "Future[list[Finding]]"]) -> dict[str, list[Finding]]:
    for future in futures.values():
        if future.done():
            # Not the one that is waited for, but the one that failed.
            future.result()
    return {name: future.result() for name, future in futures.items()}


class Run:
    def __init__(self, handler: Handler, options: Options, situations: int, progress: Progress) -> None:
        self._handler = handler
        self._options = options
        self._situations = situations
        self._progress = progress
        self._done = 0
        self._heard = 0
        self._unheard: list[str] = []
        """Situations in which the handler asked nothing that could be answered."""

    def live_through(self, situation: Situation) -> list[Finding]:
        if not self._heard and len(self._unheard) >= ENOUGH:
            found = judging.skipped(situation.name, f"it saw no document in {' and '.join(self._unheard[:ENOUGH])}")
        else:
            found = judging.judge(living.live_through(situation, self._handler), self._options)
            if _verdict(found, clauses.ANSWERED.id) is Verdict.PASSED:
                self._heard += 1
            else:
                self._unheard.append(situation.name)
        self._done += 1
        self._progress(f"{self._done} of {self._situations} situations: {situation.name} is over")
        return found


def _verdict(findings: Sequence[Finding], clause: str) -> Verdict:
    return next(finding.verdict for finding in findings if finding.clause == clause)
