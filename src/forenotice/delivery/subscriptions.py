"""Operators' commands about subscriptions: which receiver gets which entries, and how its deliveries are doing."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET

from forenotice.core import errors, fleet, selectors
from forenotice.core.draft import World
from forenotice.core.journal import SubscriptionState
from forenotice.core.operations import Status
from forenotice.core.roles import EVERYTHING, Access, Need
from forenotice.delivery import messages
from forenotice.service import views
from forenotice.service.calls import Call, command, recalled
from forenotice.service.service import Service, UnitOfWork
from forenotice.ssrf import OutgoingError, describe_status, origin
from forenotice.store.subscriptions import Subscription, SubscriptionFilter
from forenotice.store.transaction import Reader
from forenotice.views import base
from forenotice.views import subscriptions as shown
from forenotice.views.base import Page, Removed

MOST = 100
"""Each is looked at whenever the journal grows."""
PREFIX = "fns_"
SHORTEST_SECRET, LONGEST_SECRET = 16, 200
Facts = dict[str, object]


class _Fields(TypedDict, total=False):
    """Of a subscription, as an operator has given them."""

    url: str
    types: tuple[str, ...]
    groups: str
    statuses: tuple[str, ...]
    secret: str


def create(service: Service, call: Call, asked: shown.NewSubscription) -> shown.CreatedSubscription:
    name, after = asked.name, asked.after
    fleet.require_name("subscription", name)
    given = _checked(service, asked)
    secret = given.setdefault("secret", PREFIX + secrets.token_urlsafe(32))

    def work(unit: UnitOfWork) -> shown.CreatedSubscription:
        known = unit.transaction.subscriptions
        if (other := known.named(name)) is not None:
            sentence = f"there is already a subscription {name!r}: choose another name"
            raise errors.ConflictError(sentence, name=name, id=other.id, status=other.status)
        if known.count() >= MOST:
            sentence = f"there are {MOST} subscriptions already: remove one that is not needed"
            raise errors.ConflictError(sentence, subscriptions=MOST)
        newest = _newest(unit.transaction)
        made = Subscription(
            id=service.runtime.new_id(),
            name=name,
            status=SubscriptionState.ACTIVE,
            why="",
            position=newest if after is None else _position(after, newest),
            created_at=unit.now,
            by=call.actor,
            **given,
        )
        known.put(made)
        _note(unit, call, "subscription.added", made, **_journal_facts(made))
        return shown.CreatedSubscription(**msgspec.structs.asdict(view(made, 0)), secret=secret)

    return command(service, call, shown.CreatedSubscription, work, shown_once="secret")


def change(service: Service, call: Call, wanted: str, asked: shown.SubscriptionChange) -> shown.Subscription:
    """What is left out stays. What is pending is sent to the new URL, signed with the new secret."""
    given = _checked(service, asked)

    def work(_: UnitOfWork, found: Subscription) -> tuple[Subscription, Facts]:
        changed = replace(found, **given)
        return changed, {"fields": sorted(given), **_journal_facts(changed)}

    return _change(service, call, wanted, "subscription.changed", work)


def remove(service: Service, call: Call, wanted: str) -> Removed:
    def work(unit: UnitOfWork) -> Removed:
        found = _named(unit.transaction, wanted)
        unit.transaction.subscriptions.remove(found.id)
        _note(unit, call, "subscription.removed", found)
        return Removed(removed=found.name)

    return command(service, call, Removed, work)


def resume(service: Service, call: Call, wanted: str) -> shown.Subscription:
    """A parked one goes on where it was; one that pauses after failures tries at once."""

    def work(unit: UnitOfWork, found: Subscription) -> tuple[Subscription, Facts]:
        unit.transaction.subscriptions.retry_deliveries(found.id, unit.now)
        return replace(found, status=SubscriptionState.ACTIVE, why=""), {}

    return _change(service, call, wanted, "subscription.resumed", work)


def replay(service: Service, call: Call, wanted: str, after: int) -> shown.Subscription:
    """Deliver again all that is behind a journal position."""

    def work(unit: UnitOfWork, found: Subscription) -> tuple[Subscription, Facts]:
        position = _position(after, _newest(unit.transaction))
        unit.transaction.subscriptions.drop_deliveries_after(found.id, position)
        return replace(found, position=position), {"after": position}

    return _change(service, call, wanted, "subscription.replayed", work)


def _change(
    service: Service,
    call: Call,
    wanted: str,
    action: str,
    change: Callable[[UnitOfWork, Subscription], tuple[Subscription, Facts]],
) -> shown.Subscription:
    """Without its claim: what is being sent just now no longer counts, and may be sent again."""

    def work(unit: UnitOfWork) -> shown.Subscription:
        changed, facts = change(unit, _named(unit.transaction, wanted))
        changed = replace(changed, claimed_by=None, claimed_until=None)
        unit.transaction.subscriptions.put(changed)
        _note(unit, call, action, changed, **facts)
        return _view(unit.transaction, changed)

    return command(service, call, shown.Subscription, work)


def test(service: Service, call: Call, wanted: str) -> shown.TestResult:
    """Send the receiver one message now, and show its response."""
    now = service.clock.now()
    with service.store.read() as reader:
        known = recalled(reader, call, shown.TestResult, now)
        found = _named(reader, wanted)
    if known is not None:
        return known
    event = messages.test(messages.source(service), found.name, now, service.runtime.new_id())
    message = messages.signed(event, found.secret, service.clock.outside())
    try:
        response = service.outgoing.notify(found.url, message.body, message.headers)
        error = "" if 200 <= response.status < 300 else f"it answered {describe_status(response.status)}"
        result = shown.TestResult(taken=not error, status=response.status, error=error)
    except OutgoingError as failure:
        result = shown.TestResult(taken=False, status=None, error=failure.message)

    def work(unit: UnitOfWork) -> shown.TestResult:
        _note(unit, call, "subscription.tested", found, taken=result.taken, error=result.error)
        return result

    return command(service, call, shown.TestResult, work)


def list_all(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    descending: bool = False,
    name: str | None = None,
    access: Access,
) -> Page[shown.Subscription]:
    wanted = None if name is None else selectors.of_names(name)
    with service.store.read() as reader:
        page = reader.subscriptions.page(after, limit, SubscriptionFilter(name=wanted), descending=descending)
        found = [_view(reader, each, access) for each in page]
    return base.page(found, limit, "name")


def show(service: Service, wanted: str, access: Access) -> shown.Subscription:
    with service.store.read() as reader:
        return _view(reader, _named(reader, wanted), access)


def deliveries(service: Service, wanted: str, *, after: int = 0, limit: int = 100) -> Page[shown.Delivery]:
    """The deliveries that are pending, as far as the journal was taken in."""
    with service.store.read() as reader:
        found = reader.subscriptions.pending(_named(reader, wanted).id, after, limit)
        entries = [messages.entry_at(reader, each.position) for each in found]
    items = [
        views.of(shown.Delivery, each, action=entry and entry.action, attempts=each.attempt)
        for each, entry in zip(found, entries, strict=True)
    ]
    return base.page(items, limit, "position")


def view(subscription: Subscription, pending: int) -> shown.Subscription:
    """Without the secret: it is shown when it is made, and never again."""
    return views.of(shown.Subscription, subscription, pending=pending)


def _view(reader: Reader, subscription: Subscription, access: Access = EVERYTHING) -> shown.Subscription:
    found = view(subscription, reader.subscriptions.count_pending(subscription.id))
    if not access.may(Need.MANAGE):
        # The path and query may hold the receiver's secret.
        found = msgspec.structs.replace(found, url=f"{origin(subscription.url)}/…")
    failed = reader.subscriptions.last_failed(subscription.id)
    if failed is not None and not subscription.why:
        why = f"entry {failed.position} was not taken, try {failed.attempt}: {failed.error}"
        found = msgspec.structs.replace(found, why=why)
    return found


def _checked(service: Service, asked: shown.NewSubscription | shown.SubscriptionChange) -> _Fields:
    given: _Fields = {}
    if asked.url is not UNSET:
        service.outgoing.require(asked.url)
        given["url"] = asked.url
    if asked.types is not UNSET:
        given["types"] = messages.types(asked.types)
    if asked.groups is not UNSET:
        given["groups"] = selectors.of_scopes(asked.groups).text if asked.groups else ""
    if asked.statuses is not UNSET:
        given["statuses"] = tuple(dict.fromkeys(Status(each).value for each in asked.statuses))
    if asked.secret is not UNSET and asked.secret is not None:
        given["secret"] = secret = asked.secret
        if not (secret.isascii() and secret.isprintable() and SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET):
            raise errors.RefusedError(
                f"that is not a secret: give {SHORTEST_SECRET} to {LONGEST_SECRET} printable ASCII characters, or none"
            )
    return given


def _named(reader: Reader, wanted: str) -> Subscription:
    found = reader.subscriptions.named(wanted)
    if found is None:
        raise errors.NotFoundError(f"there is no subscription {wanted!r}", subscription=wanted)
    return found


def _newest(reader: Reader) -> int:
    last = reader.journal.last()
    return last[0] if last else 0


def _position(after: int, newest: int) -> int:
    if after > newest:
        raise errors.ConflictError(f"the journal ends at {newest}: give that or less", newest=newest)
    return after


def _journal_facts(subscription: Subscription) -> Facts:
    """What the journal tells of it; a URL's path may be a secret."""
    return {"types": subscription.types, "groups": subscription.groups, "statuses": subscription.statuses}


def _note(unit: UnitOfWork, call: Call, action: str, subscription: Subscription, **data: Any) -> None:
    draft = unit.draft(World(), call)
    draft.note(action, id=subscription.id, name=subscription.name, **data)
    unit.keep(draft)
