"""/v1/history"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, StrictBool

from notbefore.control import documented, exporting, models
from notbefore.control.answers import Answer
from notbefore.control.asking import AskedOf, CallOf, SeenOf, ServiceOf, StillAllowed
from notbefore.control.routing import LIMIT, Limit, Word, needs, router, says
from notbefore.core import errors
from notbefore.core.journal import OF_TOKENS
from notbefore.core.roles import Need
from notbefore.service import history, pruning
from notbefore.service.calls import View

LAST_POSITION = 2**63 - 1
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is beyond the calendar: give a time of the years 1 to 9999 in UTC") from None


def _written(value: object) -> object:
    """As in RFC 3339, and not a number, which would be taken for seconds since 1970."""
    if not isinstance(value, str) or not DATE.match(value):
        raise ValueError("is not a time: write one such as 2026-01-31T12:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_in_utc)]

routes = router("history")


class Prune(models.Request):
    before: Moment
    """At least a day ago."""
    dry_run: StrictBool = False
    """Only count."""


async def _filters(
    asked: AskedOf,
    action: Annotated[Word | None, Query(description="Such as `event.approved`; `event.` means all of them.")] = None,
    scope: Annotated[Word | None, Query(description="`group:NAME` or `vm:NAME`.")] = None,
    event: Annotated[Word | None, Query()] = None,
    operation: Annotated[Word | None, Query()] = None,
    rollout: Annotated[Word | None, Query()] = None,
    host: Annotated[Word | None, Query()] = None,
    vm: Annotated[
        Word | None, Query(description="What names it, and what is of the events and operations that named it.")
    ] = None,
    by: Annotated[Word | None, Query(description="Who did it, such as `operator:admin`.")] = None,
    since: Annotated[Moment | None, Query(description="From this moment on.")] = None,
    until: Annotated[Moment | None, Query(description="Before this moment.")] = None,
) -> dict[str, Any]:
    return {
        "action": action,
        "scope": scope,
        "event": event,
        "operation": operation and operation.lower(),
        "rollout": rollout and rollout.lower(),
        "host": host,
        "vm": vm,
        "by": by,
        "since": since,
        "until": until,
        "without": None if asked.caller.access.may(Need.ADMINISTER) else OF_TOKENS,
    }


Filters = Annotated[dict[str, Any], Depends(_filters)]


@routes.get("/history", responses=says(documented.Page[documented.Entry]))
@needs(Need.SEE)
def list_history(
    service: ServiceOf,
    seen: SeenOf,
    filters: Filters,
    after: Annotated[
        int | None, Query(ge=0, le=LAST_POSITION, description="What `next` was in the page before.")
    ] = None,
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
    kind, render = exporting.RENDERINGS[form]
    pages = history.everything(service, seen=seen, **filters)
    # What goes wrong at once is answered as everywhere; what goes wrong later breaks the stream off.
    first = next(pages, [])
    rest = _while_allowed(pages, is_allowed)
    name = f'attachment; filename="history.{form}"'
    return StreamingResponse(render(chain([first], rest)), media_type=kind, headers={"Content-Disposition": name})


def _while_allowed(pages: Iterator[list[View]], is_allowed: Callable[[], bool]) -> Iterator[list[View]]:
    for page in pages:
        if not is_allowed():
            raise errors.UnauthorizedError
        yield page


@routes.post("/history/prune", responses=says(documented.Pruned))
@needs(Need.MANAGE)
def prune_history(service: ServiceOf, call: CallOf, asked: Prune) -> Answer:
    """Forget what is older, but nothing live and nothing that a subscription is still to be told.

    It takes at most 20 seconds; unless `complete`, ask again under another key.
    """
    return Answer(pruning.prune(service, call, before=asked.before, dry_run=asked.dry_run))
