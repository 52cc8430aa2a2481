"""/events/ID: one event: what is happening, why it waits, who approved, its life; and /operations/ID."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.portal.page import GUESTS_AT, PageRequest, Pages, local
from forenotice.service import maintenance, overview, queries
from forenotice.views import wording
from forenotice.views.maintenance import Event, EventDetail, Operation
from forenotice.wire import versions

ID = re.compile(r"[A-Za-z0-9-]{1,64}")
ENDS = {"Completed": "Done", "Canceled": "Cancelled", "Failed": "Failed"}
EDGE = 10.0
"""Percent that are left on both sides, for the words of the first and the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    name: str
    at: datetime | None
    """None: not known yet."""
    x: float
    past: bool
    since: timedelta | None
    """From the moment before it, where both are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestones:
    points: Sequence[Point]
    now: float | None
    """Where it stands; None: it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    status: str
    announced: datetime
    not_before: datetime
    approved: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None


def _gone(visit: PageRequest, error: errors.NotFoundError) -> Response:
    noun = visit.at.split("/")[1].removesuffix("s")
    return visit.page("event_gone.html", status=404, noun=noun, wanted=visit.path["id"][:64], message=error.message)


pages = Pages(missing=_gone)


@pages.get("/events/{id}", needs=Need.SEE)
def show(visit: PageRequest, status: int = 200, error: str = "") -> Response:
    found = overview.of_event(visit.service, _id(visit), visit.access)
    why = queries.explain_event(visit.service, _id(visit), visit.seen)
    moments = _moments(found)
    return visit.page(
        "event.html",
        status=status,
        error=error,
        why=why,
        life=draw_milestones(moments, visit.now),
        took=_took(moments),
        approvals=found.operation.events,
        curl=_curl(visit, found.event),
        entries=found.entries,
        **_shared(found),
    )


@pages.post("/events/{id}/approve", needs=Need.OPERATE)
def approve(visit: PageRequest) -> Response:
    try:
        event = maintenance.approve(visit.service, visit.call(), _id(visit))
    except errors.ConflictError as error:
        return show(visit, status=409, error=error.message)
    return visit.go(_back(visit), message=f"Approved: {title(event)}.")


@pages.get("/events/{id}/cancel", needs=Need.OPERATE)
def ask_to_cancel(visit: PageRequest) -> Response:
    found = overview.of_event(visit.service, _id(visit), visit.access)
    back = local(visit.query.get("from", ""), f"/events/{found.event.id}")
    return visit.page("event_cancel.html", **_shared(found), back=back)


@pages.post("/events/{id}/cancel", needs=Need.OPERATE)
def cancel(visit: PageRequest) -> Response:
    try:
        operation = maintenance.cancel_event(visit.service, visit.call(), _id(visit))
    except errors.ConflictError as error:
        return show(visit, status=409, error=error.message)
    return visit.go(_back(visit), message=f"Cancelled: {_what(operation)}.")


@pages.get("/events/{id}/approve", needs=Need.SEE)
def to_event(visit: PageRequest) -> Response:
    """The address of an approval that was refused, loaded again."""
    return visit.go(f"/events/{_id(visit).upper()}")


@pages.post("/operations/{id}/cancel", needs=Need.MANAGE)
def cancel_operation(visit: PageRequest) -> Response:
    operation = maintenance.cancel_operation(visit.service, visit.call(), _id(visit))
    return visit.go(f"/operations/{operation.id}", message=f"Cancelled: {_what(operation)}.")


@pages.get("/operations/{id}", needs=Need.SEE)
def show_operation(visit: PageRequest) -> Response:
    """Most have one event, and that says it all."""
    operation = queries.operation(visit.service, _id(visit), visit.seen)
    if len(operation.events) == 1:
        return visit.go(f"/events/{operation.events[0].id}")
    why = queries.explain_operation(visit.service, operation.id, visit.seen)
    what = _what(operation)
    return visit.page(
        "operation.html",
        operation=operation,
        why=why,
        heading=f"{what[:1].upper()}{what[1:]}",
        approvals=operation.events,
        needs_approval=_needs_approval(operation),
        may_cancel=bool(operation.events)
        and overview.of_event(visit.service, operation.events[0].id, visit.access).may_cancel,
    )


def _what(operation: Operation) -> str:
    return f"{wording.kind_of(operation.kind)} of {wording.several(operation.vms)}"


def title(event: Event) -> str:
    return f"{event.type} of {wording.several(event.resources)}"


def _id(visit: PageRequest) -> str:
    wanted = visit.path["id"]
    if not ID.fullmatch(wanted):
        raise errors.NotFoundError("this is not an id")
    return wanted.lower()


def _back(visit: PageRequest) -> str:
    return local(visit.form.get("from", ""), f"/events/{visit.path['id']}")


def _shared(found: EventDetail) -> dict[str, Any]:
    return {
        **{name: getattr(found, name) for name in ("event", "operation", "may_approve", "may_cancel")},
        "told": found.told and json.dumps(found.told, indent=2),
        "heading": title(found.event),
        "kind": wording.kind_of(found.operation.kind),
        "needs_approval": _needs_approval(found.operation),
    }


def _curl(visit: PageRequest, event: Event) -> str:
    """How a guest approves; on a laptop, every VM has an address of its own to speak from."""
    url = f"{visit.portal.guests_at}/metadata/scheduledevents?api-version={versions.NEWEST.name}"
    body = json.dumps({"StartRequests": [{"EventId": event.id}]}, separators=(",", ":"))
    speaking = ""
    if visit.portal.guests_at != GUESTS_AT and event.status == "Scheduled":
        addresses = queries.vm(visit.service, event.resources[0], visit.seen).addresses
        speaking = f"--interface {addresses[0]} " if addresses else ""
    return f"curl {speaking}-H Metadata:true -d '{body}' '{url}'"


def _needs_approval(operation: Operation) -> bool:
    """A failure has started when it is announced."""
    return bool(operation.kind.traits.minimum_notice)


def _moments(found: EventDetail) -> Moments:
    event, started, ended = found.event, found.operation.started_at, found.event.ended_at
    return Moments(
        status=event.status,
        announced=event.created_at,
        not_before=event.not_before,
        approved=event.approved_at,
        # An event may have ended alone, before the rest of its operation started.
        started=started if started and (ended is None or started <= ended) else None,
        ended=ended,
    )


def _took(moments: Moments) -> dict[str, timedelta]:
    """How long everything took, once it is over."""
    if moments.ended is None:
        return {}
    start = moments.started or moments.ended
    found = {"notice": start - moments.announced, "all": moments.ended - moments.announced}
    if moments.approved is not None:
        found["approval"] = max(moments.approved - moments.announced, timedelta(0))
    if moments.started is not None:
        # In whole seconds, as they are shown: so they add up.
        found["work"] = timedelta(seconds=round(found["all"].total_seconds()) - round(found["notice"].total_seconds()))
    return found


# Its milestones, at equal distances on a line


def draw_milestones(moments: Moments, now: datetime) -> Milestones:
    """At equal distances, whatever lies between: seconds are as easy to see as days."""
    # An approved event may have started before NotBefore, which says nothing any more then.
    due = moments.not_before <= min(at for at in (moments.started, moments.ended, now) if at is not None)
    happened = (
        ("Announced", moments.announced),
        ("Approved", moments.approved),
        ("NotBefore", moments.not_before if due else None),
        ("Started", moments.started),
        (ENDS.get(moments.status, "Over"), moments.ended),
    )
    # What happened at one moment stays in the order of a life.
    past = sorted((at, rank, name) for rank, (name, at) in enumerate(happened) if at is not None)
    steps: list[tuple[str, datetime | None]] = [(name, at) for at, _, name in past]
    if moments.ended is None:
        if moments.started is None:
            steps += [("Approval", None)] if moments.approved is None and now < moments.not_before else []
            steps += [] if due else [("NotBefore", moments.not_before)]
            steps.append(("Start", None))
        steps.append(("Done", None))
    width = (100 - 2 * EDGE) / max(len(steps) - 1, 1)
    points: list[Point] = []
    for number, (name, at) in enumerate(steps):
        before = points[-1].at if points else None
        since = at - before if at is not None and before is not None else None
        x = round(EDGE + width * number, 2)
        points.append(Point(name=name, at=at, x=x, past=number < len(past), since=since))
    here, *after = points[len(past) - 1 :]
    return Milestones(points=points, now=_between(here, after[0], now) if after else None)


def _between(here: Point, after: Point, now: datetime) -> float:
    """Where now is: by its share where both moments are known, else in the middle."""
    share = 0.5
    if here.at is not None and after.at is not None and after.at > here.at:
        share = min(max((now - here.at) / (after.at - here.at), 0.1), 0.9)
    return round(here.x + (after.x - here.x) * share, 2)
