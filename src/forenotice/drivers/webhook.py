"""A driver that asks somebody else over HTTP, and waits until that is done."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from forenotice import outgoing, signing
from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.drivers import letterbox
from forenotice.drivers.letterbox import Letterbox
from forenotice.outgoing import Outgoing, Reply
from forenotice.programs import process

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
    """Where to ask what became of it; empty: it will be told."""
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
    def __init__(
        self, receiver: Receiver, sender: Outgoing, letterbox: Letterbox, outside: Callable[[], datetime]
    ) -> None:
        """`outside` is what the rest of the world calls now: receivers go by it, while time here may be ahead."""
        self._outside = outside
        self._receiver = receiver
        self._sender = sender
        self._letterbox = letterbox

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        token = letterbox.token(self._letterbox.key, (task.operation, task.attempt))
        call = _Call(self._receiver, self._sender, task, token, self._outside)
        try:
            reply = call.begin()
            result = self._awaited(call, reply)
        except errors.ForenoticeError as error:
            if self._letterbox.closed.is_set():
                return NotYet(again_at=now)
            why = process.first_words(error.message, LONGEST_REASON)
            return Finished(failures=dict.fromkeys(task.vms, why), calls=(call.told,))
        return NotYet(again_at=now) if result is None else _finished(task, result, call.told)

    def _awaited(self, call: "_Call", reply: Reply) -> Result | None:
        """None: the service ends first."""
        until = time.monotonic() + self._receiver.completion_seconds
        accepted = Accepted()
        while True:
            if reply.status == 200:
                return call.read(reply, Result)
            if reply.status != 202:
                raise _FailedError(call.answered(reply))
            if reply.body.strip():
                accepted = call.read(reply, Accepted)
            reply = Reply(status=202, body=b"", headers={})
            left = until - time.monotonic()
            pause = min(max(accepted.after_seconds, SOONEST), LATEST) if accepted.poll else left
            letter = self._letterbox.wait((call.task.operation, call.task.attempt), max(0.0, min(pause, left)))
            if letter is not None:
                return Result(done=letter.done, failures=dict(letter.failures))
            if self._letterbox.closed.is_set():
                return None
            if left <= pause:
                raise _FailedError(f"it was accepted, but not done within {self._receiver.completion_seconds:g} s")
            reply = call.poll(accepted.poll) or reply


class _Call:
    """All requests that one task needs."""

    def __init__(
        self, receiver: Receiver, sender: Outgoing, task: Task, token: str, outside: Callable[[], datetime]
    ) -> None:
        self.task = task
        self._token = token
        self._receiver = receiver
        self._sender = sender
        self._outside = outside
        self._begun = time.monotonic()
        self._last = Reply(status=0, body=b"", headers={})

    @property
    def told(self) -> Mapping[str, object]:
        """For the journal."""
        return {
            "vms": list(self.task.vms),
            "status": self._last.status or None,
            "seconds": round(time.monotonic() - self._begun, 1),
            "output": _plain(self._last.body),
        }

    def begin(self) -> Reply:
        body = msgspec.json.encode(document(self.task, self._token))
        headers = {"Content-Type": "application/json", **self._signature(body)}
        self._last = self._sender.post(self._receiver.url, body, headers)
        return self._last

    def poll(self, given: str) -> Reply | None:
        """None: not to be had just now, so it is asked for again."""
        url = urljoin(self._receiver.url, given)
        if _origin(url) != _origin(self._receiver.url):
            raise _FailedError("the URL to poll leads to another place: it must be on the same server as the driver's")
        try:
            reply = self._sender.get(url, self._signature(b""))
        except outgoing.OutgoingError:
            return None
        self._last = reply
        return None if reply.status in (429, 500, 502, 503, 504) else reply

    def read(self, reply: Reply, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except msgspec.MsgspecError as error:
            why = f"which is not what a driver answers ({error})"
            raise _FailedError(f"{self.answered(reply)}, {why}") from None

    def answered(self, reply: Reply) -> str:
        said = f"{outgoing.place(self._receiver.url)} answered {reply.status}"
        last_words = process.last_words(_plain(reply.body), LONGEST_REASON // 2)
        return f"{said}: {last_words}" if last_words else said

    def _signature(self, body: bytes) -> dict[str, str]:
        return signing.headers(self._receiver.secret, body, self._outside())


def document(task: Task, token: str) -> dict[str, object]:
    """All that a receiver goes by is in the body, because that is what is signed."""
    key = hashlib.sha256(f"{task.operation} {task.attempt} {task.vms}".encode()).hexdigest()[:32]
    return {
        "idempotency_key": key,
        "result_token": token,
        "operation": task.operation,
        "kind": task.kind.value,
        "attempt": task.attempt,
        "host": task.host,
        "started_at": task.started_at,
        "vms": [
            {
                "name": name,
                "vm_id": task.vm_ids.get(name),
                "event": task.events.get(name),
                "target": task.targets.get(name),
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
    return parts.scheme, parts.hostname, parts.port or outgoing.PORTS.get(parts.scheme)


def _plain(text: bytes | str) -> str:
    if isinstance(text, bytes):
        text = text[-KEPT:].decode(errors="replace")
    return process.plain(text).strip()
