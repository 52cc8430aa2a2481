"""One delivery cycle: record what receivers responded, read the journal, decide what to send next."""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import groupby

from forenotice.core import backoff
from forenotice.core.draft import World
from forenotice.core.journal import Entry, SubscriptionState
from forenotice.delivery.messages import EntryFilter, lane
from forenotice.service.calls import SYSTEM
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.subscriptions import Delivery, Subscription
from forenotice.store.transaction import Reader

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    subscription: Subscription
    """As it was claimed."""
    delivery: Delivery

    @property
    def lane(self) -> Lane:
        return self.subscription.id, self.delivery.lane


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
class Cycle:
    attempts: Sequence[Attempt] = ()
    more: bool = False
    """The journal has more than was taken in."""


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


def run(
    service: Service, outcomes: Sequence[Outcome], under_way: Collection[Lane], *, limit: RequestLimit, pauses: Pauses
) -> Cycle:
    """One transaction at most; none when there is nothing to do."""
    for outcome in outcomes:
        limit.record(outcome)
    if not outcomes:
        with service.store.read() as reader:
            if not any(plan.is_due for plan in _plans(service, reader, list(under_way), limit, service.clock.now())):
                return Cycle()

    def work(unit: UnitOfWork) -> Cycle:
        note(unit, outcomes, pauses)
        found: list[Attempt] = []
        busy = list(under_way)
        more = False
        for plan in _plans(service, unit.transaction, busy, limit, unit.now):
            attempts = _carry_out(unit, plan)
            busy += [attempt.lane for attempt in attempts]
            found += attempts
            more |= len(plan.entries) == PAGE
        return Cycle(attempts=found, more=more)

    return service.transact(work)


def note(unit: UnitOfWork, outcomes: Sequence[Outcome], pauses: Pauses) -> None:
    """What became of attempts; of those whose subscription was changed meanwhile nothing is known."""
    by_subscription = sorted(outcomes, key=lambda outcome: outcome.attempt.subscription.id)
    for key, group in groupby(by_subscription, key=lambda outcome: outcome.attempt.subscription.id):
        known = unit.transaction.subscriptions.named(key)
        mine = [each for each in group if known and each.attempt.subscription.claimed_by == known.claimed_by]
        if known is None or not mine:
            continue
        taken = [each.attempt.delivery.position for each in mine if not each.error]
        unit.transaction.subscriptions.drop_deliveries(key, taken)
        failed = [_failed(each, unit.now, pauses) for each in mine if each.error]
        unit.transaction.subscriptions.put_deliveries(failed)
        if why := _reason_to_park(mine, failed, unit.now, pauses):
            _park(unit, known, why)


def next_due(service: Service, since: datetime) -> datetime | None:
    """When something is due that was not at `since`."""
    with service.store.read() as reader:
        found = [reader.subscriptions.next_due(each.id, since) for each in reader.subscriptions.active()]
    return min((moment for moment in found if moment is not None), default=None)


def give_up(service: Service, outcomes: Sequence[Outcome], pauses: Pauses) -> None:
    """Others need not wait for our claims to lapse."""

    def work(unit: UnitOfWork) -> None:
        note(unit, outcomes, pauses)
        for each in unit.transaction.subscriptions.active():
            if _is_mine(service, each):
                unit.transaction.subscriptions.put(replace(each, claimed_by=None, claimed_until=None))

    service.transact(work)


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


def _plans(
    service: Service, reader: Reader, under_way: Sequence[Lane], limit: RequestLimit, now: datetime
) -> Iterator[_Plan]:
    """Of the subscriptions that no other process serves; `under_way` may grow from one to the next."""
    pages: dict[int, list[tuple[int, Entry]]] = {}
    for each in limit.in_order(reader.subscriptions.active()):
        if not _is_mine(service, each) and each.claimed_until is not None and each.claimed_until > now:
            continue
        if each.position not in pages:
            pages[each.position] = reader.journal.page(after=each.position, limit=PAGE)
        full = bool(pages[each.position]) and reader.subscriptions.count_pending(each.id) >= MOST_PENDING
        busy = {lane for key, lane in under_way if key == each.id}
        spare = SPARE - len(under_way) + len({key for key, _ in under_way})
        room = limit.room(each.id, len(busy), spare)
        yield _Plan(
            subscription=each,
            entries=[] if full else pages[each.position],
            busy=busy,
            heads=_heads(reader, each, busy, room, now),
            room=room,
            renew=bool(busy) and (each.claimed_until is None or each.claimed_until - now < CLAIM / 2),
        )


def _heads(
    reader: Reader, subscription: Subscription, busy: Collection[str], room: int, now: datetime
) -> list[Delivery]:
    if room == 0:
        return []
    found = reader.subscriptions.heads(subscription.id, now, room + len(busy))
    return [head for head in found if head.lane not in busy][:room]


def _carry_out(unit: UnitOfWork, plan: _Plan) -> list[Attempt]:
    if not plan.is_due:
        return []
    before, subscriptions = plan.subscription, unit.transaction.subscriptions
    mine = _is_mine(unit.service, before)
    claimed = replace(
        before,
        position=plan.entries[-1][0] if plan.entries else before.position,
        claimed_by=before.claimed_by if mine else f"{unit.service.process}/{unit.service.runtime.new_id()}",
        claimed_until=unit.now + CLAIM,
    )
    wanted = EntryFilter(before)
    subscriptions.put_deliveries(
        Delivery(subscription=before.id, position=position, lane=lane(entry), due_at=unit.now)
        for position, entry in plan.entries
        if entry in wanted
    )
    subscriptions.put(claimed)
    heads = _heads(unit.transaction, before, plan.busy, plan.room, unit.now)
    return [Attempt(subscription=claimed, delivery=head) for head in heads]


def _is_mine(service: Service, subscription: Subscription) -> bool:
    return (subscription.claimed_by or "").startswith(f"{service.process}/")


def _failed(outcome: Outcome, now: datetime, pauses: Pauses) -> Delivery:
    tried = outcome.attempt.delivery
    return replace(
        tried,
        attempt=tried.attempt + 1,
        tried_since=tried.tried_since or now,
        due_at=now + pauses.after(tried.attempt + 1, outcome.asked),
        error=outcome.error,
    )


def _reason_to_park(outcomes: Sequence[Outcome], failed: Sequence[Delivery], now: datetime, pauses: Pauses) -> str:
    for outcome in outcomes:
        if outcome.gone:
            return f"the receiver does not want any more: {outcome.error}"
    for each in failed:
        if each.tried_since is not None and now - each.tried_since >= pauses.patience:
            since = f"{each.tried_since:%Y-%m-%d %H:%M} UTC"
            return f"entry {each.position} was tried {each.attempt} times since {since}, in the end: {each.error}"
    return ""


def _park(unit: UnitOfWork, subscription: Subscription, why: str) -> None:
    parked = replace(subscription, status=SubscriptionState.PARKED, why=why, claimed_by=None, claimed_until=None)
    unit.transaction.subscriptions.put(parked)
    draft = unit.draft(World(), SYSTEM)
    draft.note("subscription.parked", id=parked.id, name=parked.name, why=why)
    unit.keep(draft)
