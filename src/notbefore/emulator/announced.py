"""An event of the emulator in the hands of a test: what became of it, who approved it, and when."""

from collections.abc import Callable
from datetime import datetime
from time import monotonic

from notbefore.core.operations import Event, EventType, Status
from notbefore.emulator.emulator import Emulator
from notbefore.emulator.requests import Requested

LOOK = 0.05


class AnnouncedEvent:
    def __init__(self, emulator: Emulator, event: Event) -> None:
        self.id = event.id
        """As documents show it."""
        self.type: EventType = event.type
        self.not_before: datetime = event.not_before
        self._emulator = emulator
        self._stage = emulator.stage

    @property
    def status(self) -> Status:
        """`Scheduled` or `Started` while it is shown; then `Completed` or `Canceled`."""
        return self._event.status

    @property
    def resources(self) -> tuple[str, ...]:
        return self._event.resources

    @property
    def approved(self) -> bool:
        return bool(self._approvals())

    @property
    def requests(self) -> list[Requested]:
        """All that asked to start it, refused ones too."""
        return [request for request in self._emulator.requests.approvals if self.id in request.event_ids]

    def approve(self, by: str = "operator") -> None:
        """As an operator would, without any guest."""
        self._emulator.approve(self.id, by)

    def cancel(self) -> None:
        self._emulator.cancel(self.id)

    # Waiting, in seconds of real time

    def wait_approved(self, timeout: float = 10) -> None:
        __tracebackhide__ = True
        self._wait(lambda: self.approved, "approved", timeout)

    def wait_started(self, timeout: float = 10) -> None:
        __tracebackhide__ = True
        self._wait(lambda: self.status is not Status.SCHEDULED, "started", timeout)

    def wait_gone(self, timeout: float = 10) -> None:
        """Until no document shows it any more."""
        __tracebackhide__ = True
        self._wait(lambda: not self.status.live, "gone", timeout)

    # Judging

    def assert_approved(self, *, by: str | None = None, before_not_before: bool = False) -> None:
        """`by` this VM; while the time that was promised had not passed."""
        __tracebackhide__ = True
        wanted = [each for each in self._approvals() if by in (None, each[0])]
        if before_not_before:
            wanted = [each for each in wanted if each[1] < self.not_before]
        if not wanted:
            expected = f"{f' by {by}' if by else ''}{f' before {_time(self.not_before)}' if before_not_before else ''}"
            raise AssertionError(f"{self} was to be approved{expected}, but {self._seen()}")

    def assert_never_approved(self) -> None:
        __tracebackhide__ = True
        if self._approvals():
            raise AssertionError(f"{self} was not to be approved, but {self._seen()}")

    def __repr__(self) -> str:
        return f"<{self.type} of {', '.join(self.resources)} ({self.status}, {self.id})>"

    @property
    def _event(self) -> Event:
        return self._stage.event(self.id)

    def _approvals(self) -> set[tuple[str, datetime]]:
        """By whom and when: the one that counted, and all that were answered 200 besides."""
        found = {(request.vm or "", request.at) for request in self.requests if request.status == 200}
        event = self._event
        by = event.approved_by or ""
        if event.approved_at is not None and not event.implied and by not in {vm for vm, _ in found}:
            found.add((by, event.approved_at))
        return found

    def _seen(self) -> str:
        said = [f"{vm or 'somebody'} approved it at {_time(at)}" for vm, at in sorted(self._approvals())]
        others = (request for request in self.requests if request.status != 200)
        refused = {f"{request.vm} was answered {request.status or 'nothing'}" for request in others}
        return ", ".join([*said, *sorted(refused)]) or f"nobody approved it; it is {self.status}"

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        __tracebackhide__ = True
        deadline = monotonic() + timeout
        # What only a request tells, such as an approval of what has started, is looked for now and then.
        while not self._emulator.wait_for(condition, max(0.0, min(LOOK, deadline - monotonic()))):
            if monotonic() >= deadline:
                polls = len(self._emulator.requests.polls)
                raise AssertionError(
                    f"{self} is not {what} after {timeout:g} s; {self._seen()}; there were {polls} polls"
                )


def _time(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"
