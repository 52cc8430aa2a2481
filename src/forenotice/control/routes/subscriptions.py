"""/v1/subscriptions"""

from typing import Annotated

from fastapi import Path, Query

from forenotice.control import documented, models
from forenotice.control.asking import AskedOf, CallOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import LIMIT, ByName, Limit, Pattern, needs, router, says
from forenotice.core.roles import Need
from forenotice.delivery import subscriptions

Wanted = Annotated[models.SubscriptionName, Path(description="Its id, or its name.")]

routes = router("subscriptions")


@routes.get("/subscriptions", responses=says(documented.Page[documented.Subscription]))
@needs(Need.OVERSEE)
def list_subscriptions(service: ServiceOf, asked: AskedOf, page: ByName, name: Pattern | None = None) -> Answer:
    return Answer(subscriptions.list_all(service, **page, name=name, access=asked.caller.access))


@routes.post("/subscriptions", status_code=201, responses=says(documented.NewSubscription, 201))
@needs(Need.MANAGE)
def add_subscription(service: ServiceOf, call: CallOf, asked: models.NewSubscription) -> Answer:
    """Push what happens to a receiver, as signed CloudEvents. The secret is shown this once."""
    return Answer(subscriptions.create(service, call, **asked.model_dump()), 201)


@routes.get("/subscriptions/{name}", responses=says(documented.Subscription))
@needs(Need.OVERSEE)
def show_subscription(service: ServiceOf, asked: AskedOf, name: Wanted) -> Answer:
    return Answer(subscriptions.show(service, name, asked.caller.access))


@routes.patch("/subscriptions/{name}", responses=says(documented.Subscription))
@needs(Need.MANAGE)
def change_subscription(service: ServiceOf, call: CallOf, name: Wanted, asked: models.SubscriptionChange) -> Answer:
    return Answer(subscriptions.change(service, call, name, asked.given()))


@routes.delete("/subscriptions/{name}", responses=says(documented.Removed))
@needs(Need.MANAGE)
def remove_subscription(service: ServiceOf, call: CallOf, name: Wanted) -> Answer:
    """With all that it has still to be told."""
    return Answer(subscriptions.remove(service, call, name))


@routes.post("/subscriptions/{name}/resume", responses=says(documented.Subscription))
@needs(Need.MANAGE)
def resume_subscription(service: ServiceOf, call: CallOf, name: Wanted) -> Answer:
    """One that is parked goes on where it was; one that pauses after failures tries at once."""
    return Answer(subscriptions.resume(service, call, name))


@routes.post("/subscriptions/{name}/replay", responses=says(documented.Subscription))
@needs(Need.MANAGE)
def replay_subscription(service: ServiceOf, call: CallOf, name: Wanted, asked: models.Replay) -> Answer:
    """Tell again all that is behind a journal position, under the same ids."""
    return Answer(subscriptions.replay(service, call, name, asked.after))


@routes.post("/subscriptions/{name}/test", responses=says(documented.Tried))
@needs(Need.MANAGE)
def try_subscription(service: ServiceOf, call: CallOf, name: Wanted) -> Answer:
    """Send the receiver one message now, and tell what it says."""
    return Answer(subscriptions.test(service, call, name))


@routes.get("/subscriptions/{name}/deliveries", responses=says(documented.Page[documented.Delivery]))
@needs(Need.OVERSEE)
def list_deliveries(
    service: ServiceOf,
    name: Wanted,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="What `next` was in the page before.")] = 0,
    limit: Limit = LIMIT,
) -> Answer:
    """What it has still to be told, with what went wrong."""
    return Answer(subscriptions.deliveries(service, name, after=after, limit=limit))
