"""/v1/fleet: the whole fleet as one document."""

from typing import Annotated, Any

from fastapi import Query

from forenotice.control import documented, examples
from forenotice.control.answers import Answer
from forenotice.control.asking import AskedOf, CallOf, ServiceOf
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
    dry_run: Annotated[bool, Query(description="Only tell the difference.")] = False,
) -> Answer:
    """Make the fleet as the document says, in one transaction."""
    kind = asked.content_type.partition(";")[0].strip().lower()
    if kind not in FORMATS:
        raise errors.RefusedError(f"{kind or 'no type'!r} is not the type of a fleet: send {' or '.join(FORMATS)}")
    document = fleetfile.parse(asked.body, FORMATS[kind])
    return Answer(fleet.apply(service, call, document, prune=prune, dry_run=dry_run))
