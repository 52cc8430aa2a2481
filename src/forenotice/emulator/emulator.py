"""The emulator as a whole: the endpoint, a simulation behind it, its scenario, its faults, and its clock."""

import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar, Unpack

from forenotice.clock import Clock, SystemClock
from forenotice.core import errors
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Event
from forenotice.core.timing import Timing, whole_second_up
from forenotice.emulator.active_faults import ActiveFault, Faults, first
from forenotice.emulator.endpoint import Endpoint, PollPreview
from forenotice.emulator.faults import FaultOptions, shortened
from forenotice.emulator.player import Player
from forenotice.emulator.request_log import RequestLog
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.simulation import Announcement, Simulation
from forenotice.runtime import Runtime, Started
from forenotice.settings import Address
from forenotice.wire.versions import Version


class EmulatedClock:
    """A `forenotice.clock.Clock` that can be moved on, and paused."""

    def __init__(self, *, virtual: bool = False, start: datetime | None = None, system: Clock | None = None) -> None:
        """`start` is where a virtual one stands at first."""
        self.virtual = virtual
        """It never goes by itself."""
        self._system = system or SystemClock()
        self._lock = threading.Lock()
        self._ahead = timedelta(0)
        # Whole, so that what a test reckons from it is what documents say.
        self._stands_at = (start or self._system.now()).replace(microsecond=0) if virtual else None

    def now(self) -> datetime:
        with self._lock:
            return self._now()

    def not_below(self, moment: datetime) -> None:
        """Move on to a moment; never back."""
        with self._lock:
            if self._stands_at is not None:
                self._stands_at = max(self._stands_at, moment)
            else:
                self._ahead = max(self._ahead, moment - self._system.now())

    def outside(self) -> datetime:
        return self.now()

    def catch_up(self) -> None:
        """Move on to the machine's time if it is behind; one that never goes by itself has no part in that."""
        with self._lock:
            if self.virtual:
                return
            if self._stands_at is not None:
                self._stands_at = max(self._stands_at, self._system.now())
            else:
                self._ahead = max(self._ahead, timedelta(0))

    @property
    def stands(self) -> bool:
        """Whether only those who move it on do so."""
        return self._stands_at is not None

    @property
    def ahead(self) -> timedelta:
        """Of the machine's; negative: behind, as one that was paused."""
        with self._lock:
            return self._ahead if self._stands_at is None else self._stands_at - self._system.now()

    def pause(self) -> None:
        with self._lock:
            self._stands_at = self._now()

    def resume(self) -> None:
        with self._lock:
            if self._stands_at is not None and not self.virtual:
                self._ahead = self._stands_at - self._system.now()
                self._stands_at = None

    def _now(self) -> datetime:
        return self._system.now() + self._ahead if self._stands_at is None else self._stands_at


T = TypeVar("T")

SLICE = 100
"""Moments of a scenario that are played before others have their turn."""
MOST_SLICES = 1_000
ANY_PORT = Address(host="127.0.0.1", port=0)


class Emulator:
    """May be used from any thread. Whatever a method has done, the next request of a guest sees."""

    def __init__(
        self,
        *,
        as_vm: str,
        virtual: bool = False,
        start: datetime | None = None,
        speed: float = 1,
        requests: RequestLog | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.runtime = runtime or Runtime()
        self.as_vm = as_vm
        self.clock = EmulatedClock(virtual=virtual, start=start, system=self.runtime.clock)
        self.timing = Timing(speed=speed)
        self.faults = Faults(self.clock, speed=speed)
        self.requests = RequestLog(runtime=self.runtime) if requests is None else requests
        self.player: Player | None = None
        self.address = ANY_PORT
        self._endpoint = Endpoint(
            clock=self.clock,
            timing=self.timing,
            faults=self.faults,
            requests=self.requests,
            as_vm=as_vm,
            runtime=self.runtime,
        )
        self._changed = threading.Condition(threading.RLock())
        """Guards everything here; notified when something may look different."""
        self._advancing = threading.RLock()
        """Held while a thread moves the clock; another one moves it on from there."""
        self._closing = False
        self._thread: Started | None = None
        self.simulation = Simulation(
            now=self.clock.now(),
            timing=self.timing,
            publisher=self._endpoint.publisher,
            new_id=self.runtime.new_id,
        )
        self.simulation.add_vm(as_vm, self.clock.now())

    def start(self, at: Address = ANY_PORT, names: Collection[str] = ()) -> Address:
        self.address = self._endpoint.start(Guests(self), at, names)
        if not self.clock.virtual:
            self._thread = self.runtime.start_thread(self._pass_time, "emulator")
        return self.address

    def stop(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._endpoint.stop()

    def open(self, vm: str) -> Address:
        """Another port, at which every caller is this VM."""
        if vm not in {known.name for known in self.simulation.vms}:
            self.change(lambda now: self.simulation.add_vm(vm, now))
        return self._endpoint.open(vm, self.address.host)

    # What people do

    def play(self, scenario: Scenario) -> Player:
        """Start afresh with a scenario, which names the VM that callers are. A clock that is behind catches up."""
        with self._changed:
            now = self._start_afresh({vm.name: vm.update_domain for vm in scenario.vms}, scenario)
            self.player = player = Player(scenario, self.simulation, self.faults, self.timing, now)
            self._run(now)
            self._show_simulation(scenario.caller)
        self._endpoint.refresh()
        return player

    def announce(self, announcement: Announcement) -> Event:
        return self.change(lambda now: self.simulation.announce(announcement, now))

    def approve(self, event_id: str, by: str) -> None:
        """As an operator would."""
        self.change(lambda now: self.simulation.approve(event_id, by, now))

    def cancel(self, event_id: str) -> None:
        self.change(lambda now: self.simulation.cancel(event_id, now))

    def advance(self, span: timedelta) -> datetime:
        """Move the clock on, with all that happens meanwhile; gives the time that it is then."""
        if span < timedelta(0):
            raise errors.RefusedError("time goes forward only: give a duration such as 15m")
        with self._advancing:
            try:
                moment = self.clock.now() + self.timing.shortened(span)
            except OverflowError:
                raise errors.RefusedError("that is beyond the calendar: advance less") from None
            if not self.clock.virtual:
                moment = self._made_whole(moment)
            return self.advance_to(moment)

    def advance_to(self, moment: datetime) -> datetime:
        """Little by little, so that guests are answered meanwhile, and it can be ended."""
        with self._advancing:
            for _ in range(MOST_SLICES):
                with self._changed:
                    if self._closing:
                        raise errors.ConflictError("the emulator is ending: start another one")
                    now = self._run(moment, SLICE)
                    self.clock.not_below(now)
                if now >= moment:
                    break
            self._endpoint.refresh()
        if now < moment:
            most = SLICE * MOST_SLICES
            raise errors.RefusedError(
                f"more than {most} things happen until then: it is {now:%Y-%m-%d %H:%M:%S} now; advance less"
            )
        return now

    def step(self) -> datetime:
        """Move the clock on to the next thing that happens by itself, the end of a fault included."""
        with self._advancing:
            with self._changed:
                due = self.due
            if due is None:
                raise errors.ConflictError("nothing happens by itself now: play a scenario, or announce an event")
            return self.advance_to(max(due, self.clock.now()))

    def pause(self) -> None:
        self.change(lambda _: self.clock.pause())

    def resume(self) -> None:
        self.change(lambda _: self.clock.resume())

    def _made_whole(self, moment: datetime) -> datetime:
        """NotBefore is a whole second: after a notice of 15 minutes, 15 minutes are enough."""
        with self._changed:
            due = self.simulation.due
        return due if due is not None and moment < due <= whole_second_up(moment) else moment

    def switch_on(self, name: str, **options: Unpack[FaultOptions]) -> ActiveFault:
        """A fault. Durations are as people write them, before speed divides them."""
        short = shortened(options, self.timing)
        return self.change(lambda now: self.faults.switch_on(name, now=now, **short))

    def switch_off(self, name: str | None = None) -> None:
        self.change(lambda _: self.faults.switch_off(name))

    def reset(self) -> None:
        """No events, no scenario, no faults, no requests; the VMs stay. A clock that is behind catches up."""
        with self._changed:
            self.player = None
            self._start_afresh({vm.name: vm.update_domain for vm in self.simulation.vms})
            self._show_simulation(self.as_vm)
            self.requests.clear()
            self._changed.notify_all()
        self._endpoint.refresh()

    def preview_poll(self, vm: str, version: Version) -> PollPreview:
        """The response that a poll of this VM would get now, without counting it."""
        self.change(lambda _: None)
        return self._endpoint.preview_poll(vm, version)

    @property
    def waiting(self) -> int:
        """Guests whose request is held until the document changes."""
        return self._endpoint.counters.waiting

    def polls_under_way(self) -> list[tuple[str, float]]:
        """Of guests whose poll is held, by faults too: who, and since when by the monotonic clock."""
        return self._endpoint.polls_under_way()

    def look(self, question: Callable[[], T]) -> T:
        """While nothing changes."""
        with self._changed:
            return question()

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Whether it comes to hold within so many seconds of real time."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def change(self, work: Callable[[datetime], T]) -> T:
        """Do it now, with all that follows from it at once."""
        if self._closing:
            raise errors.RefusedError("the emulator has ended: start another one")
        done = self.change_for_guest(work)
        self._endpoint.refresh()
        return done

    def change_for_guest(self, work: Callable[[datetime], T]) -> T:
        """The same while a guest waits for its answer: it is shown before that is sent."""
        with self._changed:
            now = self.clock.now()
            self._run(now)
            done = work(now)
            self._run(now)
            return done

    # Time

    def _pass_time(self) -> None:
        with self._changed:
            while not self._closing:
                now = self.clock.now()
                self._run(now)
                due = None if self.clock.stands else self._scripted
                self._changed.wait(None if due is None else max(0.0, (due - now).total_seconds()))

    def _run(self, until: datetime, most: int | None = None) -> datetime:
        """Everything that is due, each thing at its own moment, or so many things; gives the time that it is then."""
        player, simulation = self.player, self.simulation
        now = until
        if player is not None:
            for step in itertools.count():
                due = self._scripted
                if due is None or due > until:
                    break
                if step == most:
                    now = due
                    break
                simulation.tick(due)
                player.play(due)
        simulation.tick(now)
        if player is not None:
            player.play(now)
        self.faults.expire(now)
        self._changed.notify_all()
        return now

    @property
    def due(self) -> datetime | None:
        """When the next thing happens by itself, the end of a fault included."""
        return first(self._scripted, self.faults.due)

    @property
    def _scripted(self) -> datetime | None:
        return first(self.simulation.due, None if self.player is None else self.player.due)

    def _start_afresh(self, vms: Mapping[str, int], scenario: Scenario | None = None) -> datetime:
        """With another simulation, which guests do not see until it is shown."""
        # A clock that is behind catches up: a NotBefore could be past already by the clocks of guests.
        self.clock.catch_up()
        now = self.clock.now()
        self.faults.switch_off()
        self.simulation = Simulation(
            now=now,
            timing=self.timing,
            kind=scenario.group if scenario else ScopeKind.AVAILABILITY_SET,
            listens=scenario.listening if scenario else Listening.ALWAYS,
            after=self.simulation,
            new_id=self.runtime.new_id,
        )
        for name, domain in vms.items():
            self.simulation.add_vm(name, now, update_domain=domain)
        return now

    def _show_simulation(self, caller: str) -> None:
        """All at once: who callers are, the VMs and their document."""
        self.as_vm = caller
        self.simulation.publisher = self._endpoint.publisher
        self._endpoint.show(self.simulation.publication(), caller)


class Guests:
    """What guests cause, for `metadata.upstream`."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def approve(self, approvals: Sequence[StartRequests]) -> list[errors.ForenoticeError | None]:
        emulator = self._emulator
        return emulator.change_for_guest(lambda now: emulator.simulation.approve_as_guests(approvals, now))

    def heard(self, heard: Mapping[str, datetime]) -> None:
        emulator = self._emulator
        emulator.change_for_guest(lambda now: emulator.simulation.record_poll(max(heard.values()), now))
