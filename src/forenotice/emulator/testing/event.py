"""An event of the emulator in the hands of a test: what became of it, who approved it, how a test waits."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime

from forenotice.core import errors
from forenotice.core.operations import Event, EventType, Status
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.request_log import LoggedRequest, in_event_loop, refuse_in_event_loop

LOOK = 0.01


class Condition:
    """Whether something is so: `if event.approved`; and until it is: `await event.approved(timeout=10)`."""

    def __init__(
        self,
        emulator: Emulator,
        of: str,
        name: str,
        holds: Callable[[], bool],
        missed: Callable[[float], str],
        then: Callable[[], Iterator[None]] = lambda: iter(()),
    ) -> None:
        """`missed` says why it does not hold in time; `then` goes on waiting when it holds."""
        self._monotonic = emulator.runtime.monotonic
        self._of, self._name = of, name
        self._holds, self._missed, self._then = holds, missed, then

    def __bool__(self) -> bool:
        return self._holds()

    def __call__(self, timeout: float = 10) -> Coroutine[object, object, None]:
        """To be awaited; so many seconds of real time at most, while the event loop goes on."""
        __tracebackhide__ = True
        if not in_event_loop():
            raise errors.RefusedError(
                f"`{self._name}()` is to be awaited in an asyncio test: here, use `wait_{self._name}()`"
            )
        return go_on(self._until(timeout))

    def wait(self, timeout: float) -> None:
        __tracebackhide__ = True
        block(self._until(timeout), f"wait_{self._name}()", f"{self._of}.{self._name}()")

    def _until(self, timeout: float) -> Iterator[None]:
        __tracebackhide__ = True
        yield from until(self._monotonic, self._holds, timeout, lambda: self._missed(timeout))
        yield from self._then()

    def __repr__(self) -> str:
        return f"<{self._name}: {bool(self)}>"


def block(looks: Iterator[None], method: str, awaited: str) -> None:
    __tracebackhide__ = True
    refuse_in_event_loop(method, awaited)
    for _ in looks:
        threading.Event().wait(LOOK)


async def go_on(looks: Iterator[None]) -> None:
    __tracebackhide__ = True
    for _ in looks:
        await asyncio.sleep(LOOK)


def until(
    monotonic: Callable[[], float],
    condition: Callable[[], bool],
    timeout: float,
    missed: Callable[[], str] | None = None,
) -> Iterator[None]:
    """The caller waits between two looks. Without `missed`, it is no failure when the time is over."""
    __tracebackhide__ = True
    deadline = monotonic() + timeout
    while not condition():
        if monotonic() >= deadline:
            if missed is not None:
                raise AssertionError(missed())
            return
        yield


RESPONSE_SECONDS = 1.0


class AnnouncedEvent:
    def __init__(self, emulator: Emulator, event: Event) -> None:
        self.id = event.id
        self.type: EventType = event.type
        self.not_before: datetime = event.not_before
        self._emulator = emulator
        self._simulation = emulator.simulation

    @property
    def status(self) -> Status:
        """`Scheduled` or `Started` while it is shown; then `Completed` or `Canceled`."""
        return self._event.status

    @property
    def resources(self) -> tuple[str, ...]:
        return self._event.resources

    @property
    def approved(self) -> Condition:
        return self._condition("approved", lambda: bool(self._approvals()), self._until_logged)

    @property
    def started(self) -> Condition:
        """Or over already."""
        return self._condition("started", lambda: self.status is not Status.SCHEDULED)

    @property
    def gone(self) -> Condition:
        """No document shows it any more."""
        return self._condition("gone", lambda: not self.status.live)

    @property
    def requests(self) -> list[LoggedRequest]:
        """All requests to start it, refused ones too."""
        return [request for request in self._emulator.requests.approvals if self.id in request.event_ids]

    def approve(self, by: str = "operator") -> None:
        """As an operator would, without any guest."""
        self._emulator.approve(self.id, by)

    def cancel(self) -> None:
        self._emulator.cancel(self.id)

    # Waiting, in seconds of real time; in asyncio tests it is `await event.approved(timeout)`

    def wait_approved(self, timeout: float = 10) -> None:
        __tracebackhide__ = True
        self.approved.wait(timeout)

    def wait_started(self, timeout: float = 10) -> None:
        __tracebackhide__ = True
        self.started.wait(timeout)

    def wait_gone(self, timeout: float = 10) -> None:
        __tracebackhide__ = True
        self.gone.wait(timeout)

    # Judging

    def assert_approved(self, *, by: str | None = None, before_not_before: bool = False) -> None:
        """`by` this VM; so that it counted, before the time that was promised had passed."""
        __tracebackhide__ = True
        wanted = [each for each in self._approvals() if by in (None, each[0])]
        if before_not_before:
            wanted = [each for each in wanted if each[1] < self.not_before]
        if not wanted:
            expected = f"{f' by {by}' if by else ''}{f' before {_time(self.not_before)}' if before_not_before else ''}"
            refusals = self._emulator.requests.refusals()
            raise AssertionError(f"{self} was to be approved{expected}, but {self._seen()}{refusals}")

    def assert_never_approved(self) -> None:
        """There was no request to start it, whatever the response."""
        __tracebackhide__ = True
        if self._approvals() or self.requests:
            raise AssertionError(f"{self} was not to be approved, but {self._seen()}")

    def __repr__(self) -> str:
        return f"<{self.type} of {', '.join(self.resources)} ({self.status}, {self.id})>"

    @property
    def _event(self) -> Event:
        return self._simulation.event(self.id)

    def _approvals(self) -> set[tuple[str, datetime]]:
        """By whom and when: the one that counted, and all that were answered 200 besides while it was there."""
        event = self._event
        counted_at = None if event.implied else event.approved_at
        found = set() if counted_at is None else {(event.approved_by or "", counted_at)}
        for request in self.requests:
            if request.status != 200 or (counted_at is not None and request.vm == event.approved_by):
                continue
            # Where none has counted it was carried out after the start, also when it was sent before that.
            at = max(request.at, event.not_before) if counted_at is None else request.at
            if event.ended_at is None or at < event.ended_at:
                found.add((request.vm or "", at))
        return found

    def _seen(self) -> str:
        approvals = self._approvals()
        approved = [f"{vm or 'an unknown caller'} approved it at {_time(at)}" for vm, at in sorted(approvals)]
        vms = {vm for vm, _ in approvals}
        others = (request for request in self.requests if request.status != 200 or (request.vm or "") not in vms)
        refused = {f"{request.vm} requested it and got {_response(request)}" for request in others}
        return ", ".join([*approved, *sorted(refused)]) or f"nobody approved it; it is {self.status}"

    def _condition(
        self, name: str, holds: Callable[[], bool], then: Callable[[], Iterator[None]] = lambda: iter(())
    ) -> Condition:
        def missed(timeout: float) -> str:
            requests = self._emulator.requests
            polls = f"{len(requests.polls)} poll{'' if len(requests.polls) == 1 else 's'}"
            return f"{self} is not {name} after {timeout:g} s; {self._seen()}; {polls} so far{requests.refusals()}"

        return Condition(self._emulator, "event", name, holds, missed, then)

    def _until_logged(self) -> Iterator[None]:
        """A guest's approval is logged when it is answered, a moment later."""
        guests = self._emulator.look(
            lambda: any(
                entry.event == self.id and entry.action == "event.approved" and entry.by.startswith("vm:")
                for entry in self._simulation.entries
            )
        )
        if guests:
            yield from until(self._emulator.runtime.monotonic, lambda: bool(self.requests), RESPONSE_SECONDS)


def _response(request: LoggedRequest) -> str:
    return "200 after its end" if request.status == 200 else str(request.status or "no response")


def _time(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"
