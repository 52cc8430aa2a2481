"""The reboot of a host: its VMs are ended in order, a program does the rest, and they are started in the same order."""

from dataclasses import replace

from forenotice.drivers.libvirt.attempts import END, START, Attempt, FailedError, Result, StoppedError
from forenotice.drivers.libvirt.connections import UnreachableError
from forenotice.drivers.libvirt.domains import Mark
from forenotice.programs import process

LOOK_EVERY = 1.0
"""Seconds, until the host answers again."""


def carry_out(attempt: Attempt) -> list[Result]:
    return _HostReboot(attempt).carry_out()


class _HostReboot:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._ended: dict[str, Mark] = {}
        """To be started again. A VM that was shut off before is not among them."""
        self._running: set[str] = set()
        self._started: dict[str, Mark] = {}
        self._rebooted: set[str] = set()
        """Those that an earlier call has started after the reboot."""

    def carry_out(self) -> list[Result]:
        """Nothing is ended unless all can be: no guest restarts for a reboot that another one prevents."""
        attempt, vms = self._attempt, self._attempt.task.vms
        results = self._by_vm(attempt.serve_each(vms, self._look))
        if all(result.is_done for result in results.values()):
            results |= {vm: attempt.serve(vm, self._begin_to_end) for vm in vms if vm in self._running}
            results |= self._by_vm(attempt.serve_each(list(self._ended), self._finish_to_end))
        if any(result.waiting is not None for result in results.values()):
            # What has ended is not done: somebody has to start it again.
            begun = [vm for vm in vms if results[vm].is_done]
            return list((results | {vm: attempt.result_of(vm, StoppedError()) for vm in begun}).values())
        failed = [result for result in results.values() if not result.is_done]
        why = self._reboot() if not failed else f"the host was not rebooted because of {failed[0].vm}"
        for vm in [vm for vm in vms if vm in self._ended]:
            results[vm] = attempt.serve(vm, lambda vm: self._start(vm, rebooted=why is None))
        if why is not None:
            unfinished = [vm for vm in vms if results[vm].is_done and vm not in self._rebooted]
            results |= {vm: attempt.result_of(vm, FailedError(why)) for vm in unfinished} | self._by_vm(failed)
        alive = [vm for vm in self._started if results[vm].is_done]
        return list((results | self._by_vm(attempt.serve_each(alive, self._await_life))).values())

    def _by_vm(self, results: list[Result]) -> dict[str, Result]:
        return {result.vm: result for result in results}

    def _look(self, vm: str) -> None:
        look = self._attempt.require(self._attempt.source(vm))
        mark = look.live_mark(self._attempt.task.operation)
        if mark is not None and mark.step == START:
            self._started[vm] = mark
            self._rebooted.add(vm)
        elif look.is_active:
            self._running.add(vm)
        elif kept := look.kept_mark(self._attempt.task.operation):
            self._ended[vm] = kept

    def _begin_to_end(self, vm: str) -> None:
        machine = self._attempt.source(vm)
        self._ended[vm] = self._attempt.begin_to_end(machine, self._attempt.require(machine))

    def _finish_to_end(self, vm: str) -> None:
        self._attempt.finish_to_end(self._attempt.source(vm), self._ended[vm])

    def _reboot(self) -> str | None:
        """Why it has failed."""
        attempt = self._attempt
        if not attempt.config.reboot or not any(mark.step == END for mark in self._ended.values()):
            return None
        try:
            ended = attempt.run(attempt.config.reboot)
        except process.ProgramError as error:
            return f"the host was not rebooted: {error.message}"
        if not ended.ok:
            return f"the host was not rebooted: {ended.message}"
        connection = attempt.source(attempt.task.vms[0]).connection
        while True:
            try:
                connection.ask(lambda link: link.getLibVersion())
                return None
            except UnreachableError as error:
                if attempt.is_overdue:
                    return f"the host has not come back: {error.message}"
                attempt.wait(LOOK_EVERY)

    def _start(self, vm: str, *, rebooted: bool) -> None:
        """If it was not rebooted, the mark says that it is still to be ended."""
        attempt = self._attempt
        machine, mark = attempt.source(vm), self._ended[vm]
        look = attempt.require(machine)
        if not look.is_active:
            self._started[vm] = attempt.start(machine, mark, step=START if rebooted else END)
        elif rebooted:
            # By the host itself, when it was up again.
            self._started[vm] = replace(mark, step=START, at=attempt.now)
            machine.mark(self._started[vm], live=True, kept=True)

    def _await_life(self, vm: str) -> None:
        machine = self._attempt.source(vm)
        self._attempt.await_life(machine, self._started[vm])
        self._attempt.settle(machine, self._started[vm])
