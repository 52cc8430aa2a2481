"""/v1/events"""

from typing import Annotated, Any

from fastapi import Query

from forenotice.control import documented, models
from forenotice.control.asking import CallOf, SeenOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import ByAge, Id, Live, needs, router, says
from forenotice.core.operations import EventType, Status
from forenotice.core.roles import Need
from forenotice.service import maintenance, queries

routes = router("events")


@routes.get("/events", responses=says(documented.Page[documented.Event]))
@needs(Need.SEE)
def list_events(
    service: ServiceOf,
    seen: SeenOf,
    page: ByAge,
    live: Live = None,
    status: Annotated[models.EventStatus | None, Query()] = None,
    event_type: Annotated[EventType | None, Query(alias="type")] = None,
    group: Annotated[models.GroupName | None, Query()] = None,
    vm: Annotated[models.VmName | None, Query(description="Only those that name it.")] = None,
) -> Answer:
    filters: dict[str, Any] = {"live": live, "event_type": event_type, "group": group, "vm": vm}
    filters["status"] = status and Status(status)
    return Answer(queries.events(service, **page, **filters, seen=seen))


@routes.get("/events/{event_id}", responses=says(documented.Event))
@needs(Need.SEE)
def show_event(service: ServiceOf, seen: SeenOf, event_id: Id) -> Answer:
    return Answer(queries.event(service, event_id, seen))


@routes.get("/events/{event_id}/explanation", responses=says(documented.EventExplanation))
@needs(Need.SEE)
def explain_event(service: ServiceOf, seen: SeenOf, event_id: Id) -> Answer:
    """Why it waits: for whom, for what, until when."""
    return Answer(queries.explain_event(service, event_id, seen))


@routes.post("/events/{event_id}/approve", responses=says(documented.Event))
@needs(Need.OPERATE)
def approve_event(service: ServiceOf, call: CallOf, event_id: Id) -> Answer:
    """Approve in place of the event's guests."""
    return Answer(maintenance.approve(service, call, event_id))


@routes.post("/events/{event_id}/cancel", responses=says(documented.Operation))
@needs(Need.OPERATE)
def cancel_event(service: ServiceOf, call: CallOf, event_id: Id) -> Answer:
    """Cancel the whole operation, while it is Scheduled."""
    return Answer(maintenance.cancel_event(service, call, event_id))
