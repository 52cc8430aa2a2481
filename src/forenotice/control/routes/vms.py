"""/v1/vms"""

from typing import Annotated

from fastapi import Query

from forenotice.control import documented, models
from forenotice.control.asking import CallOf, SeenOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import ByName, Pattern, needs, router, says
from forenotice.core.roles import Need
from forenotice.service import fleet, queries

routes = router("vms")


@routes.get("/vms", responses=says(documented.Page[documented.Vm]))
@needs(Need.SEE)
def list_vms(
    service: ServiceOf,
    seen: SeenOf,
    page: ByName,
    name: Pattern | None = None,
    host: Annotated[models.HostName | None, Query()] = None,
    group: Annotated[models.GroupName | None, Query()] = None,
    spot: Annotated[bool | None, Query(description="Only those that may be evicted, or only the others.")] = None,
) -> Answer:
    return Answer(queries.vms(service, **page, name=name, host=host, group=group, spot=spot, seen=seen))


@routes.post("/vms", status_code=201, responses=says(documented.AddedVm, 201))
@needs(Need.MANAGE)
def add_vm(service: ServiceOf, call: CallOf, asked: models.NewVm) -> Answer:
    return Answer(fleet.add_vm(service, call, asked.spec()), 201)


@routes.get("/vms/{name}", responses=says(documented.Vm))
@needs(Need.SEE)
def show_vm(service: ServiceOf, seen: SeenOf, name: models.VmName) -> Answer:
    return Answer(queries.vm(service, name, seen))


@routes.patch("/vms/{name}", responses=says(documented.Vm))
@needs(Need.MANAGE)
def change_vm(service: ServiceOf, call: CallOf, name: models.VmName, asked: models.VmChange) -> Answer:
    return Answer(fleet.set_vm(service, call, name, asked.given()))


@routes.delete("/vms/{name}", responses=says(documented.Removed))
@needs(Need.MANAGE)
def remove_vm(service: ServiceOf, call: CallOf, name: models.VmName) -> Answer:
    return Answer(fleet.remove_vm(service, call, name))


@routes.patch("/vms/{name}/policy", responses=says(documented.Policy))
@needs(Need.MANAGE)
def change_vm_policy(service: ServiceOf, call: CallOf, name: models.VmName, asked: models.PolicyChange) -> Answer:
    return Answer(fleet.set_vm_policy(service, call, name, asked.given()))
