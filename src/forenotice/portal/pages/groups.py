"""/groups/NAME: one group, whose VMs share a document and a policy."""

from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.control.responses import status_of
from forenotice.core import errors
from forenotice.core.fleet import group_key
from forenotice.core.roles import Need
from forenotice.portal import policy_form, subjects
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.policy_form import Fields
from forenotice.portal.subjects import SIGNS
from forenotice.service import fleet, fleet_map, overview, queries

pages = Pages()


@pages.get("/groups/{name}", needs=Need.SEE)
def show(visit: PageRequest) -> Response:
    return _page(visit)


@pages.get("/groups/{name}/policy", needs=Need.SEE)
def show_policy(visit: PageRequest) -> Response:
    try:
        return visit.go(f"/groups/{subjects.name_of(visit, 'group')}#policy")
    except errors.NotFoundError as error:
        return subjects.missing(visit, "group", error)


@pages.post("/groups/{name}/policy", needs=Need.MANAGE)
def change_policy(visit: PageRequest) -> Response:
    sent = policy_form.given(visit)
    try:
        name = subjects.name_of(visit, "group")
        fleet.set_policy(visit.service, visit.call(), group_key(name), policy_form.asked(visit, sent, grouped=True))
    except errors.NotFoundError as error:
        return subjects.missing(visit, "group", error)
    except (errors.RefusedError, errors.ConflictError) as error:
        return _page(visit, sent, error)
    return visit.go(f"/groups/{name}", said=f"The policy of group {name} is changed.")


def _page(visit: PageRequest, sent: Fields | None = None, error: errors.ForenoticeError | None = None) -> Response:
    after = subjects.after_of(visit)
    try:
        name = subjects.name_of(visit, "group")
        group = queries.group(visit.service, name, visit.seen)
        vms = queries.vms(visit.service, group=name, after=after, limit=subjects.VMS, seen=visit.seen)
        events = overview.of_group(visit.service, name, visit.access)
    except errors.NotFoundError as missing:
        return subjects.missing(visit, "group", missing)
    return visit.page(
        "group.html",
        status=status_of(error) if error else 200,
        group=group,
        heard=subjects.heard(visit, fleet_map.names(visit.service, scope=group_key(name)), group["last_heard"]),
        vms=fleet_map.with_states(visit.service, vms["items"]),
        first=after is None,
        next_url=f"/groups/{name}?{urlencode({'after': vms['next']})}#vms" if vms["next"] else None,
        events=events,
        entries=subjects.lately(visit, {"scope": group_key(name)}),
        **policy_form.form(group["policy"], sent, error),
        signs=SIGNS,
    )
