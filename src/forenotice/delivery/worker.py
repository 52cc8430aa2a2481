"""The thread that delivers: it sleeps until there is something to tell, and hands requests to a few others."""

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog
from cloudevents.core.v1.event import CloudEvent

from forenotice.client.http import Response
from forenotice.core import errors
from forenotice.core.journal import Entry
from forenotice.delivery import cycle, messages
from forenotice.delivery.cycle import Attempt, Lane, Outcome, Pauses
from forenotice.runtime import Started
from forenotice.service import views
from forenotice.service.loops import Loop, time_until
from forenotice.service.service import Service
from forenotice.ssrf import OutgoingClient, OutgoingError, describe_status
from forenotice.store.transaction import Reader

log = structlog.get_logger()

PAUSE = timedelta(milliseconds=10)
"""Between two looks: of a thousand commits a second, not each is worth one."""
STOP_SECONDS = 2.0
"""How long those are waited for in the end; a resolver that hangs cannot be told to stop."""
GONE = 410
ASK_LATER = frozenset({429, 503})


class Worker:
    def __init__(self, service: Service, outgoing: OutgoingClient, *, pauses: Pauses | None = None) -> None:
        """`outgoing` is the worker's own: it is closed with it."""
        self._service = service
        self._outgoing = outgoing
        self._pauses = pauses or Pauses()
        self._wake = service.follow_growth()
        self._outcomes: deque[Outcome] = deque()
        self._under_way: dict[Lane, Started] = {}
        self._limit = cycle.RequestLimit()
        self._loop = Loop("delivery", self.step, self._wake, service.liveness, service.runtime, pause=PAUSE)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """At once: what is being sent is sent again after the next start, or by another process."""
        self._loop.stop()
        self._outgoing.close()
        monotonic = self._service.runtime.monotonic
        deadline = monotonic() + STOP_SECONDS
        for sending in self._under_way.values():
            sending.join(max(0.0, deadline - monotonic()))
        try:
            cycle.give_up(self._service, list(self._outcomes), self._pauses)
        except errors.ForenoticeError as error:
            log.warning("What receivers answered last could not be kept", action="delivery.unkept", error=str(error))

    def step(self) -> timedelta:
        """One cycle; gives how long there is nothing to do."""
        service = self._service
        began = service.clock.now()
        outcomes = list(self._outcomes)
        answered = {outcome.attempt.lane for outcome in outcomes}
        busy = [lane for lane in self._under_way if lane not in answered]
        found = cycle.run(service, outcomes, busy, limit=self._limit, pauses=self._pauses)
        for outcome in outcomes:
            self._outcomes.popleft()
            self._under_way.pop(outcome.attempt.lane, None)
        if found.attempts:
            self._send(found.attempts)
        due = began if found.more else cycle.next_due(service, began)
        return time_until(due, service.clock.now())

    def _send(self, attempts: Sequence[Attempt]) -> None:
        source = messages.source(self._service)
        with self._service.store.read() as reader:
            entries = [_entry(reader, attempt.delivery.position) for attempt in attempts]
            world = reader.worlds.load(events=[entry.event for entry in entries if entry and entry.event])
        for attempt, entry in zip(attempts, entries, strict=True):
            if entry is None:
                # Only by a hand in the database: pruning leaves what is undelivered.
                log.warning("An entry is gone before it was delivered", action="delivery.lost", **_facts(attempt))
                self._answered(Outcome(attempt=attempt))
                continue
            event = world.events.get(entry.event or "")
            view = views.event_of(world.operations[event.operation], event) if event else None
            message = messages.render(source, attempt.delivery.position, entry, view)
            self._limit.sent(attempt.subscription.id)
            deliver = partial(self._deliver, attempt, message)
            self._under_way[attempt.lane] = self._service.runtime.start_thread(deliver, "delivery-request")

    def _deliver(self, attempt: Attempt, event: CloudEvent) -> None:
        try:
            now = self._service.clock.outside()
            sent = messages.signed(event, attempt.subscription.secret, now)
            outcome = outcome_of(attempt, self._outgoing.notify(attempt.subscription.url, sent.body, sent.headers), now)
        except OutgoingError as error:
            outcome = Outcome(attempt=attempt, error=error.message)
        except Exception as error:
            log.exception("A delivery failed", action="delivery.broken", **_facts(attempt))
            outcome = Outcome(attempt=attempt, error=f"this is a defect: {type(error).__name__}")
        if not (outcome.error and self._loop.stopping.is_set()):
            self._answered(outcome)

    def _answered(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._wake.set()


def outcome_of(attempt: Attempt, response: Response, now: datetime) -> Outcome:
    if 200 <= response.status < 300:
        return Outcome(attempt=attempt)
    asked = cycle.retry_after(response.headers.get("retry-after", ""), now) if response.status in ASK_LATER else None
    return Outcome(
        attempt=attempt,
        error=f"it answered {describe_status(response.status)}",
        gone=response.status == GONE,
        asked=asked,
    )


def _entry(reader: Reader, position: int) -> Entry | None:
    return next((entry for found, entry in reader.journal.page(after=position - 1, limit=1) if found == position), None)


def _facts(attempt: Attempt) -> dict[str, object]:
    return {"subscription": attempt.subscription.name, "position": attempt.delivery.position}
