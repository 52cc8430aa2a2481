"""Subscriptions to the journal by webhook, and their deliveries."""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from forenotice.core.journal import SubscriptionState
from forenotice.views import base
from forenotice.views.base import Request, Response, example

MAX_PATTERNS = 50
Receiver = Annotated[base.Url, Meta(examples=["https://hooks.example.com/forenotice"])]
Types = Annotated[list[base.Text], Meta(max_length=MAX_PATTERNS, examples=[["forenotice.event.*"]])]
"""CloudEvents types, in which * stands for anything; empty: all."""
Groups = Annotated[base.LongText, Meta(examples=["web-*,vm:db"])]
"""Whose entries; empty: everybody's, and those that are nobody's."""
Statuses = Annotated[list[base.EventStatus], Meta(max_length=MAX_PATTERNS)]
"""Only entries of events, and of those that are so from then on; empty: everything."""


class Subscription(Response):
    id: str
    name: str
    url: str
    types: list[str]
    groups: str
    statuses: list[base.EventStatus]
    status: SubscriptionState
    why: str
    """Why it is parked; or the last failed delivery, while that is retried."""
    position: int
    """The journal up to here was taken in."""
    pending: int
    """Deliveries of that which are still due."""
    created_at: datetime
    by: str


class CreatedSubscription(Subscription):
    secret: str | None
    """Null when it has been shown before, under the same Idempotency-Key."""


class NewSubscription(Request):
    name: base.Name
    url: Receiver
    types: Types = []
    groups: Groups = ""
    statuses: Statuses = []
    secret: base.Text | None = None
    """Messages are signed with it; null: one is made, and shown this once."""
    after: base.Position | None = None
    """The journal position behind which it begins; null: with what happens from now on."""


class SubscriptionChange(Request):
    """What is left out stays."""

    url: Receiver | UnsetType = UNSET
    types: Types | UnsetType = UNSET
    groups: Groups | UnsetType = UNSET
    statuses: Statuses | UnsetType = UNSET
    secret: base.Text | UnsetType = UNSET


class Replay(Request):
    after: base.Position


class Delivery(Response):
    position: int
    action: str | None
    """Of the entry; null when it is no longer in the history."""
    lane: str
    """The event, or else the operation, whose entries are delivered in order."""
    attempts: int
    tried_since: datetime | None
    due_at: datetime
    error: str


class TestResult(Response):
    """The receiver's response to a test message."""

    __test__ = False  # Not pytest's.

    taken: bool
    status: int | None
    error: str


_SUBSCRIPTION = example(
    Subscription,
    name="pager",
    url="https://hooks.example.com/forenotice",
    types=["forenotice.event.*"],
    groups="web-*",
    statuses=["Started"],
    status=SubscriptionState.ACTIVE,
    position=1234,
)
example(CreatedSubscription, **msgspec.structs.asdict(_SUBSCRIPTION), secret="...")  # noqa: S106
example(NewSubscription, name="pager", url="https://hooks.example.com/forenotice", types=["forenotice.event.*"])
example(SubscriptionChange, groups="web-*", statuses=["Started"])
example(Replay, after=1200)
example(
    Delivery,
    position=1235,
    action="event.started",
    lane=base.EVENT,
    attempts=2,
    tried_since=base.NOW,
    due_at=base.SOON,
    error="the receiver answered 503",
)
example(TestResult, taken=True, status=204)
