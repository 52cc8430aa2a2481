"""The one place that reads the machine's clock."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

TOLERANCE = timedelta(seconds=1)
"""The system clock may drift this far from the monotonic one before it counts as set."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNKNOWN = "unknown"


class Clock(Protocol):
    def now(self) -> datetime:
        """In UTC; never goes back."""

    def not_below(self, moment: datetime) -> None:
        """Time that is already in the journal counts as passed."""

    def outside(self) -> datetime:
        """The time by the system's clock, for signatures that others check; may go back."""


class CheckedClock(Clock, Protocol):
    """A clock that also knows when its source jumped or fell behind."""

    @property
    def jumped(self) -> timedelta:
        """How far it has jumped ahead so far: time that has not really passed."""

    @property
    def behind(self) -> timedelta:
        """How far its source is behind `now`."""

    def correct(self, moment: datetime) -> None:
        """Follow the clock that all servers share, which says this now."""

    def mark(self) -> str:
        """A record of both clocks for `go_on_from` of a later process."""

    def go_on_from(self, mark: str) -> None:
        """Continue from another process's mark, so that a jump since then is noticed; ignored after a reboot."""


def _wall() -> datetime:
    return datetime.now(UTC)


class SystemClock:
    """Follows the system's clock and compares it with the monotonic clock.

    If the system's clock is ahead, somebody set it or the machine slept: that is a jump. If it is behind, time
    continues at the monotonic clock's pace until the system's clock has caught up.
    """

    def __init__(
        self, *, wall: Callable[[], datetime] = _wall, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._shared: tuple[datetime, float] | None = None
        self._jumped = timedelta(0)
        self._now = self._at = wall()
        self._since = monotonic()

    def now(self) -> datetime:
        with self._lock:
            self._look()
            return self._now

    def not_below(self, moment: datetime) -> None:
        with self._lock:
            self._look()
            if moment > self._now:
                self._set(moment, self._monotonic())

    def outside(self) -> datetime:
        with self._lock:
            return self._look()

    @property
    def jumped(self) -> timedelta:
        return self._jumped

    @property
    def behind(self) -> timedelta:
        with self._lock:
            told = self._look()
            return max(self._now - told, timedelta(0))

    def correct(self, moment: datetime) -> None:
        with self._lock:
            monotonic = self._monotonic()
            if self._shared is None:
                # Nothing has been decided by our own clock yet.
                self._set(moment, monotonic)
            self._shared = moment, monotonic

    def mark(self) -> str:
        with self._lock:
            self._look()
            return f"{boot_id() or UNKNOWN} {self._monotonic()} {self._now.isoformat()}"

    def go_on_from(self, mark: str) -> None:
        boot, monotonic, moment = mark.split()
        with self._lock:
            if boot == (boot_id() or UNKNOWN) and float(monotonic) <= self._monotonic():
                self._at, self._since = datetime.fromisoformat(moment), float(monotonic)

    def _look(self) -> datetime:
        """Bring `_now` up to date; gives what its source says."""
        monotonic = self._monotonic()
        steady = self._at + timedelta(seconds=monotonic - self._since)
        told = self._wall()
        if self._shared is not None:
            moment, since = self._shared
            told = moment + timedelta(seconds=monotonic - since)
        ahead = told - steady
        if ahead > TOLERANCE:
            self._jumped += ahead
            self._at, self._since = told, monotonic
        self._now = max(self._now, steady if ahead < -TOLERANCE else told)
        return told

    def _set(self, moment: datetime, monotonic: float) -> None:
        self._now = self._at = moment
        self._since = monotonic


def boot_id(path: Path = BOOT_ID) -> str:
    """Identifies the boot: monotonic times of different boots cannot be compared. Empty where the system has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class MachineClock:
    """The machine's clock, which may be set back: for a guest, whose clock may be wrong at first."""

    def now(self) -> datetime:
        return datetime.now(UTC)
