"""The one place that reads the machine's clock."""

import threading
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime: ...


class SystemClock:
    """The system's time in UTC, never falling, nor below `floor`."""

    def __init__(self, floor: datetime | None = None) -> None:
        self._lock = threading.Lock()
        self._last = floor or datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        with self._lock:
            self._last = max(self._last, datetime.now(UTC))
            return self._last

    def not_below(self, moment: datetime) -> None:
        """Time that is already in the journal counts as passed."""
        with self._lock:
            self._last = max(self._last, moment)
