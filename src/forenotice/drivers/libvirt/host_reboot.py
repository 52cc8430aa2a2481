"""The reboot of a host: its VMs are ended in order, a program does the rest, and they are started in the same order."""

import contextlib
from dataclasses import replace
from typing import Any

import libvirt

from forenotice.drivers.libvirt import domains
from forenotice.drivers.libvirt.attempts import (
    END,
    REBOOTED,
    START,
    Attempt,
    FailedError,
    NotedError,
    Result,
    StoppedError,
)
from forenotice.drivers.libvirt.domains import Mark
from forenotice.programs import process


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
            results |= self._by_vm(attempt.serve_each(self._ending, self._finish_to_end))
        if any(result.waiting is not None for result in results.values()):
            # What has ended is not done: somebody has to start it again.
            begun = [vm for vm in vms if results[vm].is_done]
            return list((results | {vm: attempt.result_of(vm, StoppedError()) for vm in begun}).values())
        failed = [result for result in results.values() if not result.is_done]
        try:
            why = self._reboot() if not failed else f"the host was not rebooted because of {failed[0].vm}"
        except NotedError as noted:
            return list((results | {vm: attempt.result_of(vm, noted) for vm in self._ended}).values())
        for vm in [vm for vm in vms if vm in self._ended]:
            results[vm] = attempt.serve(vm, lambda vm: self._start(vm, rebooted=why is None))
        if why is not None:
            unfinished = [vm for vm in vms if results[vm].is_done and vm not in self._rebooted]
            results |= {vm: attempt.result_of(vm, FailedError(why)) for vm in unfinished} | self._by_vm(failed)
        alive = [vm for vm in self._started if results[vm].is_done]
        return list((results | self._by_vm(attempt.serve_each(alive, self._await_life))).values())

    @property
    def _ending(self) -> list[str]:
        """Not those that the host may have started after the reboot."""
        return [vm for vm in self._ended if not self._is_rebooted(vm)]

    def _is_rebooted(self, vm: str) -> bool:
        return self._attempt.unfinished.get(vm) == REBOOTED

    def _by_vm(self, results: list[Result]) -> dict[str, Result]:
        return {result.vm: result for result in results}

    def _look(self, vm: str) -> None:
        look = self._attempt.require(self._attempt.source(vm))
        mark = look.live_mark(self._attempt.task.operation)
        if mark is not None and mark.step == START:
            self._started[vm] = mark
            self._rebooted.add(vm)
        elif look.is_active and not self._is_rebooted(vm):
            self._running.add(vm)
        elif kept := look.kept_mark(self._attempt.task.operation):
            self._ended[vm] = kept

    def _begin_to_end(self, vm: str) -> None:
        machine = self._attempt.source(vm)
        self._ended[vm] = self._attempt.begin_to_end(machine, self._attempt.require(machine))

    def _finish_to_end(self, vm: str) -> None:
        self._attempt.finish_to_end(self._attempt.source(vm), self._ended[vm])

    def _reboot(self) -> str | None:
        """Why it has failed. NotedError: the program has run. It may take the host long to come back, or the service
        may be stopped meanwhile: the call for which this is written down starts the VMs."""
        attempt = self._attempt
        if not attempt.config.reboot or not any(self._ended[vm].step == END for vm in self._ending):
            return None
        if attempt.source(attempt.task.vms[0]).connection.ask(self._has_started):
            return None
        try:
            ended = attempt.run(attempt.config.reboot)
        except process.ProgramError as error:
            return f"the host was not rebooted: {error.message}"
        if not ended.ok:
            return f"the host was not rebooted: {ended.message}"
        raise NotedError(REBOOTED)

    def _has_started(self, link: Any) -> bool:
        """Whether a VM runs, also one that is done, that an earlier call has started after the reboot."""
        for domain in link.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            # Another one may have ended, or not be readable.
            with contextlib.suppress(libvirt.libvirtError, domains.DefinitionError):
                mark = domains.parse(domain.XMLDesc()).mark
                if mark is not None and (mark.operation, mark.step) == (self._attempt.task.operation, START):
                    return True
        return False

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
        attempt.unfinished.pop(vm, None)

    def _await_life(self, vm: str) -> None:
        machine = self._attempt.source(vm)
        self._attempt.await_life(machine, self._started[vm])
        self._attempt.settle(machine, self._started[vm])
