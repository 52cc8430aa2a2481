"""The thread that delivers. Each cycle records what receivers responded, reads the journal, and sends what is due."""

import random
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import groupby

import structlog
from cloudevents.core.v1.event import CloudEvent

from forenotice.client.http import Response
from forenotice.core import backoff, errors
from forenotice.core.draft import World
from forenotice.core.journal import Entry, SubscriptionState
from forenotice.delivery import messages
from forenotice.runtime import Started
from forenotice.service import views
from forenotice.service.calls import SYSTEM
from forenotice.service.loops import Loop, time_until
from forenotice.service.service import Service, UnitOfWork
from forenotice.ssrf import OutgoingClient, OutgoingError, describe_status
from forenotice.store.subscriptions import Delivery, Subscription
from forenotice.store.transaction import Reader

log = structlog.get_logger()

PAGE = 500
"""Entries taken in at once."""
MOST_PENDING = 1000
"""Of one subscription; the rest waits in the journal."""
AT_ONCE = 4
"""Requests under way to one receiver; only one until it takes something, so that a dead one holds no more than that."""
SPARE = 16
"""Requests under way beyond the first of each receiver, for all of them together."""
CLAIM = timedelta(seconds=15)
"""How long another process believes that we are sending, unless we renew that."""
JITTER = 0.2
"""By how much of itself a pause differs, so that many do not come back at once."""
PAUSE = timedelta(milliseconds=10)
"""Between two cycles: of a thousand commits a second, not each is worth one."""
STOP_SECONDS = 2.0
"""How long requests are waited for in the end; a resolver that hangs cannot be told to stop."""
GONE = 410
RETRY_LATER = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Backoff of deliveries, in real time whatever the speed."""

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=30)
    patience: timedelta = timedelta(days=1)
    """From the first try of an entry."""
    chance: random.Random = field(default_factory=random.SystemRandom)

    def after(self, attempt: int, asked: timedelta | None = None) -> timedelta:
        """After the attempt of this number; at least what the receiver asked for, up to the longest pause."""
        pause = backoff.pause(attempt, self.first, self.longest) * self.chance.uniform(1 - JITTER, 1 + JITTER)
        return max(pause, min(asked or pause, self.longest))


def retry_after(value: str, now: datetime) -> timedelta | None:
    """The pause that Retry-After asks for, as seconds or a date; None: it cannot be read."""
    if value.isascii() and value.isdigit() and len(value) < 10:
        return timedelta(seconds=int(value))
    try:
        return max(parsedate_to_datetime(value) - now, timedelta(0))
    except (ValueError, TypeError):
        return None


Lane = tuple[str, str]
"""Of a subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    subscription: Subscription
    """As it was claimed."""
    delivery: Delivery

    @property
    def lane(self) -> Lane:
        return self.subscription.id, self.delivery.lane

    @property
    def facts(self) -> dict[str, object]:
        return {"subscription": self.subscription.name, "position": self.delivery.position}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    attempt: Attempt
    error: str = ""
    """Empty: the receiver accepted it."""
    gone: bool = False
    """The receiver responded with 410."""
    asked: timedelta | None = None
    """The pause that the receiver asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What one subscription needs."""

    subscription: Subscription
    entries: Sequence[tuple[int, Entry]]
    busy: Collection[str]
    """Lanes that are being sent."""
    heads: Sequence[Delivery]
    room: int
    """For how many more of them."""
    renew: bool

    @property
    def is_due(self) -> bool:
        return bool(self.entries or self.renew or self.heads)


class RequestLimit:
    """How many requests each receiver may have under way: always one, and more while it accepts them."""

    def __init__(self) -> None:
        self._accepting: set[str] = set()
        """Subscriptions whose receiver accepted the last message."""
        self._served: dict[str, int] = {}
        self._requests = 0

    def sent(self, subscription: str) -> None:
        self._requests += 1
        self._served[subscription] = self._requests

    def record(self, outcome: Outcome) -> None:
        change = self._accepting.discard if outcome.error else self._accepting.add
        change(outcome.attempt.subscription.id)

    def in_order(self, subscriptions: Sequence[Subscription]) -> list[Subscription]:
        """The least recently served first."""
        return sorted(subscriptions, key=lambda each: self._served.get(each.id, 0))

    def room(self, subscription: str, under_way: int, spare: int) -> int:
        own = 0 if under_way else 1
        more = AT_ONCE - own - under_way if subscription in self._accepting else 0
        return own + max(0, min(more, spare))


class Worker:
    def __init__(self, service: Service, outgoing: OutgoingClient, *, pauses: Pauses | None = None) -> None:
        """`outgoing` is the worker's own: it is closed with it."""
        self._service = service
        self._outgoing = outgoing
        self._pauses = pauses or Pauses()
        self._wake = service.follow_growth()
        self._outcomes: deque[Outcome] = deque()
        self._under_way: dict[Lane, Started] = {}
        self._limit = RequestLimit()
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
            self._service.transact(self._release_claims)
        except errors.ForenoticeError as error:
            log.warning("The last responses could not be stored", action="delivery.unkept", error=str(error))

    def step(self) -> timedelta:
        """One cycle; gives how long there is nothing to do."""
        service = self._service
        began = service.clock.now()
        outcomes = list(self._outcomes)
        responded = {outcome.attempt.lane for outcome in outcomes}
        under_way = [lane for lane in self._under_way if lane not in responded]
        for outcome in outcomes:
            self._limit.record(outcome)
        attempts, more = self._take(outcomes, under_way) if outcomes or self._is_due(under_way) else ([], False)
        for outcome in outcomes:
            self._outcomes.popleft()
            self._under_way.pop(outcome.attempt.lane, None)
        if attempts:
            self._send(attempts)
        return time_until(began if more else self._next_due(began), service.clock.now())

    def _is_due(self, under_way: Sequence[Lane]) -> bool:
        with self._service.store.read() as reader:
            return any(plan.is_due for plan in self._plans(reader, under_way, self._service.clock.now()))

    def _next_due(self, since: datetime) -> datetime | None:
        """When something is due that was not at `since`."""
        with self._service.store.read() as reader:
            found = [reader.subscriptions.next_due(each.id, since) for each in reader.subscriptions.active()]
        return min((moment for moment in found if moment is not None), default=None)

    def _take(self, outcomes: Sequence[Outcome], under_way: Sequence[Lane]) -> tuple[list[Attempt], bool]:
        """Gives what to send now, and whether the journal has more than was taken in."""

        def work(unit: UnitOfWork) -> tuple[list[Attempt], bool]:
            self._record(unit, outcomes)
            found: list[Attempt] = []
            busy = list(under_way)
            more = False
            for plan in self._plans(unit.transaction, busy, unit.now):
                attempts = self._carry_out(unit, plan) if plan.is_due else []
                busy += [attempt.lane for attempt in attempts]
                found += attempts
                more |= len(plan.entries) == PAGE
            return found, more

        return self._service.transact(work)

    def _record(self, unit: UnitOfWork, outcomes: Sequence[Outcome]) -> None:
        """What became of attempts; of those whose subscription was changed meanwhile nothing is known."""
        subscriptions = unit.transaction.subscriptions
        by_subscription = sorted(outcomes, key=lambda outcome: outcome.attempt.subscription.id)
        for key, group in groupby(by_subscription, key=lambda outcome: outcome.attempt.subscription.id):
            known = subscriptions.named(key)
            mine = [each for each in group if known and each.attempt.subscription.claimed_by == known.claimed_by]
            if known is None or not mine:
                continue
            subscriptions.drop_deliveries(key, [each.attempt.delivery.position for each in mine if not each.error])
            failed = [self._failed(each, unit.now) for each in mine if each.error]
            subscriptions.put_deliveries(failed)
            if why := self._reason_to_park(mine, failed, unit.now):
                subscriptions.put(_unclaimed(replace(known, status=SubscriptionState.PARKED, why=why)))
                draft = unit.draft(World(), SYSTEM)
                draft.note("subscription.parked", id=known.id, name=known.name, why=why)
                unit.keep(draft)

    def _failed(self, outcome: Outcome, now: datetime) -> Delivery:
        tried = outcome.attempt.delivery
        due_at = now + self._pauses.after(tried.attempt + 1, outcome.asked)
        since, attempt = tried.tried_since or now, tried.attempt + 1
        return replace(tried, attempt=attempt, tried_since=since, due_at=due_at, error=outcome.error)

    def _reason_to_park(self, outcomes: Sequence[Outcome], failed: Sequence[Delivery], now: datetime) -> str:
        for outcome in outcomes:
            if outcome.gone:
                return f"the receiver does not want any more: {outcome.error}"
        for each in failed:
            if each.tried_since is not None and now - each.tried_since >= self._pauses.patience:
                since = f"{each.tried_since:%Y-%m-%d %H:%M} UTC"
                return f"entry {each.position} was tried {each.attempt} times since {since}, in the end: {each.error}"
        return ""

    def _release_claims(self, unit: UnitOfWork) -> None:
        """Others need not wait for our claims to lapse."""
        self._record(unit, list(self._outcomes))
        for each in unit.transaction.subscriptions.active():
            if self._is_mine(each):
                unit.transaction.subscriptions.put(_unclaimed(each))

    def _plans(self, reader: Reader, under_way: Sequence[Lane], now: datetime) -> Iterator[_Plan]:
        """Of the subscriptions that no other process serves; `under_way` may grow from one to the next."""
        pages: dict[int, list[tuple[int, Entry]]] = {}
        for each in self._limit.in_order(reader.subscriptions.active()):
            if not self._is_mine(each) and each.claimed_until is not None and each.claimed_until > now:
                continue
            if each.position not in pages:
                pages[each.position] = reader.journal.page(after=each.position, limit=PAGE)
            full = bool(pages[each.position]) and reader.subscriptions.count_pending(each.id) >= MOST_PENDING
            busy = {lane for key, lane in under_way if key == each.id}
            spare = SPARE - len(under_way) + len({key for key, _ in under_way})
            room = self._limit.room(each.id, len(busy), spare)
            yield _Plan(
                subscription=each,
                entries=[] if full else pages[each.position],
                busy=busy,
                heads=_heads(reader, each, busy, room, now),
                room=room,
                renew=bool(busy) and (each.claimed_until is None or each.claimed_until - now < CLAIM / 2),
            )

    def _carry_out(self, unit: UnitOfWork, plan: _Plan) -> list[Attempt]:
        before, subscriptions, service = plan.subscription, unit.transaction.subscriptions, self._service
        claimed = replace(
            before,
            position=plan.entries[-1][0] if plan.entries else before.position,
            claimed_by=before.claimed_by if self._is_mine(before) else f"{service.process}/{service.runtime.new_id()}",
            claimed_until=unit.now + CLAIM,
        )
        wanted = messages.EntryFilter(before)
        subscriptions.put_deliveries(
            Delivery(subscription=before.id, position=position, lane=messages.lane(entry), due_at=unit.now)
            for position, entry in plan.entries
            if entry in wanted
        )
        subscriptions.put(claimed)
        heads = _heads(unit.transaction, before, plan.busy, plan.room, unit.now)
        return [Attempt(subscription=claimed, delivery=head) for head in heads]

    def _is_mine(self, subscription: Subscription) -> bool:
        return (subscription.claimed_by or "").startswith(f"{self._service.process}/")

    def _send(self, attempts: Sequence[Attempt]) -> None:
        source = messages.source(self._service)
        with self._service.store.read() as reader:
            entries = [messages.entry_at(reader, attempt.delivery.position) for attempt in attempts]
            world = reader.worlds.load(events=[entry.event for entry in entries if entry and entry.event])
        for attempt, entry in zip(attempts, entries, strict=True):
            if entry is None:
                # Only by a hand in the database: pruning leaves what is undelivered.
                log.warning("An entry is gone before it was delivered", action="delivery.lost", **attempt.facts)
                self._finish(Outcome(attempt=attempt))
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
            response = self._outgoing.notify(attempt.subscription.url, sent.body, sent.headers)
            outcome = _outcome_of(attempt, response, now)
        except OutgoingError as error:
            outcome = Outcome(attempt=attempt, error=error.message)
        except Exception as error:
            log.exception("A delivery failed", action="delivery.broken", **attempt.facts)
            outcome = Outcome(attempt=attempt, error=f"this is a defect: {type(error).__name__}")
        if not (outcome.error and self._loop.stopping.is_set()):
            self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._wake.set()


def _outcome_of(attempt: Attempt, response: Response, now: datetime) -> Outcome:
    if 200 <= response.status < 300:
        return Outcome(attempt=attempt)
    later = response.status in RETRY_LATER
    return Outcome(
        attempt=attempt,
        error=f"it answered {describe_status(response.status)}",
        gone=response.status == GONE,
        asked=retry_after(response.headers.get("retry-after", ""), now) if later else None,
    )


def _heads(
    reader: Reader, subscription: Subscription, busy: Collection[str], room: int, now: datetime
) -> list[Delivery]:
    if room == 0:
        return []
    found = reader.subscriptions.heads(subscription.id, now, room + len(busy))
    return [head for head in found if head.lane not in busy][:room]


def _unclaimed(subscription: Subscription) -> Subscription:
    return replace(subscription, claimed_by=None, claimed_until=None)
