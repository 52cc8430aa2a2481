"""/hosts/NAME: one host and the VMs on it."""

from urllib.parse import urlencode

from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.portal import subjects
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.subjects import SIGNS
from forenotice.service import fleet, fleet_map, overview, queries

pages = Pages()


@pages.get("/hosts/{name}", needs=Need.OVERSEE)
def show(visit: PageRequest) -> Response:
    after = subjects.after_of(visit)
    try:
        name = subjects.name_of(visit, "host")
        host = queries.host(visit.service, name)
    except errors.NotFoundError as missing:
        return subjects.missing(visit, "host", missing)
    vms = queries.vms(visit.service, host=name, after=after, limit=subjects.VMS)
    return visit.page(
        "host.html",
        host=host,
        heard=subjects.heard(visit, fleet_map.names(visit.service, host=name), None),
        vms=fleet_map.with_states(visit.service, vms["items"]),
        first=after is None,
        next_url=f"/hosts/{name}?{urlencode({'after': vms['next']})}#vms" if vms["next"] else None,
        events=overview.of_host(visit.service, name, visit.access),
        planned=overview.planned(visit.service, visit.access, host=name),
        entries=subjects.lately(visit, {"host": name}),
        actions=subjects.actions(visit, "host"),
        signs=SIGNS,
    )


@pages.post("/hosts/{name}/cordon", needs=Need.MANAGE)
def cordon(visit: PageRequest) -> Response:
    return _set(visit, cordoned=True, said="is cordoned: it takes no further VMs")


@pages.post("/hosts/{name}/uncordon", needs=Need.MANAGE)
def uncordon(visit: PageRequest) -> Response:
    return _set(visit, cordoned=False, said="takes VMs again")


def _set(visit: PageRequest, *, cordoned: bool, said: str) -> Response:
    try:
        name = subjects.name_of(visit, "host")
        fleet.set_host(visit.service, visit.call(), name, cordoned=cordoned)
    except errors.NotFoundError as missing:
        return subjects.missing(visit, "host", missing)
    return visit.go(f"/hosts/{name}", said=f"Host {name} {said}.")
