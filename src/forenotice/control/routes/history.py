"""/v1/history"""

from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import StrictBool

from forenotice.control import documented, exporting, models
from forenotice.control.asking import AskedOf, CallOf, SeenOf, ServiceOf, StillAllowed
from forenotice.control.historical import Moment, Position, Wanted
from forenotice.control.responses import Answer
from forenotice.control.routing import LIMIT, Limit, needs, router, says
from forenotice.core.roles import Need
from forenotice.service import history

routes = router("history")


class Prune(models.Request):
    before: Moment
    """At least a day ago."""
    dry_run: StrictBool = False
    """Only count."""


async def _filters(asked: AskedOf, wanted: Annotated[Wanted, Query()]) -> dict[str, Any]:
    return wanted.filters(asked.caller.access)


Filters = Annotated[dict[str, Any], Depends(_filters)]


@routes.get("/history", responses=says(documented.Page[documented.Entry]))
@needs(Need.SEE)
def list_history(
    service: ServiceOf,
    seen: SeenOf,
    filters: Filters,
    after: Annotated[Position | None, Query(description="What `next` was in the page before.")] = None,
    limit: Limit = LIMIT,
    newest_first: Annotated[bool, Query()] = False,
) -> Answer:
    """Everything that happened, from the journal. What is new meanwhile changes no page that follows."""
    return Answer(history.page(service, after=after, limit=limit, newest_first=newest_first, seen=seen, **filters))


@routes.get(
    "/history/export",
    response_class=StreamingResponse,
    responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("application/jsonl", "text/csv")}}},
)
@needs(Need.SEE)
def export_history(
    service: ServiceOf,
    seen: SeenOf,
    is_allowed: StillAllowed,
    filters: Filters,
    form: Annotated[exporting.Format, Query(alias="format")] = exporting.Format.JSONL,
) -> StreamingResponse:
    """All that fits, oldest first, as a stream that ends with what had happened when it was asked for."""
    return exporting.streamed(form, history.everything(service, seen=seen, **filters), is_allowed)


@routes.post("/history/prune", responses=says(documented.Pruned))
@needs(Need.MANAGE)
def prune_history(service: ServiceOf, call: CallOf, asked: Prune) -> Answer:
    """Forget what is older, but nothing live and nothing that a subscription is still to be told.

    It takes at most 20 seconds; unless `complete`, ask again under another key.
    """
    return Answer(history.prune(service, call, before=asked.before, dry_run=asked.dry_run))
