"""One try of a task: its time, its machines, and the steps that several kinds of operations have in common."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.fleet import SHUTDOWN_TIMEOUT
from forenotice.core.operations import Kind
from forenotice.drivers import command, file
from forenotice.drivers.libvirt import disks, machines
from forenotice.drivers.libvirt.connections import ANSWER_SECONDS, Call, Connections, HostError, UnreachableError
from forenotice.drivers.libvirt.domains import Mark
from forenotice.drivers.libvirt.machines import Look, Machine
from forenotice.drivers.surroundings import Surroundings
from forenotice.programs import process
from forenotice.runtime import Runtime

POLLED_RECENTLY = timedelta(minutes=1)
"""A VM that polled so shortly before is alive again when it polls again."""
LOOK_EVERY = 0.25
"""Seconds, while a domain is waited for: libvirt tells of changes, but not of polls."""
LONG_POLLS_EVERY = 1.0
"""Seconds between two ends of a guest's long polls: when it polled is known to the second."""
PATIENCE = 20.0
"""Seconds for a libvirtd that has gone to come back, within one try."""
END, START = "end", "start"
"""Steps of a mark: the domain is to end, and is then started."""
PAUSED = "the domain is paused"
ENDED = "the domain has ended and is about to be removed"
STOPPED = "the domain is shut off for this operation"
LEFT = "the domain has ended on its host and is about to run on another"
REBOOTED = "the host was rebooted and the domain is about to start"
UNFINISHED = (PAUSED, STOPPED, ENDED, LEFT, REBOOTED)
"""States in which no VM is left when a host does not answer: it waits until the host does."""

Facts = Mapping[str, object]
Work = Callable[[str], Facts | None]
"""What is done for a VM; gives what the journal is to have of it."""


class FailedError(errors.ForenoticeError):
    """It cannot be done to this VM."""


class WaitingError(errors.ForenoticeError):
    """Something outside has to happen first."""

    pause = timedelta(seconds=15)
    """Until the next look."""


class NotedError(WaitingError):
    """The service has to keep the message first: the next call gets it, and goes on at once."""

    pause = timedelta(0)


class StoppedError(errors.ForenoticeError):
    """The service ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a driver is made of."""

    config: file.Libvirt
    runtime: Runtime
    connections: Connections
    surroundings: Surroundings
    patience: float = PATIENCE
    stopping: threading.Event
    news: threading.Condition
    """Notified when something has changed on a host, or the service ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one VM."""

    vm: str
    record: Facts
    failure: str | None = None
    waiting: str | None = None
    """Why it is not done yet; empty: because the service ends."""
    pause: timedelta = timedelta(0)
    """If it is not done yet, until the next look."""

    @property
    def is_done(self) -> bool:
        return self.failure is None and self.waiting is None


class Attempt:
    def __init__(self, task: Task, parts: Parts) -> None:
        self.task = task
        self.config = parts.config
        self.surroundings = parts.surroundings
        self.unfinished = {
            vm: state for vm, why in task.waiting.items() for state in UNFINISHED if why.startswith(state)
        }
        """By VM, as far as calls before this one have said so, and in this one."""
        self._parts = parts
        self._deadline = parts.runtime.monotonic() + parts.config.time_limit.total_seconds()

    @property
    def left(self) -> float:
        """Seconds of the time limit. FailedError: none."""
        self.require_time()
        return self._deadline - self.monotonic

    @property
    def is_overdue(self) -> bool:
        return self.monotonic >= self._deadline

    def require_time(self) -> None:
        if self.is_overdue:
            raise FailedError(f"it was not done within {self.config.time_limit.total_seconds():g} s")

    @property
    def now(self) -> datetime:
        return self._parts.runtime.clock.now()

    @property
    def monotonic(self) -> float:
        return self._parts.runtime.monotonic()

    @property
    def patience(self) -> float:
        """Seconds for a host to answer again."""
        return self._parts.patience

    @property
    def is_stopping(self) -> bool:
        return self._parts.stopping.is_set()

    def source(self, vm: str) -> Machine:
        return self._machine(vm, self.task.host, self.task.address)

    def target(self, vm: str) -> Machine:
        return self._machine(vm, self.task.targets[vm], self.task.target_addresses.get(vm))

    def _machine(self, vm: str, host: str, address: str | None) -> Machine:
        if not address:
            raise FailedError(f"{host} has no address: forenotice host set {host} --address qemu+ssh://{host}/system")
        try:
            connection = self._parts.connections.to(address)
        except errors.RefusedError as error:
            raise FailedError(f"the address of {host}: {error.message}") from None
        return Machine(connection, host, vm, self.task.vm_ids.get(vm, ""), min(ANSWER_SECONDS, self.left))

    def wait(self, seconds: float = LOOK_EVERY) -> None:
        """Until something may have changed. StoppedError: the service ends."""
        self.pause(seconds)
        self.require_going_on()

    def require_going_on(self) -> None:
        """StoppedError: the service ends."""
        if self.is_stopping:
            raise StoppedError

    def pause(self, seconds: float) -> None:
        with self._parts.news:
            if not self.is_stopping:
                self._parts.news.wait(seconds)
                return
        # It is not woken again, and must not be busy.
        threading.Event().wait(min(seconds, LOOK_EVERY))

    def sleep_until(self, moment: float) -> None:
        """By the monotonic clock, or until the service ends."""
        self._parts.stopping.wait(max(0.0, moment - self.monotonic))

    def run(self, argv: Sequence[str]) -> process.Ended:
        """A program of the administrator's. ProgramError: it cannot be started. StoppedError: the service ends."""
        facts = command.facts(self.task)
        program = process.Program(
            argv=[command.filled(word, facts) for word in argv],
            environment=command.variables(facts),
            inherited=process.INHERITED,
        )
        seconds = self.config.time_limit.total_seconds()
        stop = self._parts.stopping
        ended = process.execute(program, self._parts.runtime, seconds=seconds, stop=stop, asked_by="the service")
        if ended.stopped and self.is_stopping:
            raise StoppedError
        # What it took is not the machines'.
        self._deadline = max(self._deadline, self.monotonic + seconds)
        return ended

    # Steps

    def require(self, machine: Machine) -> Look:
        look = machine.look()
        if look is None:
            raise FailedError(f"{machine.host} has no domain {machine.vm}, nor one with its id")
        return look

    def new_mark(self, machine: Machine, look: Look, step: str) -> Mark:
        last = self.surroundings.last_poll(machine.vm)
        return Mark(
            operation=self.task.operation,
            step=step,
            at=self.now,
            polled=last is not None and self.now - last <= POLLED_RECENTLY,
            transient=not look.persistent,
            autostart=look.autostart,
        )

    def begin_to_end(self, machine: Machine, look: Look) -> Mark:
        """Leave the mark, and ask the guest to shut down."""
        mark = look.kept_mark(self.task.operation)
        if mark is None:
            mark = self.new_mark(machine, look, END)
        elif look.live_mark(self.task.operation):
            # It was started since, and is to end once more.
            mark = replace(mark, step=END, at=self.now)
        if not look.persistent:
            machine.define(look.xml)
        machine.mark(mark, kept=True)
        if look.is_running and self._grace(machine.vm):
            machine.shut_down()
        return mark

    def finish_to_end(self, machine: Machine, mark: Mark) -> None:
        """Wait for the guest as long as the policy says, and power it off then."""
        left, until = self._deadline - self.monotonic, mark.at + self._grace(machine.vm)
        while (look := machine.look()) is not None and look.is_active:
            if self.now >= until or not (look.is_running or look.is_ending):
                self._power_off(machine)
                break
            self.wait()
        self.unfinished.setdefault(machine.vm, STOPPED)
        # Other guests may have taken their time meanwhile.
        self._deadline = max(self._deadline, self.monotonic + left)

    def end(self, machine: Machine, look: Look) -> Mark:
        mark = self.begin_to_end(machine, look)
        self.finish_to_end(machine, mark)
        return mark

    def start(self, machine: Machine, mark: Mark, step: str = START) -> Mark:
        if mark.disks:
            disks.make_new(machine.connection, mark.disks, self.left)
        # From here on its guest may have written to them.
        mark = replace(mark, step=step, at=self.now, disks=())
        machine.mark(mark, kept=True)
        try:
            machine.start(self.left)
        except HostError:
            # Unless its host, or somebody, has started it meanwhile.
            if not self.require(machine).is_active:
                raise
        return mark

    def await_life(self, machine: Machine, mark: Mark, since: datetime | None = None) -> None:
        """FailedError: the guest was not seen alive in time, counted from `since` on; None: from the mark on."""
        since = since or mark.at
        until = since + self.config.alive_limit
        again = self.monotonic
        while True:
            look = self.require(machine)
            last = self.surroundings.last_poll(machine.vm)
            if look.is_running and (not mark.polled or (last is not None and last > since)):
                return
            if look.is_dead or self.now >= until:
                silent = " but has not polled" if look.is_running else ""
                raise FailedError(f"{machine.vm} is not alive: its domain on {machine.host} {look.sentence}{silent}")
            if look.is_running and self.monotonic >= again:
                # One that was open before would keep it from polling for up to a minute.
                self.surroundings.end_long_polls(machine.vm)
                again = self.monotonic + LONG_POLLS_EVERY
            self.wait()

    def settle(self, machine: Machine, mark: Mark) -> None:
        """Leave it transient, or started with its host, as it was before."""
        if mark.transient:
            machine.undefine(machines.MOVED)
        elif mark.autostart:
            machine.set_autostart()

    def _grace(self, vm: str) -> timedelta:
        if self.task.kind is Kind.HARDWARE_FAILURE:
            return timedelta(0)
        return self.task.shutdown_timeouts.get(vm, SHUTDOWN_TIMEOUT)

    def _power_off(self, machine: Machine) -> None:
        try:
            machine.power_off(self.left)
        except HostError:
            # Unless it has ended by itself.
            if (look := machine.look()) is not None and look.is_active:
                raise

    # VMs

    def serve_each(self, vms: Sequence[str], work: Work, at_once: int | None = None) -> list[Result]:
        """At the same time."""
        turns = threading.Semaphore(at_once or max(1, len(vms)))

        def serve(vm: str) -> Result:
            with turns:
                return self.serve(vm, work)

        return [call.result() for call in [Call(self._parts.runtime, partial(serve, vm)) for vm in vms]]

    def serve(self, vm: str, work: Work) -> Result:
        """Do it; after a connection was lost, look again what has happened, as long as the patience lasts."""
        begun = self.monotonic
        lost: float | None = None
        while True:
            try:
                return Result(vm=vm, record=self._record(vm, begun, work(vm) or {}))
            except UnreachableError as error:
                lost = self.monotonic if lost is None else lost
                ends = self.is_stopping and self.task.kind is not Kind.HOST_UPDATE
                if ends or self.is_overdue or self.monotonic - lost >= self.patience:
                    return self.result_of(vm, StoppedError() if ends else error, begun)
                self.pause(LOOK_EVERY)
            except errors.ForenoticeError as error:
                return self.result_of(vm, error, begun)

    def result_of(self, vm: str, error: errors.ForenoticeError, begun: float | None = None) -> Result:
        match error:
            case StoppedError():
                return Result(vm=vm, record={}, waiting=self.task.waiting.get(vm, ""))
            case WaitingError():
                return Result(vm=vm, record={}, waiting=_reason(error), pause=error.pause)
            case UnreachableError() if vm in self.unfinished:
                hosts = " or ".join(filter(None, (self.task.host, self.task.targets.get(vm))))
                why = f"{self.unfinished[vm]}, but {hosts} does not answer"
                return Result(vm=vm, record={}, waiting=why, pause=WaitingError.pause)
        begun = self.monotonic if begun is None else begun
        return Result(vm=vm, record=self._record(vm, begun, {}), failure=_reason(error))

    def outcome(self, results: Sequence[Result]) -> Outcome:
        done = tuple(result.vm for result in results if result.failure is None and result.waiting is None)
        if waiting := [result for result in results if result.waiting is not None]:
            again_at = self.now + min(result.pause for result in waiting)
            return NotYet(
                again_at=again_at, done=done, waiting={each.vm: each.waiting for each in waiting if each.waiting}
            )
        failures = {result.vm: result.failure for result in results if result.failure is not None}
        return Finished(done=done, failures=failures, calls=tuple(result.record for result in results))

    def _record(self, vm: str, begun: float, facts: Facts) -> Facts:
        return {"vms": [vm], "seconds": round(self.monotonic - begun, 1), **facts}


def _reason(error: errors.ForenoticeError) -> str:
    return process.first_words(process.plain(error.message), command.LONGEST_REASON)
