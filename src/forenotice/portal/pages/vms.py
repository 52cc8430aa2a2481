"""/vms/NAME: one VM."""

import msgspec
from starlette.responses import Response

from forenotice.control.answers import status_of
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.core.roles import Need
from forenotice.portal import policies, subjects
from forenotice.portal.paths import Pages
from forenotice.portal.policies import Fields
from forenotice.portal.signs import MEANINGS, SIGNS
from forenotice.portal.visiting import Visit
from forenotice.service import concerning, documents, fleet, fleet_map, queries

pages = Pages()


@pages.get("/vms/{name}", needs=Need.SEE)
def show(visit: Visit) -> Response:
    return _page(visit)


@pages.get("/vms/{name}/document", needs=Need.SEE)
def show_document(visit: Visit) -> Response:
    """The bytes as the guest has them."""
    try:
        found = documents.document(visit.service, subjects.name_of(visit, "VM"), _version(visit), visit.seen)
    except errors.NotFoundError as error:
        return subjects.missing(visit, "VM", error)
    return Response(found, media_type="application/json")


@pages.get("/vms/{name}/policy", needs=Need.SEE)
def show_policy(visit: Visit) -> Response:
    try:
        return visit.go(f"/vms/{subjects.name_of(visit, 'VM')}#policy")
    except errors.NotFoundError as error:
        return subjects.missing(visit, "VM", error)


@pages.post("/vms/{name}/policy", needs=Need.MANAGE)
def change_policy(visit: Visit) -> Response:
    sent = policies.given(visit)
    try:
        name = subjects.name_of(visit, "VM")
        fleet.set_vm_policy(visit.service, visit.call(), name, policies.asked(visit, sent, grouped=False))
    except errors.NotFoundError as error:
        return subjects.missing(visit, "VM", error)
    except (errors.RefusedError, errors.ConflictError) as error:
        return _page(visit, sent, error)
    return visit.go(f"/vms/{name}", said=f"The policy of VM {name} is changed.")


def _version(visit: Visit) -> str:
    return visit.query.get("api-version") or documents.VERSIONS[0]


def _page(visit: Visit, sent: Fields | None = None, error: errors.ForenoticeError | None = None) -> Response:
    version = _version(visit)
    try:
        name = subjects.name_of(visit, "VM")
        [vm] = fleet_map.with_states(visit.service, [queries.vm(visit.service, name, visit.seen)])
        document = documents.document(visit.service, name, version, visit.seen)
        events = concerning.vm(visit.service, name, visit.access)
    except errors.NotFoundError as missing:
        return subjects.missing(visit, "VM", missing)
    return visit.page(
        "vm.html",
        status=status_of(error) if error else 200,
        vm=vm,
        polled=visit.house.polled(name),
        heard=subjects.heard(visit, fleet_map.names(visit.service, scope=vm["scope"]), vm["last_heard"]),
        events=events,
        planned=concerning.planned(visit.service, visit.access, host=vm["host"]),
        entries=subjects.lately(visit, {"vm": name}, *([] if vm["group"] else [{"scope": vm["scope"]}])),
        deeds=[deed for deed in subjects.deeds(visit, "VM") if vm["spot"] or deed.kind is not Kind.EVICTION],
        document=msgspec.json.format(document, indent=2).decode(),
        version=version,
        versions=documents.VERSIONS,
        **policies.form(vm["policy"], sent, error),
        signs=SIGNS,
        meanings=MEANINGS,
    )
