"""The emulator's time: the machine's, perhaps ahead of it or behind, or one that stands until somebody moves it."""

import threading
from datetime import datetime, timedelta

from forenotice.clock import SystemClock


class EmulatedClock:
    """A `forenotice.clock.Clock` that can be moved on, and paused."""

    def __init__(self, *, virtual: bool = False, start: datetime | None = None) -> None:
        """`start` is where a virtual one stands at first."""
        self.virtual = virtual
        """It never goes by itself."""
        self._system = SystemClock()
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
        """It stands still from now on."""
        with self._lock:
            self._stands_at = self._now()

    def resume(self) -> None:
        """It goes on from where it stands."""
        with self._lock:
            if self._stands_at is not None and not self.virtual:
                self._ahead = self._stands_at - self._system.now()
                self._stands_at = None

    def _now(self) -> datetime:
        return self._system.now() + self._ahead if self._stands_at is None else self._stands_at
