"""The thread that moves rollouts on: it sleeps until one is due, and asks their gates."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import structlog

from notbefore.core import errors
from notbefore.core.rolling import Ask
from notbefore.service import rollouts
from notbefore.service.context import Service

log = structlog.get_logger()

LONGEST_SLEEP = timedelta(seconds=1)
"""Another process on the same database may have made something due."""

BREATH = timedelta(milliseconds=100)
"""Between two looks, however fast the journal grows."""

PAUSE_AFTER_ERROR = timedelta(seconds=1)
GATES_AT_ONCE = 4


class Roller:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopping = threading.Event()
        self._grown = service.follow_growth()
        self._answers: deque[rollouts.Answer] = deque()
        self._pool = ThreadPoolExecutor(GATES_AT_ONCE, thread_name_prefix="gate")
        self._thread = threading.Thread(target=self._run, name="roller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What gates have not said by now is asked again after the next start."""
        self._stopping.set()
        self._grown.set()
        self._service.gates.close()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._stopping.wait(BREATH.total_seconds()):
            self._grown.clear()
            try:
                idle = self._once()
            except errors.UnavailableError as error:
                log.warning("The store is unavailable", action="roll.unavailable", error=str(error))
                idle = PAUSE_AFTER_ERROR
            except Exception:
                log.exception("A rollout could not be moved on", action="roll.failed")
                idle = PAUSE_AFTER_ERROR
            self._grown.wait(idle.total_seconds())

    def _once(self) -> timedelta:
        """Take all steps that are due; gives how long nothing is."""
        heard = list(self._answers)
        asked = rollouts.roll(self._service, heard)
        for _ in heard:
            self._answers.popleft()
        for ask in asked:
            self._pool.submit(self._check, ask)
        due = rollouts.next_due(self._service)
        if due is None:
            return LONGEST_SLEEP
        return max(timedelta(0), min(due - self._service.clock.now(), LONGEST_SLEEP))

    def _check(self, ask: Ask) -> None:
        try:
            verdict = self._service.gates.check(ask.gate, {"rollout": ask.rollout, "turn": str(ask.turn + 1)})
            answer = rollouts.Answer(asked=ask, green=verdict.green, said=verdict.said)
        except Exception as error:
            log.exception("A gate could not be asked", action="gate.failed", gate=ask.gate)
            answer = rollouts.Answer(asked=ask, green=False, said=f"{type(error).__name__}: {error}")
        self._answers.append(answer)
        self._grown.set()
