"""Freezes of this VM: all clocks are sampled while one is near, and the pause is measured when it is over."""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from forenotice.agent.context import Context
from forenotice.agent.rules import pause as pauses
from forenotice.agent.rules.pause import Lapse, Reading
from forenotice.agent.rules.saga import Pause, Saga
from forenotice.runtime import Runtime, Started

NEAR = 30.0
"""Seconds before NotBefore at which sampling begins."""
HARDWARE_INTERVAL = 0.5
"""Seconds between two readings of the hardware clock, which costs more to read than the others."""
REMEMBERED, MOST = 64, 2048
"""Dates that are kept always, and while a Freeze is near: more than a quarter of an hour."""
JOIN = 1.0
HARDWARE = Path("/sys/class/rtc/rtc0/since_epoch")
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def hardware_clock(path: Path = HARDWARE) -> int | None:
    """In whole seconds; None where it cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


class Sampler:
    """Costs nothing to speak of until `begin`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        boot: Callable[[], float] | None = None,
        hardware: Callable[[], int | None] = hardware_clock,
    ) -> None:
        """`boot` is a monotonic clock that counts while the machine is suspended, where there is one."""
        self._monotonic, self._start_thread = runtime.monotonic, runtime.start_thread
        self._boot = boot or (runtime.monotonic if _BOOT is None else lambda: time.clock_gettime(_BOOT))
        self._hardware = hardware
        self._lock = threading.Lock()
        self._dates: deque[Reading] = deque(maxlen=REMEMBERED)
        self._ended: threading.Event | None = None
        """While it samples, ends the thread."""
        self._thread: Started | None = None
        self._since: float | None = None

    def dated(self, date: datetime, asked_at: float, answered_at: float) -> None:
        """The endpoint's Date, and the monotonic clock around it; of every poll."""
        with self._lock:
            self._dates.append(Reading(date.timestamp(), asked_at, answered_at))

    def begin(self) -> None:
        """A Freeze is near; calling it again changes nothing."""
        if self._ended is not None:
            return
        with self._lock:
            self._dates = deque(self._dates, MOST)
        self._lapses: deque[Lapse] = deque(maxlen=MOST)
        self._readings: deque[Reading] = deque(maxlen=MOST)
        self._last, self._read_at = (self._monotonic(), self._boot()), -math.inf
        self._ended, self._since, self._thread = threading.Event(), None, None
        with contextlib.suppress(RuntimeError):  # No more threads: the endpoint's Date may still show it.
            self._thread = self._start_thread(partial(self._run, self._ended), "sampler")

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(pauses.TICK):
            self.step()

    def step(self, *, last: bool = False) -> None:
        """Look at the clocks, as the thread does all the time."""
        (before, boot_before), (now, boot) = self._last, (self._monotonic(), self._boot())
        self._last = (now, boot)
        lapse = Lapse(now - before, boot - boot_before, now)
        if lapse.late:
            self._lapses.append(lapse)
        if last or now >= self._read_at:
            self._read_at = now + HARDWARE_INTERVAL
            after, seconds = self._monotonic(), self._hardware()
            if seconds is not None:
                self._readings.append(Reading(seconds, after, self._monotonic()))

    def not_yet(self, asked_at: float) -> None:
        """An endpoint that was polled at that moment has not started it: ticks that were late before do not count."""
        self._since = asked_at

    def end(self) -> Pause | None:
        """It is over, and the endpoint was polled since. None: it was not watched from its start."""
        ended, self._ended = self._ended, None
        if ended is None:
            return None
        ended.set()
        if self._thread:
            self._thread.join(JOIN)
            # It may end just after the pause: the time until then counts.
            self.step(last=True)
        with self._lock:
            dates, self._dates = self._dates, deque(maxlen=REMEMBERED)
        since, self._since = self._since, None
        noticed = pauses.measure(
            lapses=list(self._lapses),
            dates=dates,
            hardware=list(self._readings),
            since=-math.inf if since is None else since,
        )
        return noticed or (None if since is None else pauses.UNNOTICED)


def watch(live: Iterable[Saga], sampler: Sampler, asked_at: float | None) -> bool:
    """Whether a freeze is near. `asked_at` is when the endpoint was polled for the latest document."""
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


def measured(saga: Saga, sampler: Sampler, context: Context) -> Saga:
    if not _is_measurable(saga):
        return saga
    pause = sampler.end()
    if saga.started_at is None and not (pause and pause.seconds):
        return saga
    announced = saga.event.duration_seconds
    fields: dict[str, object] = {}
    if pause:
        expected = None if announced is None or announced < 0 else announced
        context.metrics.show("freeze_measured_seconds", pause.seconds)
        context.metrics.show("freeze_expected_seconds", expected)
        fields = {"seconds": round(pause.seconds, 3), "resolution": pause.resolution, "by": pause.by}
    fields |= {"event_id": saga.id, "announced_seconds": announced}
    context.log.info("A freeze is over", action="freeze.measured", **fields)
    return replace(saga, pause=pause)


def _is_measurable(saga: Saga) -> bool:
    """Not that of another VM: this machine's clocks do not show it."""
    return saga.event.type == "Freeze" and saga.is_here and not saga.state.returning
