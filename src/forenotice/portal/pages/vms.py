"""/vms/NAME: one VM."""

import msgspec
from starlette.responses import Response

from forenotice.control.responses import status_of
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.core.roles import Need
from forenotice.portal import policy_form, subjects
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.policy_form import Fields
from forenotice.portal.subjects import MEANINGS, SIGNS
from forenotice.service import fleet, fleet_map, overview, queries

pages = Pages()


@pages.get("/vms/{name}", needs=Need.SEE)
def show(visit: PageRequest) -> Response:
    return _page(visit)


@pages.get("/vms/{name}/document", needs=Need.SEE)
def show_document(visit: PageRequest) -> Response:
    """The bytes as the guest has them."""
    try:
        found = queries.document(visit.service, subjects.name_of(visit, "VM"), _version(visit), visit.seen)
    except errors.NotFoundError as error:
        return subjects.missing(visit, "VM", error)
    return Response(found, media_type="application/json")


@pages.get("/vms/{name}/policy", needs=Need.SEE)
def show_policy(visit: PageRequest) -> Response:
    try:
        return visit.go(f"/vms/{subjects.name_of(visit, 'VM')}#policy")
    except errors.NotFoundError as error:
        return subjects.missing(visit, "VM", error)


@pages.post("/vms/{name}/policy", needs=Need.MANAGE)
def change_policy(visit: PageRequest) -> Response:
    sent = policy_form.given(visit)
    try:
        name = subjects.name_of(visit, "VM")
        fleet.set_vm_policy(visit.service, visit.call(), name, policy_form.asked(visit, sent, grouped=False))
    except errors.NotFoundError as error:
        return subjects.missing(visit, "VM", error)
    except (errors.RefusedError, errors.ConflictError) as error:
        return _page(visit, sent, error)
    return visit.go(f"/vms/{name}", said=f"The policy of VM {name} is changed.")


def _version(visit: PageRequest) -> str:
    return visit.query.get("api-version") or queries.VERSIONS[0]


def _page(visit: PageRequest, sent: Fields | None = None, error: errors.ForenoticeError | None = None) -> Response:
    version = _version(visit)
    try:
        name = subjects.name_of(visit, "VM")
        [vm] = fleet_map.with_states(visit.service, [queries.vm(visit.service, name, visit.seen)])
        document = queries.document(visit.service, name, version, visit.seen)
        events = overview.of_vm(visit.service, name, visit.access)
    except errors.NotFoundError as missing:
        return subjects.missing(visit, "VM", missing)
    return visit.page(
        "vm.html",
        status=status_of(error) if error else 200,
        vm=vm,
        polled=visit.portal.polled(name),
        heard=subjects.heard(visit, fleet_map.names(visit.service, scope=vm["scope"]), vm["last_heard"]),
        events=events,
        planned=overview.planned(visit.service, visit.access, host=vm["host"]),
        entries=subjects.lately(visit, {"vm": name}, *([] if vm["group"] else [{"scope": vm["scope"]}])),
        actions=[action for action in subjects.actions(visit, "VM") if vm["spot"] or action.kind is not Kind.EVICTION],
        document=msgspec.json.format(document, indent=2).decode(),
        version=version,
        versions=queries.VERSIONS,
        **policy_form.form(vm["policy"], sent, error),
        signs=SIGNS,
        meanings=MEANINGS,
    )
