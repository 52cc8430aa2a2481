"""/v1/fleet: the whole fleet as one document."""

from typing import Annotated, Any

from fastapi import Query

from forenotice.control import documented, examples
from forenotice.control.asking import Asked, AskedOf, CallOf, ServiceOf
from forenotice.control.expensive import Expensive
from forenotice.control.responses import Answer
from forenotice.control.routing import needs, router, says
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.service import fleet, fleetfile

FORMATS = {"application/json": "json", "application/toml": "toml"}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": examples.FLEET},
            "application/toml": {"schema": {"type": "string"}, "example": examples.FLEET_AS_TOML},
        },
    }
}

routes = router("fleet")


@routes.get("/fleet", responses=says(documented.Fleet))
@needs(Need.OVERSEE)
def export_fleet(service: ServiceOf) -> Answer:
    return Answer(fleetfile.export(service))


@routes.post("/fleet", responses=says(documented.Applied), openapi_extra=BODY)
@needs(Need.MANAGE)
def apply_fleet(
    service: ServiceOf,
    call: CallOf,
    asked: AskedOf,
    prune: Annotated[bool, Query(description="Remove what the document does not name.")] = False,
    move: Annotated[
        bool, Query(description="Record that VMs run where the document says; no driver moves them.")
    ] = False,
    dry_run: Annotated[bool, Query(description="Only tell the difference.")] = False,
) -> Answer:
    """Make the fleet as the document says, in one transaction. VMs that exist stay on their hosts unless `move`."""
    return Answer(fleet.apply(service, call, _document(asked), prune=prune, move=move, dry_run=dry_run))


@routes.post("/fleet/diff", responses=says(documented.Compared), openapi_extra=BODY)
@needs(Need.OVERSEE)
def diff_fleet(service: ServiceOf, asked: AskedOf, _: Expensive) -> Answer:
    """How the fleet differs from the document; nothing is done."""
    return Answer(fleet.diff(service, _document(asked)))


def _document(asked: Asked) -> fleetfile.FleetFile:
    kind = asked.content_type.partition(";")[0].strip().lower()
    if kind not in FORMATS:
        raise errors.RefusedError(f"{kind or 'no type'!r} is not the type of a fleet: send {' or '.join(FORMATS)}")
    return fleetfile.parse(asked.body, FORMATS[kind])
