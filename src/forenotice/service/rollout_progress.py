"""The thread that moves rollouts on: it sleeps until one is due, and asks their gates."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import structlog

from forenotice.core import errors
from forenotice.core.rollout_progress import GateCheck
from forenotice.core.rollouts import RolloutStatus
from forenotice.service import rollouts
from forenotice.service.context import Service
from forenotice.service.loops import Loop, time_until

log = structlog.get_logger()

BREATH = timedelta(milliseconds=100)
"""Between two looks, however fast the journal grows."""

GATES_AT_ONCE = 16


class Roller:
    def __init__(self, service: Service, *, gates_at_once: int = GATES_AT_ONCE) -> None:
        self._service = service
        self._grown = service.follow_growth()
        self._answers: deque[rollouts.Answer] = deque()
        self._asking: set[GateCheck] = set()
        """Until the answer is heard, so that no gate is asked twice for one turn at once."""
        self._pool = ThreadPoolExecutor(gates_at_once, thread_name_prefix="gate")
        self._loop = Loop("roll", self._once, self._grown, service.heartbeats, breath=BREATH)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """What gates have not said by now is asked again after the next start."""
        self._service.gates.close()
        self._loop.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _once(self) -> timedelta:
        """Take all steps that are due; gives how long nothing is."""
        heard = list(self._answers)
        asked = rollouts.roll(self._service, heard)
        for answer in heard:
            self._answers.popleft()
            self._asking.discard(answer.asked)
        for ask in asked:
            if ask not in self._asking:
                self._asking.add(ask)
                self._pool.submit(self._check, ask)
        return time_until(rollouts.next_due(self._service), self._service.clock.now())

    def _check(self, ask: GateCheck) -> None:
        try:
            if not self._is_wanted(ask):
                self._asking.discard(ask)
                return
            verdict = self._service.gates.check(ask.gate, {"rollout": ask.rollout, "turn": str(ask.turn + 1)})
            answer = rollouts.Answer(asked=ask, green=verdict.green, said=verdict.said, line=verdict.line)
        except (errors.UnavailableError, errors.UnsoundError):
            # Of the store. It is asked again when it should have answered.
            self._asking.discard(ask)
            return
        except Exception as error:
            log.exception("A gate could not be asked", action="gate.failed", gate=ask.gate)
            answer = rollouts.Answer(asked=ask, green=False, said=f"{type(error).__name__}: {error}")
        self._answers.append(answer)
        self._grown.set()

    def _is_wanted(self, ask: GateCheck) -> bool:
        """Still: while it stood in line, the rollout may have been paused or cancelled, or gone on."""
        with self._service.store.read() as reader:
            rollout = reader.load(rollouts=[ask.rollout]).rollouts.get(ask.rollout)
        return (
            rollout is not None
            and rollout.status is RolloutStatus.RUNNING
            and rollout.turn == ask.turn
            and rollout.opened_at is None
        )
