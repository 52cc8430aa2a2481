"""A handler lives through all situations, several at a time, each with an emulator and perhaps a network of its own."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

from forenotice.conformance.command import Child
from forenotice.conformance.handlers import evidence, situations, verdicts
from forenotice.conformance.handlers.evidence import ANSWERED, Evidence, HookFile, Life, Preparation, RequestLog
from forenotice.conformance.handlers.situations import Situation
from forenotice.conformance.report import Finding, Report
from forenotice.core import errors
from forenotice.core.operations import Event, Kind, Status
from forenotice.emulator.emulator import ANY_PORT, Emulator
from forenotice.emulator.simulation import Announcement
from forenotice.settings import Address
from forenotice.wire import versions

ENDPOINT = Address(host="169.254.169.254", port=80)
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""
ENOUGH = 2
"""A handler that has seen no document in so many situations, and none in any other, will see none in the rest."""
AWAKE_SECONDS = 1.0
"""A signal that comes just before the main thread falls asleep is noticed when it wakes: so often it does."""
LOOK = 0.05
CROWDED = 3.0
"""Seconds for which a handler that has not asked yet keeps others from being started."""
SETTLING = 3.0
"""Seconds to recover and to poll once more, beside those to notice in."""
LINGERING = 1.0
"""Seconds in which nothing more may happen, and more for those who poll more rarely."""
FORMER_EVENTS = 5
SPARE = 30.0
"""Seconds for a machine that is busy."""
PLACEHOLDER = "{dir}"
ENDED = {f"event.{status.lower()}" for status in Status if not status.live}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    argv: Sequence[str]
    me: str
    """The VM that it is on."""
    within: timedelta
    in_namespace: bool = False
    to_ask: float = 20.0
    """Seconds until its first poll must have been answered."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    starting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(os.cpu_count() or 1))
    """So many start at a time, lest they be slow only because of each other."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Somebody wants no more of this."""


def run(
    handler: Handler,
    situations: Sequence[Situation],
    options: verdicts.Options,
    *,
    jobs: int,
    progress: Callable[[str], None],
) -> Report:
    seen: dict[str, Evidence | str] = {}
    """A reason, where it was not played."""
    with_document, without = list[str](), list[str]()

    def play_next(situation: Situation) -> None:
        if not with_document and len(without) >= ENOUGH:
            seen[situation.name] = f"it saw no document in {' and '.join(without[:ENOUGH])}"
        else:
            seen[situation.name] = evidence = play(situation, handler)
            (with_document if verdicts.saw_document(evidence) else without).append(situation.name)
        progress(f"{len(seen)} of {len(situations)} situations: {situation.name} is over")

    # The longest first, so that none of them is left alone at the end.
    longest_first = sorted(situations, key=lambda situation: situation.longest, reverse=True)
    with ThreadPoolExecutor(jobs, thread_name_prefix="situation") as pool:
        try:
            futures = [pool.submit(play_next, situation) for situation in longest_first]
            done, others = wait(futures, AWAKE_SECONDS, FIRST_EXCEPTION)
            while others and not any(future.exception() for future in done):
                done, others = wait(futures, AWAKE_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            handler.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    played = [evidence for evidence in seen.values() if isinstance(evidence, Evidence)]
    measure = replace(options, habits=verdicts.habits(played))
    findings: list[Finding] = []
    for situation in situations:
        found = seen[situation.name]
        findings += (
            verdicts.skipped(situation.name, found) if isinstance(found, str) else verdicts.judge(found, measure)
        )
    order = [clause.id for clause in verdicts.ALL]
    findings.sort(key=lambda finding: order.index(finding.clause))
    return Report(subject=shlex.join(handler.argv), findings=findings)


def play(situation: Situation, handler: Handler) -> Evidence:
    if handler.in_namespace:
        enter_namespace()
    with tempfile.TemporaryDirectory(prefix="forenotice-conformance-") as folder:
        return Trial(situation, handler, Path(folder)).play(ENDPOINT if handler.in_namespace else ANY_PORT)


def enter_namespace() -> None:
    """For this thread, and for all threads and processes that it starts; the rest of this process stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise errors.RefusedError("--namespace needs Linux: leave it out, and let the handler read FORENOTICE_ENDPOINT")
    if libc.unshare(NEW_NETWORK):
        reason = os.strerror(ctypes.get_errno()).lower()
        raise errors.RefusedError(
            f"--namespace needs a network namespace, which is not permitted here ({reason}):"
            " run this as root, or with `unshare --map-root-user` before it"
        )
    if _ip("-o", "route"):
        raise errors.RefusedError("--namespace: the network that was made leads somewhere, and nothing is set up there")
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{ENDPOINT.host}/32", "dev", "lo")


def _ip(*arguments: str) -> str:
    program = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise errors.RefusedError("--namespace needs the program `ip`: install iproute2")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise errors.RefusedError(f"--namespace: `ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


class Trial:
    def __init__(self, situation: Situation, handler: Handler, folder: Path) -> None:
        self._situation = situation
        self._handler = handler
        self._folder = folder
        self._prepared = HookFile(folder / "prepared")
        self._recovered = HookFile(folder / "recovered")
        self._log = RequestLog(self._prepared)
        self._emulator = Emulator(as_vm=handler.me, speed=situation.speed, requests=self._log)
        self._recovered_early: set[str] = set()
        self._unapproved: list[Event] = []
        """Events that are only about others, who would have approved them by now."""
        self._child: Child | None = None

    def play(self, at: Address) -> Evidence:
        self._emulator.start(at)
        try:
            self._grow_older()
            with self._handler.starting:
                self._start()
            return self._evidence(goes_on=self._watch())
        finally:
            if self._child is not None:
                self._child.end()
            self._emulator.stop()

    def _start(self) -> None:
        if self._handler.stopping.is_set():
            raise errors.ConflictError("the run was ended: start another one")
        if self._situation.begins_first:
            self._emulator.play(self._situation.scenario)
        argv = [word.replace(PLACEHOLDER, str(self._folder)) for word in self._handler.argv]
        self._child = Child("--client", argv, self._environment())
        self._until(self._saw_document, CROWDED)

    def _grow_older(self) -> None:
        """No handler comes to a group in which nothing ever happened: there are numbers below the one it sees first."""
        simulation, other = self._emulator.simulation, situations.neighbour(self._handler.me)
        announcement = Announcement(kind=Kind.RESTART, resources=(other,))

        def happen(now: datetime) -> None:
            simulation.add_vm(other, now)
            for _ in range(FORMER_EVENTS):
                simulation.cancel(simulation.announce(announcement, now).id, now)

        self._emulator.change(happen)

    def _watch(self) -> bool:
        """Until all is over and settled; whether it polled after that."""
        if not self._until(self._saw_document, self._to_ask):
            return False
        if not self._situation.begins_first:
            self._emulator.play(self._situation.scenario)
        self._until(self._is_over, 2 * self._situation.longest.total_seconds() + SPARE)
        over = monotonic()
        self._until(lambda: self._has_polled_since(over) and self._has_recovered(), self._to_notice + SETTLING)
        self._until(lambda: False, LINGERING)
        # A handler that does something at every poll has done it again by the second.
        settled = monotonic()
        self._until(lambda: self._has_polled_since(settled, times=2), 2 * self._handler.within.total_seconds())
        # Only now: when all is over, a handler that waited for that is just about to poll again.
        return self._has_polled_since(over)

    # Looking

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it comes to hold while the handler runs."""
        deadline = monotonic() + seconds

        def looked() -> bool:
            self._look()
            return condition()

        while not self._emulator.wait_for(looked, LOOK):
            for event in self._unapproved:
                with suppress(errors.ConflictError):
                    self._emulator.approve(event.id, event.resources[0])
            gone = self._child is None or self._child.exit_code is not None or self._handler.stopping.is_set()
            if gone or monotonic() >= deadline:
                return False
        return True

    def _look(self) -> None:
        """While nothing changes."""
        live = self._emulator.simulation.live
        recovered = self._recovered.lines()
        self._recovered_early.update(event.id for event in live if evidence.about(recovered, event.id))
        # Not at once, lest a handler that would approve them find nothing to approve.
        patience = self._handler.within
        now = self._emulator.clock.now()
        self._unapproved = [
            event
            for event in live
            if self._handler.me not in event.resources
            and not event.approved
            and event.status is Status.SCHEDULED
            and now - event.created_at > patience
        ]

    def _saw_document(self) -> bool:
        return any(poll.status in ANSWERED for poll in self._log.polls)

    def _is_over(self) -> bool:
        player = self._emulator.player
        return player is not None and player.done and not self._emulator.simulation.live

    def _has_polled_since(self, moment: float, times: int = 1) -> bool:
        # A handler whose long poll is under way is polling.
        return self._emulator.waiting > 0 or sum(poll.monotonic > moment for poll in self._log.polls) >= times

    def _has_recovered(self) -> bool:
        prepared, recovered = self._prepared.lines(), self._recovered.lines()
        return all(
            evidence.about(recovered, life.id)
            for life in self._lives()
            if evidence.preparation(prepared, life.id) is Preparation.DONE and life.is_survived
        )

    @property
    def _to_notice(self) -> float:
        return self._situation.allowed(self._handler.within).total_seconds()

    @property
    def _to_ask(self) -> float:
        return self._handler.to_ask + self._to_notice

    # What is given, and what is found

    def _environment(self) -> dict[str, str]:
        given = self._handler.environment
        endpoint = f"http://{self._emulator.address}"
        if self._emulator.address.port == ENDPOINT.port:
            endpoint = f"http://{self._emulator.address.host}"
        direct = ",".join(filter(None, (given.get("NO_PROXY") or given.get("no_proxy"), self._emulator.address.host)))
        return {
            **given,
            "NO_PROXY": direct,
            "no_proxy": direct,
            "FORENOTICE_ENDPOINT": endpoint,
            "FORENOTICE_URL": f"{endpoint}/metadata/scheduledevents?api-version={versions.NEWEST.name}",
            "FORENOTICE_NAME": self._handler.me,
            "FORENOTICE_SITUATION": self._situation.name,
            "FORENOTICE_SITUATION_DIR": str(self._folder),
            "FORENOTICE_PREPARED": str(self._prepared.path),
            "FORENOTICE_RECOVERED": str(self._recovered.path),
            **({"FORENOTICE_FAIL": "1"} if self._situation.fails else {}),
        }

    def _lives(self) -> list[Life]:
        """So far."""
        if self._emulator.player is None:
            return []
        now, ahead = monotonic(), self._emulator.clock.now().timestamp() - monotonic()
        simulation = self._emulator.simulation
        moments: dict[str, dict[str, float]] = {}
        for entry in simulation.entries:
            if entry.event is not None:
                known = "event.ended" if entry.action in ENDED else entry.action
                moments.setdefault(entry.event, {}).setdefault(known, entry.at.timestamp() - ahead)
        return [
            Life(
                event=simulation.event(key),
                announced=at["event.scheduled"],
                scheduled_until=at.get("event.started", at.get("event.ended", now)),
                ended=at.get("event.ended", now),
            )
            for key, at in moments.items()
        ]

    def _evidence(self, *, goes_on: bool) -> Evidence:
        assert self._child is not None
        return Evidence(
            situation=self._situation,
            me=self._handler.me,
            lives=self._emulator.look(self._lives),
            requests=self._log.all,
            listened=self._to_ask,
            approvals=tuple(self._log.approvals_with_hooks),
            prepared=self._prepared.lines(),
            recovered=self._recovered.lines(),
            recovered_early=frozenset(self._recovered_early),
            goes_on=goes_on,
            exit_code=self._child.exit_code,
            output=self._child.output,
        )
