"""The one place that reads the machine's clock."""

import threading
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """In UTC; never falls."""

    def not_below(self, moment: datetime) -> None:
        """Time that is already in the journal counts as passed."""


class SystemClock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        with self._lock:
            self._last = max(self._last, datetime.now(UTC))
            return self._last

    def not_below(self, moment: datetime) -> None:
        with self._lock:
            self._last = max(self._last, moment)


class MachineClock:
    """As the machine has it, also when somebody sets it back: for a guest, whose clock may be wrong at first."""

    def now(self) -> datetime:
        return datetime.now(UTC)
