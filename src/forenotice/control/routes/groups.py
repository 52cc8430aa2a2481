"""/v1/groups"""

from forenotice.control import documented, models
from forenotice.control.asking import CallOf, SeenOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import ByName, ScopePattern, needs, router, says
from forenotice.core.fleet import group_key
from forenotice.core.roles import Need
from forenotice.service import fleet, queries

routes = router("groups")


@routes.get("/groups", responses=says(documented.Page[documented.Group]))
@needs(Need.SEE)
def list_groups(service: ServiceOf, seen: SeenOf, page: ByName, name: ScopePattern | None = None) -> Answer:
    return Answer(queries.groups(service, **page, name=name, seen=seen))


@routes.post("/groups", status_code=201, responses=says(documented.AddedGroup, 201))
@needs(Need.MANAGE)
def add_group(service: ServiceOf, call: CallOf, asked: models.NewGroup) -> Answer:
    return Answer(fleet.add_group(service, call, name=asked.name, kind=asked.kind, policy=asked.policy.given()), 201)


@routes.get("/groups/{name}", responses=says(documented.Group))
@needs(Need.SEE)
def show_group(service: ServiceOf, seen: SeenOf, name: models.GroupName) -> Answer:
    return Answer(queries.group(service, name, seen))


@routes.patch("/groups/{name}", responses=says(documented.Group))
@needs(Need.MANAGE)
def change_group(service: ServiceOf, call: CallOf, name: models.GroupName, asked: models.GroupChange) -> Answer:
    return Answer(fleet.set_group(service, call, name, asked.policy.given()))


@routes.delete("/groups/{name}", responses=says(documented.Removed))
@needs(Need.MANAGE)
def remove_group(service: ServiceOf, call: CallOf, name: models.GroupName) -> Answer:
    return Answer(fleet.remove_group(service, call, name))


@routes.patch("/groups/{name}/policy", responses=says(documented.Policy))
@needs(Need.MANAGE)
def change_group_policy(service: ServiceOf, call: CallOf, name: models.GroupName, asked: models.PolicyChange) -> Answer:
    return Answer(fleet.set_policy(service, call, group_key(name), asked.given()))
