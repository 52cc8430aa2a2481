"""A driver that runs a program for each VM, or for each operation."""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime

from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers import file
from forenotice.programs import process
from forenotice.runtime import Runtime

LONGEST_REASON = 300
"""Characters of a failed command's output that are its reason; the journal has more."""


class CommandDriver:
    def __init__(self, config: file.Command, runtime: Runtime, *, grace: float = process.GRACE) -> None:
        self._config = config
        self._runtime = runtime
        self._stopping = threading.Event()
        self._grace = grace
        for kind in Kind:
            require_program(f"the action for {kind}", config.actions.of(kind).run)

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        begun = self._runtime.monotonic()
        try:
            ended = process.execute(
                self._program(task),
                self._runtime,
                seconds=self._config.time_limit.total_seconds(),
                stop=self._stopping,
                asked_by="the service",
                grace=self._grace,
            )
        except errors.RefusedError as error:
            return Finished(failures=dict.fromkeys(task.vms, error.message))
        if ended.stopped and self._stopping.is_set():
            return NotYet(again_at=now)
        call = {
            "vms": list(task.vms),
            "exit_code": ended.code,
            "seconds": round(self._runtime.monotonic() - begun, 1),
            "output": ended.output,
        }
        if ended.ok:
            return Finished(done=task.vms, failures={}, calls=(call,))
        last_words = f": {process.last_words(ended.output, LONGEST_REASON)}" if ended.output else ""
        return Finished(failures=dict.fromkeys(task.vms, ended.how + last_words), calls=(call,))

    def stop(self) -> None:
        self._stopping.set()

    def _program(self, task: Task) -> process.Program:
        action = self._config.actions.of(task.kind)
        known = facts(task) if action.each == "host" else facts(task) | _facts_of_vm(task, task.vms[0])
        return process.Program(
            argv=[filled(word, known) for word in action.run],
            environment=variables(known),
            inherited=(*process.INHERITED, *self._config.passed),
        )


def require_program(purpose: str, argv: Sequence[str]) -> None:
    """It is better missed at the start than when a host is waiting for it."""
    if not any(file.placeholders(argv[0])):
        try:
            process.locate(process.Program(argv=[argv[0].format()], inherited=process.INHERITED))
        except process.ProgramError as error:
            raise file.DriverFileError(f"{purpose}: {error.message}") from None


def facts(task: Task) -> dict[str, str]:
    """What every program is told."""
    return {
        "operation": task.operation,
        "kind": task.kind.value,
        "host": task.host,
        "host_address": task.address or "",
        "attempt": str(task.attempt),
        "duration": str(task.duration),
        "vms": " ".join(task.vms),
        "targets": " ".join(f"{name}={task.targets[name]}" for name in task.vms if name in task.targets),
        "events": " ".join(dict.fromkeys(task.events[name] for name in task.vms if name in task.events)),
    }


def _facts_of_vm(task: Task, vm: str) -> dict[str, str]:
    return {
        "vm": vm,
        "vm_id": task.vm_ids.get(vm, ""),
        "target": task.targets.get(vm, ""),
        "target_address": task.target_addresses.get(vm) or "",
        "event": task.events.get(vm, ""),
        "shutdown_timeout": str(task.shutdown_seconds(vm)),
    }


def variables(known: Mapping[str, str]) -> dict[str, str]:
    return {f"FORENOTICE_{name.upper()}": value for name, value in known.items()}


def filled(word: str, known: Mapping[str, str]) -> str:
    text = word.format_map(known)
    if text.startswith("-") and not word.startswith("-"):
        raise errors.RefusedError(f"{text} begins with '-': a program would take it for an option")
    return text
