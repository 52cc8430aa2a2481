"""The log of guests' requests with their responses, for tests to inspect."""

import asyncio
import itertools
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import overload
from urllib.parse import parse_qsl, urlsplit

from forenotice.core import errors
from forenotice.runtime import Runtime

MOST = 100_000
MOST_BYTES = 64 * 1024 * 1024
"""Of heads and bodies together; the oldest requests go first."""
PLACE = "/scheduledevents"
FOREVER = datetime.min.replace(tzinfo=UTC)
KINDS = 3
"""Of refused requests that a sentence tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    at: datetime
    """When its turn came, by the emulator's clock."""
    monotonic: float
    """The same by the monotonic clock."""
    answered: float
    """When its answer was sent, by the monotonic clock."""
    vm: str | None
    """The caller; None: it is not known."""
    method: str
    """Empty, like the target, when it was no HTTP."""
    target: str
    api_version: str | None
    headers: Mapping[str, str]
    """By name in lower case; what is given twice is joined by commas."""
    body: bytes
    status: int | None
    """None: no answer was sent."""
    fault: str | None
    """The name of the fault that it met; of several, joined by plus signs."""
    event_ids: tuple[str, ...] = ()
    """What it approves, in upper case, where that could be read."""
    reason: str | None = None
    """Why it was refused, from the response."""

    @property
    def is_poll(self) -> bool:
        return self.method == "GET" and self._is_scheduled_events()

    @property
    def is_approval(self) -> bool:
        return self.method == "POST" and self._is_scheduled_events()

    def _is_scheduled_events(self) -> bool:
        return self.target.partition("?")[0].rstrip("/").lower().endswith(PLACE)

    @property
    def is_refused(self) -> bool:
        """By the endpoint as it is, without any fault: there is something wrong with it."""
        return self.fault is None and self.status is not None and self.status >= 400

    def __str__(self) -> str:
        """`web-0 GET /metadata/scheduledevents: 400, Bad request. Required metadata header not specified`"""
        ids = f" for {', '.join(self.event_ids)}" if self.event_ids else ""
        why = f" ({self.fault})" if self.fault else f", {self.reason}" if self.reason else ""
        return f"{self.vm or 'an unknown caller'} {self.method} {self.target}{ids}: {self.status or 'no response'}{why}"

    @property
    def size(self) -> int:
        return len(self.target) + len(self.body) + sum(len(name) + len(text) for name, text in self.headers.items())


class RequestLog(Sequence[LoggedRequest]):
    """In the order they were answered, or cut off. Safe to use from any thread; it is iterated as it is at first."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES, runtime: Runtime | None = None) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._monotonic = (runtime or Runtime()).monotonic
        self._changed = threading.Condition()
        self._kept: deque[LoggedRequest] = deque()
        self._bytes = 0
        self._cleared = -math.inf
        """When, by the monotonic clock."""

    def record(self, request: LoggedRequest) -> None:
        """One whose turn came before all was forgotten is forgotten too."""
        with self._changed:
            if request.monotonic < self._cleared:
                return
            self._kept.append(request)
            self._bytes += request.size
            while len(self._kept) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._kept.popleft().size
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._kept.clear()
            self._bytes = 0
            self._cleared = self._monotonic()

    @property
    def all(self) -> tuple[LoggedRequest, ...]:
        with self._changed:
            return tuple(self._kept)

    def latest(self, most: int) -> list[tuple[int, LoggedRequest]]:
        """At most so many, newest first, each with its place in the order; the rest is not even looked at."""
        with self._changed:
            places = range(len(self._kept) - 1, -1, -1)
            return list(zip(places, itertools.islice(reversed(self._kept), most), strict=False))

    @property
    def polls(self) -> tuple[LoggedRequest, ...]:
        return tuple(request for request in self.all if request.is_poll)

    @property
    def approvals(self) -> tuple[LoggedRequest, ...]:
        return tuple(request for request in self.all if request.is_approval)

    def refusals(self, since: datetime = FOREVER) -> str:
        """As the end of a sentence on what was missed: `; 2 requests were refused: ...`, each kind once; or nothing."""
        kinds = Counter(str(request) for request in self.all if request.is_refused and request.at >= since)
        if not kinds:
            return ""
        shown = [f"{what} ({count} times)" if count > 1 else what for what, count in list(kinds.items())[-KINDS:]]
        total = sum(kinds.values())
        return f"; {total} request{'s were' if total > 1 else ' was'} refused: {'; '.join(shown)}"

    def wait_for(self, condition: Callable[["RequestLog"], bool], timeout: float) -> bool:
        """Whether this comes to hold within so many seconds; it is looked at after every request."""
        __tracebackhide__ = True
        refuse_in_event_loop("requests.wait_for()", "asyncio.to_thread(requests.wait_for, ...)")
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), timeout)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(self.all)

    @overload
    def __getitem__(self, index: int) -> LoggedRequest: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LoggedRequest, ...]: ...
    def __getitem__(self, index: int | slice) -> LoggedRequest | tuple[LoggedRequest, ...]:
        return self.all[index]

    def __repr__(self) -> str:
        return f"<{len(self)} requests: {len(self.polls)} polls, {len(self.approvals)} approvals>"


def api_version(target: str) -> str | None:
    try:
        query = parse_qsl(urlsplit(target).query, keep_blank_values=True)
    except ValueError:
        return None
    return next((value for name, value in query if name.lower() == "api-version"), None)


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def refuse_in_event_loop(method: str, awaited: str) -> None:
    __tracebackhide__ = True
    if in_event_loop():
        raise errors.RefusedError(
            f"`{method}` would block the running event loop, and with it every handler there: use `await {awaited}`"
        )
