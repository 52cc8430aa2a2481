"""Moves rollouts on: the steps that are due, one transaction each, and the thread that takes them and asks gates."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from forenotice.core import errors, rollout_progress
from forenotice.core.rollout_progress import GateCheck
from forenotice.core.rollouts import GateResult, RolloutStatus
from forenotice.service.calls import Call
from forenotice.service.loops import Loop, time_until
from forenotice.service.service import Service, UnitOfWork

log = structlog.get_logger()

PAUSE = timedelta(milliseconds=100)
"""Between two looks, however fast the journal grows."""

GATES_AT_ONCE = 16


AT_ONCE = 20
"""Rollouts looked at in one round."""

CANDIDATES = 20
"""Hosts of the wave that one transaction looks at: guests who approve wait for its end."""


def advance(service: Service, checked: Mapping[GateCheck, GateResult]) -> list[GateCheck]:
    """Take the next step of every rollout that is due; gives the gates that must be asked."""
    for check, result in checked.items():
        _record_gate(service, check, result)
    with service.store.read() as reader:
        due = reader.rollouts.due(service.clock.now(), AT_ONCE)
    return [asked for rollout_id in due if (asked := _step(service, rollout_id))]


def next_due(service: Service) -> datetime | None:
    with service.store.read() as reader:
        return reader.rollouts.next_due()


def _record_gate(service: Service, check: GateCheck, result: GateResult) -> None:
    def work(unit: UnitOfWork) -> None:
        draft = unit.draft(unit.transaction.worlds.load(rollouts=[check.rollout]))
        rollout_progress.record_gate(draft, check.rollout, check.wave, replace(result, at=unit.now))
        unit.keep(draft)

    service.transact(work)


def _step(service: Service, rollout_id: str) -> GateCheck | None:
    def work(unit: UnitOfWork) -> int | None:
        known = unit.transaction.rollouts
        if rollout_id not in known.due(unit.now, AT_ONCE):
            return None  # Another process has taken the step.
        draft = unit.draft(unit.transaction.worlds.load(rollouts=[rollout_id]))
        ended = known.ended(rollout_id)
        under_way = known.under_way(rollout_id) - len(ended)
        rollout_progress.settle(draft, rollout_id, ended)
        step = rollout_progress.next_step(draft, rollout_id, under_way, known.next_wave(rollout_id))
        unit.keep(draft)
        return step

    step = service.transact(work)
    if step is None:
        return None
    after: str | GateCheck | None = ""
    while isinstance(after, str):
        after = service.transact(partial(_take_some, rollout_id, step, after))
    return after


def _take_some(rollout_id: str, wave: int, after: str, unit: UnitOfWork) -> str | GateCheck | None:
    """Announce some of the wave's hosts; gives the host to continue after, or the gate to ask first; None: done."""
    known = unit.transaction.rollouts
    rollout = known.named([rollout_id])[rollout_id]
    free = rollout.options.batch - known.under_way(rollout_id)
    if rollout.status is not RolloutStatus.RUNNING or rollout.wave != wave or free <= 0:
        return None
    waiting = known.waiting(rollout_id, wave, after, CANDIDATES)
    if not waiting:
        if free == rollout.options.batch and known.next_wave(rollout_id) != wave:
            # All the rest were skipped.
            known.put([replace(rollout, due_at=unit.now)])
        return None
    hosts = [rollout_host.host for rollout_host in waiting]
    arriving = {each for host in hosts for each in unit.transaction.operations.moving_to(host)}
    world = unit.transaction.worlds.load(rollouts=[rollout_id], hosts=hosts, operations=arriving)
    draft = unit.draft(world, Call(actor=f"rollout:{rollout_id}"))
    taken = rollout_progress.take(draft, rollout_id, waiting, free)
    unit.keep(draft)
    return taken if isinstance(taken, GateCheck) else waiting[-1].host


class RolloutLoop:
    """The thread that moves rollouts on; gates are asked in threads of their own."""

    def __init__(self, service: Service, *, gates_at_once: int = GATES_AT_ONCE) -> None:
        self._service = service
        self._grown = service.follow_growth()
        self._checked: dict[GateCheck, GateResult] = {}
        self._checking: set[GateCheck] = set()
        """Until the result is recorded, so that no gate is asked twice for one wave at once."""
        self._wanted: dict[GateCheck, None] = {}
        """Checks that wait until fewer than `gates_at_once` are being made."""
        self._gates_at_once = gates_at_once
        self._loop = Loop("roll", self.step, self._grown, service.liveness, service.runtime, pause=PAUSE)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Gates that have not answered by now are asked again after the next start."""
        self._service.gates.close()
        self._loop.stop()

    def step(self) -> timedelta:
        """Take all steps that are due; gives how long nothing is."""
        checked = self._checked.copy()
        wanted = advance(self._service, checked)
        for check in checked:
            del self._checked[check]
            self._checking.discard(check)
        self._wanted |= {check: None for check in wanted if check not in self._checking}
        for check in list(self._wanted)[: max(0, self._gates_at_once - len(self._checking))]:
            del self._wanted[check]
            self._checking.add(check)
            self._service.runtime.start_thread(partial(self._check, check), "gate")
        return time_until(next_due(self._service), self._service.clock.now())

    def _check(self, check: GateCheck) -> None:
        try:
            if not self._is_wanted(check):
                self._end(check)
                return
            facts = {"rollout": check.rollout, "wave": str(check.wave + 1)}
            result = self._service.gates.check(check.gate, facts, self._service.clock.now())
        except (errors.UnavailableError, errors.UnsoundError):
            self._end(check)
            return
        except Exception as error:
            log.exception("A gate could not be asked", action="gate.failed", gate=check.gate)
            status = f"{type(error).__name__}: {error}"
            result = GateResult(green=False, status=status, at=self._service.clock.now())
        self._checked[check] = result
        self._grown.set()

    def _end(self, check: GateCheck) -> None:
        """Without a result: the rollout asks again when one is due."""
        self._checking.discard(check)
        self._grown.set()

    def _is_wanted(self, check: GateCheck) -> bool:
        """Whether the rollout still waits for this gate: it may have been paused, cancelled or moved on meanwhile."""
        with self._service.store.read() as reader:
            rollout = reader.worlds.load(rollouts=[check.rollout]).rollouts.get(check.rollout)
        return (
            rollout is not None
            and rollout.status is RolloutStatus.RUNNING
            and rollout.wave == check.wave
            and rollout.opened_at is None
        )
