"""/act: do something to VMs or hosts, after a look at what comes of it."""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from forenotice.control.responses import status_of
from forenotice.core import errors, roles
from forenotice.core.roles import Need
from forenotice.core.timing import SILENCE
from forenotice.portal import preview, renderer
from forenotice.portal.actions import ACTIONS, Action
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import maintenance, queries
from forenotice.views import maintenance as views
from forenotice.views import wording
from forenotice.views.base import YEAR_MINUTES

SUGGESTED = 50
FIELDS = ("kind", "name", "notice", "reason")

pages = Pages()


@pages.get("/act", needs=Need.OPERATE)
def show(visit: PageRequest) -> Response:
    given = {field: visit.query.get(field, "").strip() for field in FIELDS}
    given["name"] = ", ".join(name.strip() for name in visit.query.getlist("name") if name.strip())
    if not (given["kind"] and given["name"]):
        return _shown(visit, given)
    try:
        asked = _asked(visit, given)
        found = maintenance.preview(
            visit.service, visit.call(), kind=asked.kind, names=asked.names, notice=_notice(asked)
        )
    except (errors.RefusedError, errors.ConflictError, errors.NotFoundError) as error:
        # The page itself is in order: it tells that this would be refused.
        return _shown(visit, given, refused=error.message, already=_already(visit, given, error))
    return _shown(visit, given, preview=_told(asked, found))


@pages.post("/act", needs=Need.OPERATE)
def act(visit: PageRequest) -> Response:
    given = {field: visit.form.get(field, "").strip() for field in FIELDS}
    try:
        asked = _asked(visit, given)
        made = maintenance.schedule(
            visit.service, visit.call(), kind=asked.kind, names=asked.names, notice=_notice(asked)
        ).operations
    except (errors.RefusedError, errors.ConflictError, errors.NotFoundError) as error:
        return _shown(visit, given, refused=error.message, status=status_of(error))
    path = _page_of(made[0]) if len(made) == 1 else "/"
    return visit.go(path, message=_done(ACTIONS[asked.kind], asked.names, made))


def _page_of(operation: views.Operation) -> str:
    events = operation.events
    return f"/events/{events[0].id}" if len(events) == 1 else f"/operations/{operation.id}"


def _already(visit: PageRequest, given: dict[str, str], error: errors.ForenoticeError) -> views.Operation | None:
    """The same, where it is announced: somebody who confirmed it and went back here has done nothing wrong."""
    known = error.facts.get("operation")
    if known is None:
        return None
    try:
        operation = queries.operation(visit.service, str(known), visit.seen)
    except errors.NotFoundError:
        return None
    same = operation.kind == given["kind"] and given["name"] in (*operation.vms, operation.host)
    return operation if same else None


def _asked(visit: PageRequest, given: dict[str, str]) -> views.NewOperation:
    names = [name.strip() for name in given["name"].split(",") if name.strip()]
    values: dict[str, Any] = {"kind": given["kind"], "names": names}
    if given["notice"]:
        values["notice_minutes"] = _minutes(given["notice"])
    return visit.asked(views.NewOperation, values)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 <= minutes <= YEAR_MINUTES:
        raise errors.RefusedError(
            f"a notice of {text[:20]!r} is not a number of minutes from 0 to {YEAR_MINUTES}: "
            "give one such as 20, or leave it out"
        )
    return minutes


def _notice(asked: views.NewOperation) -> timedelta | None:
    return None if asked.notice_minutes is None else timedelta(minutes=asked.notice_minutes)


def _told(asked: views.NewOperation, found: views.Preview) -> dict[str, Any]:
    operations = found.operations
    names = [each.host if asked.kind.traits.of_host else each.vms[0] for each in operations]
    shown = operations[: preview.MOST_OPERATIONS]
    return {
        "at": found.at,
        "names": names,
        "previews": [
            preview.of(operation, name, found.at, SILENCE) for name, operation in zip(names, shown, strict=False)
        ],
        "more": len(operations) - len(shown),
        "besides": preview.besides(found),
        "announced": any(operation.events for operation in operations),
        "can_be_cancelled": any(operation.status != "Started" for operation in operations),
    }


def _shown(
    visit: PageRequest,
    given: dict[str, str],
    *,
    preview: dict[str, Any] | None = None,
    refused: str = "",
    already: views.Operation | None = None,
    status: int = 200,
) -> Response:
    actions = [action for action in ACTIONS.values() if visit.may(roles.need_of(action.kind))]
    action = next((action for action in actions if action.kind == given["kind"]), None)
    # Whoever confirms does it to the hosts that were shown, not to others that fit a selector by then.
    names = preview["names"] if preview else [name.strip() for name in given["name"].split(",") if name.strip()]
    return visit.page(
        "act.html",
        status=status,
        actions=actions,
        action=action,
        given=given,
        names=names,
        what=f"{action.verb} {wording.several(names)}" if action and names else "",
        suggestions=_suggestions(visit, action),
        preview=preview,
        refused=refused,
        already=already,
        already_at=_page_of(already) if already else "",
        empty=not queries.vms(visit.service, limit=1, seen=visit.seen).items,
        timing=visit.service.timing,
    )


def _suggestions(visit: PageRequest, action: Action | None) -> list[tuple[str, str]]:
    """Names that can be typed, each with what it is."""
    found: list[tuple[str, str]] = []
    if action is None or action.noun == "VM":
        vms = queries.vms(visit.service, limit=SUGGESTED, seen=visit.seen).items
        found += [(vm.name, f"VM of group {vm.group}" if vm.group else "VM") for vm in vms]
    if visit.may(Need.MANAGE) and (action is None or action.noun == "host"):
        found = found[: SUGGESTED // 2] if action is None else found
        hosts = queries.hosts(visit.service, limit=SUGGESTED - len(found)).items
        found += [(host.name, "host") for host in hosts]
    return found


def _done(action: Action, names: list[str], made: Sequence[views.Operation]) -> str:
    what = f"{action.verb} {wording.several(names)}"
    if len(made) > 1:
        return f"{what}: {len(made)} operations are made."
    (operation,) = made
    if operation.status == "Started":
        return f"{what}: it has started. Nobody is waited for."
    if operation.announce_at:
        return f"{what}: it is planned. Guests are told at {renderer.utc(operation.announce_at)}."
    return f"{what}: it is announced."
