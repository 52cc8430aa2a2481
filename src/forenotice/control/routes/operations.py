"""/v1/operations"""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Query

from forenotice.control import documented, models
from forenotice.control.asking import CallOf, SeenOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import ByAge, Id, Live, Word, needs, router, says
from forenotice.core.operations import Kind, Status
from forenotice.core.roles import Need
from forenotice.service import maintenance, queries

routes = router("operations")


@routes.get("/operations", responses=says(documented.Page[documented.Operation]))
@needs(Need.SEE)
def list_operations(
    service: ServiceOf,
    seen: SeenOf,
    page: ByAge,
    live: Live = None,
    status: Annotated[Status | None, Query()] = None,
    host: Annotated[models.HostName | None, Query()] = None,
    kind: Annotated[Kind | None, Query()] = None,
    rollout: Annotated[Word | None, Query(description="Only those of a rollout, by its id.")] = None,
) -> Answer:
    filters: dict[str, Any] = {"live": live, "status": status, "host": host, "kind": kind}
    rollout = rollout and rollout.lower()
    return Answer(queries.operations(service, **page, **filters, rollout=rollout, seen=seen))


@routes.post("/operations", status_code=201, responses=says(documented.Operations, 201))
@needs(Need.OPERATE)
def schedule_operations(service: ServiceOf, call: CallOf, asked: models.NewOperation) -> Answer:
    """One operation for each VM (restart, redeploy, eviction, deletion) or host (the others): all of them or none."""
    notice = None if asked.notice_minutes is None else timedelta(minutes=asked.notice_minutes)
    made = maintenance.schedule(service, call, kind=asked.kind, names=asked.names, notice=notice, reason=asked.reason)
    return Answer(made, 201)


@routes.get("/operations/{operation_id}", responses=says(documented.Operation))
@needs(Need.SEE)
def show_operation(service: ServiceOf, seen: SeenOf, operation_id: Id) -> Answer:
    return Answer(queries.operation(service, operation_id, seen))


@routes.get("/operations/{operation_id}/explanation", responses=says(documented.OperationExplanation))
@needs(Need.SEE)
def explain_operation(service: ServiceOf, seen: SeenOf, operation_id: Id) -> Answer:
    """Why it waits: for whom, for what, since when, until when."""
    return Answer(queries.explain_operation(service, operation_id, seen))


@routes.post("/operations/{operation_id}/cancel", responses=says(documented.Operation))
@needs(Need.OPERATE)
def cancel_operation(service: ServiceOf, call: CallOf, operation_id: Id) -> Answer:
    return Answer(maintenance.cancel_operation(service, call, operation_id))
