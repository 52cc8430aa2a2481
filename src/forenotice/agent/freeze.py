"""Looks at all clocks around a Freeze, so that the pause can be measured afterwards."""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.rules import pause
from forenotice.agent.rules.pause import Lapse, Reading
from forenotice.agent.rules.saga import Pause, Saga

LOOK = 0.5
"""Seconds between two looks at the hardware clock, which costs more to read than the others."""
REMEMBERED = 64
"""Dates that are kept at all times, for what was before."""
MOST = 2048
"""Of each kind, kept while a Freeze is near: more than a quarter of an hour."""
JOIN = 1.0


HARDWARE = Path("/sys/class/rtc/rtc0/since_epoch")


_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def boot() -> float:
    """Monotonic, and counts while the machine is suspended, where there is a clock that does."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


def hardware(path: Path = HARDWARE) -> int | None:
    """In whole seconds since whenever; None where it cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


class Sampler:
    """Costs nothing to speak of until `begin`."""

    def __init__(self, *, boot: Callable[[], float] = boot, hardware: Callable[[], int | None] = hardware) -> None:
        self._boot = boot
        self._hardware = hardware
        self._lock = threading.Lock()
        self._dates: deque[Reading] = deque(maxlen=REMEMBERED)
        self._watch: _Watch | None = None
        self._since: float | None = None

    def dated(self, date: datetime, asked_at: float, answered_at: float) -> None:
        """The endpoint's Date, and the monotonic clock around it; of every poll."""
        with self._lock:
            self._dates.append(Reading(date.timestamp(), asked_at, answered_at))

    def begin(self) -> None:
        """A Freeze is near; again while one is changes nothing."""
        with self._lock:
            if self._watch is None:
                self._dates = deque(self._dates, MOST)
                self._watch = _Watch(self._boot, self._hardware)
                self._since = None

    def not_yet(self, asked_at: float) -> None:
        """An endpoint that was asked at that moment has not started it: no tick that was late before is of interest."""
        self._since = asked_at

    def end(self) -> Pause | None:
        """It is over, and the endpoint was polled since. None: it was not watched from its start."""
        with self._lock:
            watch, self._watch = self._watch, None
            if watch is None:
                return None
            dates, self._dates = self._dates, deque(maxlen=REMEMBERED)
            since, self._since = self._since, None
        watch.end()
        noticed = pause.measure(
            lapses=list(watch.lapses),
            dates=dates,
            hardware=list(watch.looks),
            since=-math.inf if since is None else since,
        )
        return noticed or (None if since is None else pause.UNNOTICED)


class _Watch:
    """A thread that looks at the own clocks all the time."""

    def __init__(self, boot: Callable[[], float], hardware: Callable[[], int | None]) -> None:
        self.lapses: deque[Lapse] = deque(maxlen=MOST)
        """The late ones."""
        self.looks: deque[Reading] = deque(maxlen=MOST)
        self._boot = boot
        self._hardware = hardware
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        with contextlib.suppress(RuntimeError):  # No more threads: the endpoint's Date may still show it.
            self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN)

    def _run(self) -> None:
        monotonic, boot = time.monotonic(), self._boot()
        look_at = monotonic
        ended = False
        while not ended:
            # The pause may be what it is ended after: what passed meanwhile counts.
            ended = self._ended.wait(pause.TICK)
            before, boot_before = monotonic, boot
            monotonic, boot = time.monotonic(), self._boot()
            lapse = Lapse(monotonic - before, boot - boot_before, monotonic)
            if lapse.late:
                self.lapses.append(lapse)
            if ended or monotonic >= look_at:
                look_at = monotonic + LOOK
                self._look()

    def _look(self) -> None:
        after = time.monotonic()
        seconds = self._hardware()
        if seconds is not None:
            self.looks.append(Reading(seconds, after, time.monotonic()))


NEAR = 30.0
"""Seconds before NotBefore from which on a pause is watched for."""


def watch(live: Iterable[Saga], sampler: Sampler, asked_at: float | None) -> bool:
    """Whether a freeze is near. `asked_at` is when the endpoint was asked for the latest document."""
    near = [
        saga
        for saga in live
        if _is_measurable(saga) and (saga.event.started or saga.approving_at or saga.event.seconds_left < NEAR)
    ]
    if not near:
        sampler.end()
        return False
    sampler.begin()
    if asked_at is not None and not any(saga.event.started or saga.started_at for saga in near):
        sampler.not_yet(asked_at)
    return True


def measured(saga: Saga, sampler: Sampler, log: Log, metrics: Metrics) -> Saga:
    """With the pause that really was, now that the event is gone."""
    if not _is_measurable(saga):
        return saga
    pause = sampler.end()
    if saga.started_at is None and not (pause and pause.seconds):
        return saga
    announced = saga.event.duration_seconds
    told: dict[str, object] = {}
    if pause:
        metrics.froze(pause.seconds, None if announced is None or announced < 0 else announced)
        told = {"seconds": round(pause.seconds, 3), "resolution": pause.resolution, "by": pause.by}
    log.info("A freeze is over", action="freeze.measured", event_id=saga.id, announced_seconds=announced, **told)
    return replace(saga, pause=pause)


def _is_measurable(saga: Saga) -> bool:
    """Not that of another VM: this machine's clocks know nothing of it."""
    return saga.event.type == "Freeze" and saga.is_here and not saga.state.returning
