"""A driver that calls a service over HTTP, which carries out the task at once or accepts it."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from forenotice import signatures, ssrf
from forenotice.client.http import Response
from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.programs import process
from forenotice.runtime import Runtime
from forenotice.ssrf import OutgoingClient

LONGEST_REASON = 300
KEPT = 2048
"""Characters of a response that go into the journal."""
POLL_AFTER = 5.0
SOONEST, LATEST = 0.1, 300.0
"""Seconds between two polls, whatever is asked for."""
TEMPORARY = frozenset({429, 500, 502, 503, 504})
"""Statuses of a poll after which it is made again."""

T = TypeVar("T")


class Result(msgspec.Struct, frozen=True):
    done: tuple[str, ...] = ()
    failures: dict[str, str] = {}


class Accepted(msgspec.Struct, frozen=True):
    poll: str = ""
    """Where to poll for the result; empty: it comes by callback."""
    after_seconds: float = POLL_AFTER


class _FailedError(errors.ForenoticeError):
    """The call has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    url: str
    secret: str = field(repr=False)
    completion_seconds: float
    """Until what was only accepted must be done."""


@dataclass(slots=True)
class _Call:
    """All requests that one task needs."""

    begun: float
    last: Response = field(default_factory=lambda: Response(status=0, body=b"", headers={}))
    accepted: Accepted | None = None
    until: float = math.inf
    """By when it must be done, once it is accepted."""


class WebhookDriver:
    """Remembers which calls were accepted, so that it polls for them and ends them in time.

    After a restart it knows none: the call is made again, under the same key.
    """

    def __init__(self, receiver: Receiver, sender: OutgoingClient, runtime: Runtime) -> None:
        self._receiver = receiver
        self._sender = sender
        self._runtime = runtime
        self._accepted: dict[str, _Call] = {}
        self._stopping = False

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        key = idempotency_key(task)
        call = self._accepted.pop(key, None) or _Call(self._runtime.monotonic())
        try:
            result = self._request(task, call)
        except errors.ForenoticeError as error:
            if self._stopping:
                return NotYet(again_at=now)
            why = process.first_words(error.message, LONGEST_REASON)
            return Finished(failures=dict.fromkeys(task.vms, why), calls=(self._record(task, call),))
        if result is not None:
            plain = {name: _plain(why) for name, why in result.failures.items() if name in task.vms}
            failures = {name: process.first_words(why, LONGEST_REASON) for name, why in plain.items()}
            done = tuple(name for name in task.vms if name in set(result.done) and name not in failures)
            return Finished(done=done, failures=failures, calls=(self._record(task, call),))
        present = self._runtime.monotonic()
        for other, accepted in list(self._accepted.items()):
            # Its result came by callback.
            if accepted.until <= present:
                self._accepted.pop(other, None)
        self._accepted[key] = call
        pause = left = call.until - present
        if call.accepted and call.accepted.poll:
            pause = min(max(call.accepted.after_seconds, SOONEST), LATEST)
        return NotYet(again_at=now + timedelta(seconds=max(0.0, min(pause, left))))

    def stop(self) -> None:
        self._stopping = True

    def _request(self, task: Task, call: _Call) -> Result | None:
        """Post the task, or poll for its result; None: it is accepted and not done yet."""
        if call.accepted is None:
            body = msgspec.json.encode(document(task))
            headers = {"Content-Type": "application/json", **self._signature(body)}
            call.last = response = self._sender.post(self._receiver.url, body, headers)
        elif call.until <= self._runtime.monotonic():
            raise _FailedError(f"it was accepted, but not done within {self._receiver.completion_seconds:g} s")
        elif not call.accepted.poll:
            return None
        else:
            try:
                response = self._sender.get(self._url_to_poll(call.accepted), self._signature(b""))
            except ssrf.OutgoingError:
                return None
            call.last = response
            if response.status in TEMPORARY:
                return None
        if response.status == 200:
            return self._read(response, Result)
        if response.status != 202:
            raise _FailedError(self._described(response))
        if call.accepted is None:
            call.accepted = Accepted()
            call.until = self._runtime.monotonic() + self._receiver.completion_seconds
        if response.body.strip():
            call.accepted = self._read(response, Accepted)
            if call.accepted.poll and _origin(self._url_to_poll(call.accepted)) != _origin(self._receiver.url):
                raise _FailedError("the URL to poll is on another server than the driver's URL")
        return None

    def _url_to_poll(self, accepted: Accepted) -> str:
        return urljoin(self._receiver.url, accepted.poll)

    def _record(self, task: Task, call: _Call) -> Mapping[str, object]:
        """For the journal."""
        return {
            "vms": list(task.vms),
            "status": call.last.status or None,
            "seconds": round(self._runtime.monotonic() - call.begun, 1),
            "output": _plain(call.last.body),
        }

    def _read(self, response: Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(response.body, type=kind)
        except msgspec.MsgspecError as error:
            raise _FailedError(f"{self._described(response)}, which is not a driver's response ({error})") from None

    def _described(self, response: Response) -> str:
        last_words = process.last_words(_plain(response.body), LONGEST_REASON // 2)
        status = f"{ssrf.origin(self._receiver.url)} answered {response.status}"
        return f"{status}: {last_words}" if last_words else status

    def _signature(self, body: bytes) -> dict[str, str]:
        # Receivers go by the world's time, while time here may be ahead.
        return signatures.headers(self._receiver.secret, body, self._runtime.clock.outside())


def idempotency_key(task: Task) -> str:
    return hashlib.sha256(f"{task.operation} {task.attempt} {task.vms}".encode()).hexdigest()[:32]


def document(task: Task) -> dict[str, object]:
    """All that a receiver goes by is in the body, because that is what is signed."""
    return {
        "idempotency_key": idempotency_key(task),
        "result_token": task.result_token,
        "operation": task.operation,
        "kind": task.kind.value,
        "attempt": task.attempt,
        "host": task.host,
        "host_address": task.address,
        "started_at": task.started_at,
        "duration_seconds": task.duration,
        "vms": [
            {
                "name": name,
                "vm_id": task.vm_ids.get(name),
                "event": task.events.get(name),
                "target": task.targets.get(name),
                "target_address": task.target_addresses.get(name),
                "shutdown_timeout_seconds": task.shutdown_seconds(name),
            }
            for name in task.vms
        ],
    }


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or ssrf.PORTS.get(parts.scheme)


def _plain(text: bytes | str) -> str:
    if isinstance(text, bytes):
        text = text[-KEPT:].decode(errors="replace")
    return process.plain(text).strip()
