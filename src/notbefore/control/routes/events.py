"""/v1/events"""

from typing import Annotated

from fastapi import Query

from notbefore.control import documented, models
from notbefore.control.answers import Answer
from notbefore.control.asking import CallOf, ServiceOf
from notbefore.control.routing import LIMIT, After, Id, Limit, router, says
from notbefore.service import maintenance, queries

routes = router("events")


@routes.get("/events", responses=says(documented.Page[documented.Event]))
def list_events(
    service: ServiceOf,
    after: After = None,
    limit: Limit = LIMIT,
    live: Annotated[bool | None, Query(description="Only those that have not ended, or only those that have.")] = None,
    group: Annotated[models.GroupName | None, Query()] = None,
    vm: Annotated[models.VmName | None, Query(description="Only those that name it.")] = None,
) -> Answer:
    return Answer(queries.events(service, after=after, limit=limit, live=live, group=group, vm=vm))


@routes.get("/events/{event_id}", responses=says(documented.Event))
def show_event(service: ServiceOf, event_id: Id) -> Answer:
    return Answer(queries.event(service, event_id))


@routes.get("/events/{event_id}/explanation", responses=says(documented.EventExplanation))
def explain_event(service: ServiceOf, event_id: Id) -> Answer:
    """Why it waits: for whom, for what, until when."""
    return Answer(queries.explain_event(service, event_id))


@routes.post("/events/{event_id}/approve", responses=says(documented.Event))
def approve_event(service: ServiceOf, call: CallOf, event_id: Id) -> Answer:
    """Approve in place of the event's guests."""
    return Answer(maintenance.approve(service, call, event_id))


@routes.post("/events/{event_id}/cancel", responses=says(documented.Operation))
def cancel_event(service: ServiceOf, call: CallOf, event_id: Id) -> Answer:
    """Cancel the whole operation, while it is Scheduled."""
    return Answer(maintenance.cancel_event(service, call, event_id))
