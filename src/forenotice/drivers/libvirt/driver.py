"""A driver that carries out operations on domains of libvirt."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from forenotice.core import errors
from forenotice.core.driver_calls import Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers import command, file
from forenotice.drivers.libvirt import disks, host_reboot, machines, moves
from forenotice.drivers.libvirt.attempts import (
    ENDED,
    PATIENCE,
    PAUSED,
    Attempt,
    Facts,
    FailedError,
    NotedError,
    Parts,
    Result,
)
from forenotice.drivers.libvirt.connections import Connections, HostError
from forenotice.drivers.surroundings import Surroundings
from forenotice.runtime import Runtime

FREEZE, FROZEN = "freeze", "frozen"
"""Steps of a mark: the domain is to be paused; it is or was paused. The second is written before it goes on."""


class LibvirtDriver:
    """Each kind looks first, so that it can be called again whenever it died. Nothing is kept here but connections."""

    def __init__(
        self,
        config: file.Libvirt,
        runtime: Runtime,
        connections: Connections,
        surroundings: Surroundings,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._parts = Parts(
            config=config,
            runtime=runtime,
            connections=connections,
            surroundings=surroundings,
            patience=patience,
            stopping=threading.Event(),
            news=threading.Condition(),
        )
        for name, argv in (("fence", config.fence), ("reboot", config.reboot)):
            if argv:
                command.require_program(name, argv)
        connections.watch(lambda *_: self._wake())

    def carry_out(self, task: Task, now: datetime) -> Outcome:  # noqa: ARG002 - what takes time asks the clock
        attempt = Attempt(task, self._parts)
        try:
            results = KINDS[task.kind](attempt)
        except errors.ForenoticeError as error:
            results = [attempt.result_of(vm, error) for vm in task.vms]
        return attempt.outcome(results)

    def stop(self) -> None:
        self._parts.stopping.set()
        self._wake()

    def _wake(self) -> None:
        with self._parts.news:
            self._parts.news.notify_all()


def _each(work: Callable[[Attempt, str], Facts | None]) -> Callable[[Attempt], list[Result]]:
    """VM by VM: the queue makes a call for each."""
    return lambda attempt: [attempt.serve(vm, lambda vm: work(attempt, vm)) for vm in attempt.task.vms]


def _restart(attempt: Attempt, vm: str) -> None:
    machine = attempt.source(vm)
    look = attempt.require(machine)
    mark = look.live_mark(attempt.task.operation)
    if mark is None:
        mark = attempt.start(machine, attempt.end(machine, look))
        attempt.unfinished.pop(vm)
    attempt.await_life(machine, mark)
    attempt.settle(machine, mark)


def _remove(attempt: Attempt, vm: str) -> None:
    """In two calls: that there is no domain means that it was removed only if the first one has ended it."""
    machine = attempt.source(vm)
    ended = attempt.unfinished.get(vm) == ENDED
    look = machine.look()
    if look is None and ended:
        return
    if look is None:
        why = f"if it runs nowhere else, forenotice vm remove {vm}"
        raise FailedError(f"{machine.host} has no domain {vm}, nor one with its id: {why}")
    disks.require_usable(vm, look.definition.ephemeral)
    attempt.end(machine, look)
    disks.delete(machine.connection, look.definition.ephemeral, attempt.left)
    if not ended:
        raise NotedError(ENDED)
    machine.undefine(machines.REMOVED)


def _host_update(attempt: Attempt) -> list[Result]:
    """All are marked before the first is paused, and then paused together."""
    marked = attempt.serve_each(attempt.task.vms, lambda vm: _mark_to_freeze(attempt, vm))
    ready = [result.vm for result in marked if result.is_done]
    frozen = {result.vm: result for result in attempt.serve_each(ready, lambda vm: _freeze(attempt, vm))}
    return [frozen.get(result.vm, result) for result in marked]


def _mark_to_freeze(attempt: Attempt, vm: str) -> None:
    machine = attempt.source(vm)
    look = attempt.require(machine)
    if not look.is_active or look.live_mark(attempt.task.operation):
        return
    if not look.is_running:
        raise FailedError(f"the domain of {vm} on {machine.host} {look.sentence}, and is left alone")
    attempt.require_going_on()
    machine.mark(attempt.new_mark(machine, look, FREEZE), live=True)


def _freeze(attempt: Attempt, vm: str) -> Facts:
    machine = attempt.source(vm)
    look = attempt.require(machine)
    if not look.is_active:
        return {"output": "it was shut off"}
    mark = look.live_mark(attempt.task.operation)
    if mark is None:
        raise FailedError(f"the domain of {vm} on {machine.host} was replaced by another")
    lasts = timedelta(seconds=max(0, attempt.task.duration))
    facts: dict[str, object] = {}
    over = min(mark.at + lasts, attempt.now)
    if look.is_paused or (look.is_running and mark.step == FREEZE):
        if look.is_running:
            attempt.require_going_on()
            attempt.unfinished[vm] = PAUSED
            machine.suspend()
            mark = replace(mark, at=attempt.now)
        attempt.unfinished[vm] = PAUSED
        begun = attempt.monotonic - max(timedelta(0), attempt.now - mark.at).total_seconds()
        mark = replace(mark, step=FROZEN)
        with contextlib.suppress(HostError):
            # Without it, it may be paused once more; but it must not stay paused.
            machine.mark(mark, live=True)
        attempt.sleep_until(begun + lasts.total_seconds())
        machine.resume()
        facts["paused_seconds"] = round(attempt.monotonic - begun, 3)
        over = attempt.now
    attempt.unfinished.pop(vm, None)
    attempt.await_life(machine, mark, over)
    return facts


def _hardware_failure(attempt: Attempt) -> list[Result]:
    """Fence the host once for all its VMs, unless it answers or has no more of them."""
    started: set[str] = set()

    def look(vm: str) -> None:
        if moves.is_started(attempt, vm):
            started.add(vm)

    looked = attempt.serve_each(attempt.task.vms, look)
    ready = [result.vm for result in looked if result.is_done]
    fenced = False
    results = {result.vm: result for result in looked}
    if missing := [vm for vm in ready if vm not in started]:
        try:
            fenced = moves.fence(attempt, attempt.source(missing[0]).connection)
        except errors.ForenoticeError as error:
            results |= {vm: attempt.result_of(vm, error) for vm in missing}
            ready = [vm for vm in ready if vm in started]

    def move(vm: str) -> Facts:
        # Of one that has started there, this host has nothing any more.
        return moves.redeploy(attempt, vm, fenced=fenced or vm in started)

    moved = attempt.serve_each(ready, move, attempt.config.at_once)
    return list((results | {result.vm: result for result in moved}).values())


KINDS: dict[Kind, Callable[[Attempt], list[Result]]] = {
    Kind.RESTART: _each(_restart),
    Kind.REDEPLOY: _each(moves.redeploy),
    Kind.DEGRADED_HARDWARE: _each(moves.redeploy),
    Kind.LIVE_MIGRATION: _each(moves.migrate),
    Kind.EVICTION: _each(_remove),
    Kind.DELETION: _each(_remove),
    Kind.HOST_UPDATE: _host_update,
    Kind.HOST_REBOOT: host_reboot.carry_out,
    Kind.HARDWARE_FAILURE: _hardware_failure,
}
