"""How long real guests are paused: frozen, frozen together, and moved alive. A lab has them, on all cores."""

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import libvirt
import msgspec

from bench import machine, report
from bench.effort import Effort
from forenotice import logs
from forenotice.lab import guests
from forenotice.lab.lab import Lab, Plan
from forenotice.settings import LogFormat, LogLevel

FREEZE_SECONDS = 2.0
OFF_SECONDS = 0.2
TOGETHER_SECONDS = 0.5
MIGRATION_SECONDS = 1.0
MEMORY = 256
"""MiB of the guest that is moved."""
SPEED = 5
"""Of notices, 3 minutes: guests approve long before."""
PATIENCE = 300.0
REPORTS = 5
"""Before a pause, and after it, by which a guest's clock is compared with ours."""
LOOK = 0.002


def measure(effort: Effort) -> list[report.Row]:
    logs.configure(LogLevel.ERROR, LogFormat.CONSOLE)
    with machine.all_cores():
        return [*_one(effort), *_together(effort)]


@dataclass(frozen=True, slots=True)
class Pause:
    """Of one guest, between two events of libvirt."""

    begun: float
    ended: float
    seen: float
    """Seconds that the guest's own clock has lost."""

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def _one(effort: Effort) -> Iterator[report.Row]:
    with _lab(Plan(memory=MEMORY)) as watched:
        freezes = [pause for _ in range(effort.pauses) for pause in watched.freeze("host-a")]
        moves = [watched.move(watched.lab.plan.hosts[number % 2]) for number in range(effort.pauses)]
    yield _off(f"Freeze of {FREEZE_SECONDS:g} s, how far it is off by libvirt's events", [p.seconds for p in freezes])
    yield _off(f"Freeze of {FREEZE_SECONDS:g} s, how far it is off by the guest's clock", [p.seen for p in freezes])
    yield report.within(
        f"Live migration of an idle guest of {MEMORY} MiB, its longest pause by the journal",
        max(paused for paused, _ in moves),
        MIGRATION_SECONDS,
        "{:.2f} s",
        reference=f"{max(seen for _, seen in moves):.2f} s by the guest's clock; of {len(moves)}",
    )


def _together(effort: Effort) -> Iterator[report.Row]:
    names = tuple(f"vm-{number}" for number in range(effort.frozen_guests))
    with _lab(Plan(hosts=("host-a",), vms=names)) as watched:
        freezes = [watched.freeze("host-a") for _ in range(effort.pauses)]
    spread = [_spread([pause.begun for pause in freeze]) for freeze in freezes]
    resumed = [_spread([pause.ended for pause in freeze]) for freeze in freezes]
    what = f"{len(names)} guests of a host frozen together"
    yield report.within(
        f"{what}, from the first to the last",
        max(spread),
        TOGETHER_SECONDS,
        "{:.3f} s",
        reference=f"resumed within {max(resumed):.3f} s; of {len(freezes)} freezes",
    )
    yield _off(f"{what}, how far each is off by libvirt's events", [p.seconds for freeze in freezes for p in freeze])


def _off(what: str, pauses: Sequence[float]) -> report.Row:
    return report.within(
        what,
        max(abs(pause - FREEZE_SECONDS) for pause in pauses),
        OFF_SECONDS,
        "{:.3f} s",
        reference=f"{min(pauses):.3f} to {max(pauses):.3f} s, {len(pauses)} pauses",
    )


def _spread(times: Sequence[float]) -> float:
    return max(times) - min(times)


@dataclass
class Watched:
    """A lab, what libvirt tells of it, and when its guests report."""

    lab: Lab
    events: list[tuple[float, str, int]] = field(default_factory=list)
    """When, of which VM, which."""
    ahead: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By VM: when it reported, and how far our clock was ahead of its own then."""

    def freeze(self, host: str) -> list[Pause]:
        self._await_reports()
        self.events.clear()
        self._run("host", "update", host, "--duration", f"{FREEZE_SECONDS:g}s")
        begun, ended = (
            self._times(kind) for kind in (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_RESUMED)
        )
        self._await_reports()
        return [Pause(begun[vm], ended[vm], self._lost(vm, begun[vm], ended[vm])) for vm in self.lab.plan.vms]

    def move(self, source: str) -> tuple[float, float]:
        """The pause, as the journal has it, and as the guest's clock shows it."""
        (vm,) = self.lab.plan.vms
        self._await_reports()
        begun = time.monotonic()
        operation = self._run("host", "migrate", source)
        self._await_reports()
        told = self.lab.service.run("history", "--json", "--action", "driver.finished", "--operation", operation)
        (call,) = json.loads(told.stdout)[-1]["data"]["calls"]
        return call["paused_seconds"], self._lost(vm, begun, begun)

    def _run(self, *command: str) -> str:
        """The id of the operation, which has ended."""
        done = self.lab.service.run(*command, "--wait", "--json", seconds=PATIENCE)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} has failed: {done.stderr}")
        operation: str = json.loads(done.stdout)["operations"][0]["id"]
        return operation

    def _times(self, kind: int) -> dict[str, float]:
        return {vm: at for at, vm, event in self.events if event == kind}

    def _await_reports(self) -> None:
        """From every guest, as many as are needed."""
        now = time.monotonic()
        for vm in self.lab.plan.vms:
            while sum(at > now for at, _ in self.ahead[vm]) < REPORTS:
                if time.monotonic() > now + PATIENCE:
                    raise RuntimeError(f"{vm} does not report: {self.lab.guests[vm].last_words}")
                time.sleep(LOOK)

    def _lost(self, vm: str, begun: float, ended: float) -> float:
        """Of a few reports the soonest is taken: each comes a little late."""
        before = [ahead for at, ahead in self.ahead[vm] if at < begun][-REPORTS:]
        after = [ahead for at, ahead in self.ahead[vm] if at > ended][-REPORTS:]
        return min(after) - min(before)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """By connections of our own. The lab's have started libvirt's loop of events."""
        links = [libvirt.open(host.uri) for host in self.lab.hosts.values()]
        try:
            for link in links:
                link.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._told, None)
            yield
        finally:
            for link in links:
                link.close()

    def _told(self, _link: Any, domain: Any, event: int, *_: object) -> None:
        self.events.append((time.monotonic(), domain.name(), event))

    def read(self, done: threading.Event) -> None:
        """What guests write to their consoles, as soon as they do."""
        consoles = {vm: (guest.console.open("rb"), b"") for vm, guest in self.lab.guests.items()}
        for file, _ in consoles.values():
            file.seek(0, os.SEEK_END)
        while not done.wait(LOOK):
            for vm, (file, rest) in consoles.items():
                *lines, rest = (rest + file.read()).split(b"\n")
                now = time.monotonic()
                consoles[vm] = (file, rest)
                self.ahead[vm] += [(now, now - said.uptime) for said in map(guests.read, lines) if said]
        for file, _ in consoles.values():
            file.close()


@contextmanager
def _lab(plan: Plan) -> Iterator[Watched]:
    whole = msgspec.structs.replace(plan, prepare=0, speed=SPEED)
    done = threading.Event()
    with (
        TemporaryDirectory(prefix="forenotice-bench-") as directory,
        Lab.up(Path(directory) / "lab", whole, bound=True) as lab,
    ):
        watched = Watched(lab, ahead={vm: [] for vm in plan.vms})
        reader = threading.Thread(target=watched.read, args=(done,))
        reader.start()
        try:
            with watched.listening():
                yield watched
        finally:
            done.set()
            reader.join()
