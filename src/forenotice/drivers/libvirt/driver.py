"""A driver that carries out operations on domains of libvirt."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from forenotice.core import errors
from forenotice.core.driver_calls import Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers import command, file
from forenotice.drivers.libvirt import disks, host_reboot, machines, moves
from forenotice.drivers.libvirt.attempts import PATIENCE, Attempt, Facts, FailedError, Parts, Result
from forenotice.drivers.libvirt.connections import Connections
from forenotice.drivers.surroundings import Surroundings
from forenotice.runtime import Runtime

FREEZE = "freeze"
"""The step of a mark: the domain is being, or was, paused."""


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
    attempt.await_life(machine, mark)
    attempt.settle(machine, mark)


def _remove(attempt: Attempt, vm: str) -> Facts | None:
    """A domain that is nowhere has been removed: nothing else could tell."""
    machine = attempt.source(vm)
    look = machine.look()
    if look is None:
        attempt.require_nowhere_else(machine)
        return {"output": f"{machine.host} has no domain {vm} any more"}
    disks.require_usable(vm, look.definition.ephemeral)
    attempt.end(machine, look)
    disks.delete(machine.connection, look.definition.ephemeral, attempt.left)
    machine.undefine(machines.REMOVED)
    return None


def _host_update(attempt: Attempt) -> list[Result]:
    """All are marked before the first is paused, and then paused together."""
    fresh: set[str] = set()
    marked = attempt.serve_each(attempt.task.vms, lambda vm: _mark_to_freeze(attempt, vm, fresh))
    ready = [result.vm for result in marked if result.is_done]
    frozen = {result.vm: result for result in attempt.serve_each(ready, lambda vm: _freeze(attempt, vm, fresh))}
    return [frozen.get(result.vm, result) for result in marked]


def _mark_to_freeze(attempt: Attempt, vm: str, fresh: set[str]) -> None:
    machine = attempt.source(vm)
    look = attempt.require(machine)
    if not look.is_active or look.live_mark(attempt.task.operation):
        return
    if not look.is_running:
        raise FailedError(f"the domain of {vm} on {machine.host} {look.sentence}, and is left alone")
    attempt.require_going_on()
    machine.mark(attempt.new_mark(machine, look, FREEZE), live=True)
    fresh.add(vm)


def _freeze(attempt: Attempt, vm: str, fresh: set[str]) -> Facts:
    """`fresh`: those that this call has marked and not paused yet. Of others, what has passed of the pause counts."""
    machine = attempt.source(vm)
    look = attempt.require(machine)
    if not look.is_active:
        return {"output": "it was shut off"}
    mark = look.live_mark(attempt.task.operation)
    if mark is None:
        raise FailedError(f"the domain of {vm} on {machine.host} was replaced by another")
    lasts = timedelta(seconds=max(0, attempt.task.duration))
    facts: dict[str, object] = {}
    begun, over = attempt.monotonic, mark.at + lasts
    if look.is_running and vm in fresh:
        machine.suspend()
        fresh.discard(vm)
        begun = attempt.monotonic
        attempt.sleep_until(begun + lasts.total_seconds())
        machine.resume()
        facts["paused_seconds"] = round(attempt.monotonic - begun, 3)
        over = attempt.now
    elif look.is_paused:
        attempt.sleep_until(begun + min(lasts, over - attempt.now).total_seconds())
        machine.resume()
        facts["paused_seconds"] = round((attempt.now - mark.at).total_seconds(), 3)
        over = attempt.now
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
