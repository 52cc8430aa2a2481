"""/v1/hosts"""

from typing import Annotated

from fastapi import Query

from forenotice.control import documented, models
from forenotice.control.asking import CallOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import ByName, HostPattern, needs, router, says
from forenotice.core.roles import Need
from forenotice.service import fleet, queries

routes = router("hosts")


@routes.get("/hosts", responses=says(documented.Page[documented.Host]))
@needs(Need.OVERSEE)
def list_hosts(
    service: ServiceOf,
    page: ByName,
    name: HostPattern | None = None,
    cordoned: Annotated[bool | None, Query(description="Only those that take no VMs, or only the others.")] = None,
) -> Answer:
    return Answer(queries.hosts(service, **page, name=name, cordoned=cordoned))


@routes.post("/hosts", status_code=201, responses=says(documented.Host, 201))
@needs(Need.MANAGE)
def add_host(service: ServiceOf, call: CallOf, asked: models.NewHost) -> Answer:
    return Answer(fleet.add_host(service, call, **asked.model_dump()), 201)


@routes.get("/hosts/{name}", responses=says(documented.Host))
@needs(Need.OVERSEE)
def show_host(service: ServiceOf, name: models.HostName) -> Answer:
    return Answer(queries.host(service, name))


@routes.patch("/hosts/{name}", responses=says(documented.Host))
@needs(Need.MANAGE)
def change_host(service: ServiceOf, call: CallOf, name: models.HostName, asked: models.HostChange) -> Answer:
    return Answer(fleet.set_host(service, call, name, **asked.given()))


@routes.delete("/hosts/{name}", responses=says(documented.Removed))
@needs(Need.MANAGE)
def remove_host(service: ServiceOf, call: CallOf, name: models.HostName) -> Answer:
    return Answer(fleet.remove_host(service, call, name))
