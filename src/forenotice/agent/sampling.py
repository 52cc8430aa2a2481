"""Looks at all clocks around a Freeze, so that the pause can be measured afterwards."""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime

from forenotice.agent.posix import clocks
from forenotice.agent.rules import pausing
from forenotice.agent.rules.pausing import Lapse, Reading
from forenotice.agent.rules.saga import Pause

LOOK = 0.5
"""Seconds between two looks at the hardware clock, which costs more to read than the others."""
REMEMBERED = 64
"""Dates that are kept at all times, for what was before."""
MOST = 2048
"""Of each kind, kept while a Freeze is near: more than a quarter of an hour."""
JOIN = 1.0


class Sampler:
    """Costs nothing to speak of until `begin`."""

    def __init__(
        self, *, boot: Callable[[], float] = clocks.boot, hardware: Callable[[], int | None] = clocks.hardware
    ) -> None:
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
        noticed = pausing.measure(
            lapses=list(watch.lapses),
            dates=dates,
            hardware=list(watch.looks),
            since=-math.inf if since is None else since,
        )
        return noticed or (None if since is None else pausing.UNNOTICED)


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
            ended = self._ended.wait(pausing.TICK)
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
