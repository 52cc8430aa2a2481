"""The emulator's time: the machine's, perhaps ahead of it, or one that stands still until somebody moves it."""

import threading
from datetime import datetime, timedelta

from notbefore.clock import SystemClock


class EmulatedClock:
    """A `notbefore.clock.Clock` that can be moved on."""

    def __init__(self, *, virtual: bool = False) -> None:
        self.virtual = virtual
        self._system = SystemClock()
        self._lock = threading.Lock()
        self._ahead = timedelta(0)
        # Whole, so that what a test reckons from it is what documents say.
        self._stands_at = self._system.now().replace(microsecond=0)

    def now(self) -> datetime:
        with self._lock:
            return self._stands_at if self.virtual else self._system.now() + self._ahead

    def not_below(self, moment: datetime) -> None:
        """Move on to a moment; never back."""
        with self._lock:
            if self.virtual:
                self._stands_at = max(self._stands_at, moment)
            else:
                self._ahead = max(self._ahead, moment - self._system.now())
