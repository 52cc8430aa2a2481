"""Long polls: GET with If-None-Match and `Prefer: wait=SECONDS`, held until the document differs or the time is up."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forenotice.metadata import responses
from forenotice.metadata.published import Guest, PublishedScope

if TYPE_CHECKING:
    from forenotice.metadata.checks import Poll
    from forenotice.metadata.connection import Connection
    from forenotice.metadata.requests import Request

PREFERENCE = re.compile(r'(?:[^,;"]|"(?:[^"\\]|\\.)*"?)+')
WAIT = re.compile(r'\s*wait\s*=\s*("?)([0-9]+)\1\s*', re.IGNORECASE)


def wait_seconds(prefer: str) -> float | None:
    """The wait that a Prefer header (RFC 7240) asks for; the server's cap is not applied yet."""
    found = next(filter(None, map(WAIT.fullmatch, PREFERENCE.findall(prefer))), None)
    return float(found[2]) if found else None


@dataclass(slots=True, eq=False, repr=False)
class LongPoll:
    """A poll that is answered when the document changes, its VM leaves the scope, or its time is up."""

    _connection: "Connection"
    _request: "Request"
    _poll: "Poll"
    _guest: Guest
    _scope: PublishedScope
    _timer: asyncio.TimerHandle = field(init=False)

    def __post_init__(self) -> None:
        assert self._poll.wait is not None
        endpoint = self._connection.endpoint
        self._timer = endpoint.loop.call_later(min(self._poll.wait, endpoint.options.wait_cap), self.end)
        self._scope.add_waiter(self)
        endpoint.counters.waits += 1
        endpoint.counters.waiting += 1

    def look_again(self) -> None:
        guest = self._caller()
        assert self._poll.condition is not None
        if (
            guest is None
            or guest.scope is not self._scope
            or not self._connection.endpoint.is_unchanged(self._poll.condition, self._scope)
        ):
            self._finish(guest)

    def end_for(self, guest: Guest) -> None:
        if self._guest is guest:
            self.end()

    def end(self) -> None:
        """Time is up, the server stops, or the client sends no more."""
        self._finish(self._caller())

    def cancel(self) -> None:
        self._timer.cancel()
        self._scope.remove_waiter(self)
        self._connection.endpoint.counters.waiting -= 1

    def _caller(self) -> Guest | None:
        # Behind a proxy each request is another VM's; otherwise an address may have gone to another VM.
        return self._guest if self._poll.proof else self._connection.who({})

    def _finish(self, guest: Guest | None) -> None:
        self.cancel()
        if guest is None or guest.scope is None:
            response = responses.UNKNOWN_CALLER
        else:
            response = self._connection.endpoint.response(self._poll, guest.scope)
        self._connection.release(self._request, response)
