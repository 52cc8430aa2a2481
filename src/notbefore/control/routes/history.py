"""/v1/history"""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime

from notbefore.control import documented
from notbefore.control.answers import Answer
from notbefore.control.asking import ServiceOf
from notbefore.control.routing import LIMIT, Limit, Word, router, says
from notbefore.service import queries

LAST_POSITION = 2**63 - 1


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is beyond the calendar: give a time of the years 1 to 9999 in UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]

routes = router("history")


@routes.get("/history", responses=says(documented.Page[documented.Entry]))
def list_history(
    service: ServiceOf,
    after: Annotated[
        int | None, Query(ge=0, le=LAST_POSITION, description="What `next` was in the page before.")
    ] = None,
    limit: Limit = LIMIT,
    newest_first: Annotated[bool, Query()] = False,
    action: Annotated[Word | None, Query(description="Such as `event.approved`; `event.` means all of them.")] = None,
    scope: Annotated[Word | None, Query(description="`group:NAME` or `vm:NAME`.")] = None,
    event: Annotated[Word | None, Query()] = None,
    operation: Annotated[Word | None, Query()] = None,
    host: Annotated[Word | None, Query()] = None,
    vm: Annotated[Word | None, Query()] = None,
    by: Annotated[Word | None, Query()] = None,
    since: Annotated[Moment | None, Query()] = None,
    until: Annotated[Moment | None, Query()] = None,
) -> Answer:
    """Everything that happened, from the journal."""
    # Newest first, what follows an entry in the list came before it in time.
    position = {"before": after} if newest_first else {"after": after or 0}
    return Answer(
        queries.history(
            service,
            limit=limit,
            newest_first=newest_first,
            action=action,
            scope=scope,
            event=event if event is None else event.upper(),
            operation=operation,
            host=host,
            vm=vm,
            by=by,
            since=since,
            until=until,
            **position,
        )
    )
