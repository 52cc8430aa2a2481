"""A driver that calls a service over HTTP, which carries out the task at once or accepts it."""

import hashlib
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
"""Characters of an answer that goes into the journal."""
POLL_AFTER = 5.0
SOONEST, LATEST = 0.1, 300.0
"""Seconds between two polls, whatever is asked for."""


T = TypeVar("T")


class Result(msgspec.Struct, frozen=True):
    done: tuple[str, ...] = ()
    failures: dict[str, str] = {}


class Accepted(msgspec.Struct, frozen=True):
    poll: str = ""
    """Where to ask for the result; empty: it comes by callback."""
    after_seconds: float = POLL_AFTER


class _FailedError(errors.ForenoticeError):
    """The call has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    url: str
    secret: str = field(repr=False)
    completion_seconds: float
    """Until what was only accepted must be done."""


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
        call = self._accepted.pop(key, None) or _Call(self._receiver, self._sender, task, self._runtime)
        try:
            result = call.ask()
        except errors.ForenoticeError as error:
            if self._stopping:
                return NotYet(again_at=now)
            why = process.first_words(error.message, LONGEST_REASON)
            return Finished(failures=dict.fromkeys(task.vms, why), calls=(call.record,))
        if result is not None:
            return _finished(task, result, call.record)
        self._forget_overdue()
        self._accepted[key] = call
        return NotYet(again_at=now + timedelta(seconds=call.pause))

    def stop(self) -> None:
        self._stopping = True

    def _forget_overdue(self) -> None:
        """Accepted calls that are not asked for again: their result came by callback."""
        for key, call in list(self._accepted.items()):
            if call.overdue:
                self._accepted.pop(key, None)


class _Call:
    """All requests that one task needs."""

    def __init__(self, receiver: Receiver, sender: OutgoingClient, task: Task, runtime: Runtime) -> None:
        self._task = task
        self._receiver = receiver
        self._sender = sender
        self._runtime = runtime
        self._begun = runtime.monotonic()
        self._last = Response(status=0, body=b"", headers={})
        self._accepted: Accepted | None = None
        self._until = 0.0

    @property
    def record(self) -> Mapping[str, object]:
        """For the journal."""
        return {
            "vms": list(self._task.vms),
            "status": self._last.status or None,
            "seconds": round(self._runtime.monotonic() - self._begun, 1),
            "output": _plain(self._last.body),
        }

    @property
    def overdue(self) -> bool:
        return self._accepted is not None and self._left <= 0

    @property
    def pause(self) -> float:
        """Seconds until it is to be asked for again."""
        assert self._accepted is not None
        pause = min(max(self._accepted.after_seconds, SOONEST), LATEST) if self._accepted.poll else self._left
        return max(0.0, min(pause, self._left))

    def ask(self) -> Result | None:
        """Post the task, or ask what became of it; None: it is accepted and not done yet."""
        if self._accepted is None:
            response: Response | None = self._post()
        elif self._left <= 0:
            raise _FailedError(f"it was accepted, but not done within {self._receiver.completion_seconds:g} s")
        else:
            response = self._poll() if self._accepted.poll else None
        if response is None:
            return None
        if response.status == 200:
            return self._read(response, Result)
        if response.status != 202:
            raise _FailedError(self._answered(response))
        if self._accepted is None:
            self._accepted = Accepted()
            self._until = self._runtime.monotonic() + self._receiver.completion_seconds
        if response.body.strip():
            self._accepted = self._read(response, Accepted)
            if self._accepted.poll and _origin(self._url_to_poll) != _origin(self._receiver.url):
                raise _FailedError("the URL to poll is on another server than the driver's URL")
        return None

    @property
    def _left(self) -> float:
        return self._until - self._runtime.monotonic()

    @property
    def _url_to_poll(self) -> str:
        return urljoin(self._receiver.url, self._accepted.poll if self._accepted else "")

    def _post(self) -> Response:
        body = msgspec.json.encode(document(self._task))
        headers = {"Content-Type": "application/json", **self._signature(body)}
        self._last = self._sender.post(self._receiver.url, body, headers)
        return self._last

    def _poll(self) -> Response | None:
        """None: not available just now, so it is polled again."""
        try:
            response = self._sender.get(self._url_to_poll, self._signature(b""))
        except ssrf.OutgoingError:
            return None
        self._last = response
        return None if response.status in (429, 500, 502, 503, 504) else response

    def _read(self, response: Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(response.body, type=kind)
        except msgspec.MsgspecError as error:
            raise _FailedError(f"{self._answered(response)}, which is not a driver's response ({error})") from None

    def _answered(self, response: Response) -> str:
        said = f"{ssrf.origin(self._receiver.url)} answered {response.status}"
        last_words = process.last_words(_plain(response.body), LONGEST_REASON // 2)
        return f"{said}: {last_words}" if last_words else said

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
        "vms": [
            {
                "name": name,
                "vm_id": task.vm_ids.get(name),
                "event": task.events.get(name),
                "target": task.targets.get(name),
                "target_address": task.target_addresses.get(name),
            }
            for name in task.vms
        ],
    }


def _finished(task: Task, result: Result, told: Mapping[str, object]) -> Finished:
    plain = {name: _plain(why) for name, why in result.failures.items() if name in task.vms}
    failures = {name: process.first_words(why, LONGEST_REASON) for name, why in plain.items()}
    done = tuple(name for name in task.vms if name in set(result.done) and name not in failures)
    return Finished(done=done, failures=failures, calls=(told,))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or ssrf.PORTS.get(parts.scheme)


def _plain(text: bytes | str) -> str:
    if isinstance(text, bytes):
        text = text[-KEPT:].decode(errors="replace")
    return process.plain(text).strip()
