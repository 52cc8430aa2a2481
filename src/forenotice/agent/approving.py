"""Approvals on their way to the endpoint, tried again until they are answered with yes."""

import threading
import time
from collections.abc import Callable

from forenotice.agent.messages import Answered
from forenotice.client import Client, Pace
from forenotice.client.events import Event
from forenotice.core import errors

LONGEST_PAUSE = 10.0
PACE = Pace(first_timeout=5.0)
"""An approval that is not answered is sent again while a Preempt's 30 seconds last."""


class Approver:
    """Belongs to the loop's thread; what was answered is posted to it."""

    def __init__(self, client: Client, post: Callable[[Answered], None], pace: Pace = PACE) -> None:
        """`client` knows the endpoint, and the version to ask it in."""
        self._client = client
        self._pace = pace
        self._post = post
        self._under_way: set[str] = set()
        self._failures: dict[str, int] = {}
        self._again_at: dict[str, float] = {}

    def may_send(self, saga: str) -> bool:
        return saga not in self._under_way and time.monotonic() >= self._again_at.get(saga, 0.0)

    def send(self, saga: str, event: Event, *, first: bool = False) -> None:
        self._under_way.add(saga)
        try:
            threading.Thread(target=self._send, args=(saga, event, first), name="approve", daemon=True).start()
        except RuntimeError as error:
            self._post(Answered(saga, str(error)))

    def answered(self, answer: Answered) -> None:
        self._under_way.discard(answer.saga)
        if not answer.error:
            self._failures.pop(answer.saga, None)
            self._again_at.pop(answer.saga, None)
            return
        failures = self._failures.get(answer.saga, 0) + 1
        self._failures[answer.saga] = failures
        self._again_at[answer.saga] = time.monotonic() + min(LONGEST_PAUSE, 2.0 ** (failures - 1))

    def _send(self, saga: str, event: Event, first: bool) -> None:
        try:
            with Client(self._client.endpoint, pace=self._pace) as client:
                client.session.endpoint.negotiation = self._client.session.endpoint.negotiation
                client.approve(event)
        except errors.ForenoticeError as error:
            refused = isinstance(error, errors.RefusedError)
            self._post(Answered(saga, error.message, refused=refused, first=first))
        except Exception as error:
            self._post(Answered(saga, f"{type(error).__name__}: {error}"))
        else:
            self._post(Answered(saga, ""))
