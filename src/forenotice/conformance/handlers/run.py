"""A handler lives through all situations, several at a time; what was found makes one report."""

import shlex
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from forenotice.conformance.handlers import clauses, trial, verdicts
from forenotice.conformance.handlers.evidence import Evidence
from forenotice.conformance.handlers.situations import Situation
from forenotice.conformance.handlers.trial import Handler
from forenotice.conformance.handlers.verdicts import Options
from forenotice.conformance.report import Finding, Report

ENOUGH = 2
"""Whoever has seen no document in so many situations, and none in any other, will see none in the rest."""

AWAKE_SECONDS = 1.0
"""After so many seconds one looks whether one was called meanwhile."""

Progress = Callable[[str], None]
Seen = Evidence | str
"""A reason, where it was not played."""


def run(
    handler: Handler, situations: Sequence[Situation], options: Options, *, jobs: int, progress: Progress
) -> Report:
    run = Run(handler, len(situations), progress)
    # The longest first, so that none of them is left alone at the end.
    longest_first = sorted(situations, key=lambda situation: situation.longest, reverse=True)
    with ThreadPoolExecutor(jobs, thread_name_prefix="situation") as pool:
        try:
            futures = {situation.name: pool.submit(run.play, situation) for situation in longest_first}
            _sleep(until=futures.values())
            found = _results(futures)
        except BaseException:
            handler.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    played = [evidence for evidence in found.values() if isinstance(evidence, Evidence)]
    measure = replace(options, habits=verdicts.habits(played))
    findings: list[Finding] = []
    for situation in situations:
        seen = found[situation.name]
        findings += verdicts.skipped(situation.name, seen) if isinstance(seen, str) else verdicts.judge(seen, measure)
    order = [clause.id for clause in clauses.ALL]
    return Report(
        subject=shlex.join(handler.argv), findings=sorted(findings, key=lambda finding: order.index(finding.clause))
    )


def _sleep(until: Collection["Future[Seen]"]) -> None:
    """Till all are done or one has failed.

    A signal that comes just before the main thread falls asleep is heard when it wakes: so it does now and then.
    """
    others = until
    failed = False
    while others and not failed:
        done, others = wait(until, AWAKE_SECONDS, FIRST_EXCEPTION)
        failed = any(future.exception() for future in done)


def _results(futures: dict[str, "Future[Seen]"]) -> dict[str, Seen]:
    for future in futures.values():
        if future.done():
            # Not the one that is waited for, but the one that failed.
            future.result()
    return {name: future.result() for name, future in futures.items()}


class Run:
    def __init__(self, handler: Handler, situations: int, progress: Progress) -> None:
        self._handler = handler
        self._situations = situations
        self._progress = progress
        self._done = 0
        self._heard = 0
        self._unheard: list[str] = []
        """Situations in which the handler asked nothing that could be answered."""

    def play(self, situation: Situation) -> Seen:
        seen: Seen
        if not self._heard and len(self._unheard) >= ENOUGH:
            seen = f"it saw no document in {' and '.join(self._unheard[:ENOUGH])}"
        else:
            seen = trial.play(situation, self._handler)
            if verdicts.saw_document(seen):
                self._heard += 1
            else:
                self._unheard.append(situation.name)
        self._done += 1
        self._progress(f"{self._done} of {self._situations} situations: {situation.name} is over")
        return seen
