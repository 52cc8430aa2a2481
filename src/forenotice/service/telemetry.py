"""What the service measures of itself, for whoever keeps metrics."""

from typing import Protocol


class Telemetry(Protocol):
    def document_changes(self, count: int) -> None: ...

    def lead_time(self, event_type: str, seconds: float) -> None:
        """From an event's appearance to its start."""

    def approvals(self, count: int) -> None: ...

    def approval_latency(self, seconds: float) -> None:
        """From an event's appearance to its approval."""

    def tick_lag(self, seconds: float) -> None:
        """From when something was due to when it was done."""

    def clock_jump(self) -> None: ...

    def refused(self, status: int) -> None:
        """An operator's request, with this HTTP status."""


class NoTelemetry:
    def document_changes(self, count: int) -> None: ...

    def lead_time(self, event_type: str, seconds: float) -> None: ...

    def approvals(self, count: int) -> None: ...

    def approval_latency(self, seconds: float) -> None: ...

    def tick_lag(self, seconds: float) -> None: ...

    def clock_jump(self) -> None: ...

    def refused(self, status: int) -> None: ...
