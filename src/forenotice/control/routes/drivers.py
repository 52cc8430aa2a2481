"""What the outside of a webhook driver tells by itself."""

from forenotice.control import documented, models
from forenotice.control.asking import AskedOf, CallOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import Id, needs, router, says
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.service import results

routes = router("operations")


@routes.post("/operations/{operation_id}/result", responses=says(documented.Operation))
@needs(Need.MANAGE)
def tell_result(
    service: ServiceOf, asked: AskedOf, call: CallOf, operation_id: Id, result: models.DriverResult
) -> Answer:
    """Report the result of an attempt, for every VM in it. The first report counts; a repetition changes nothing.

    The `result_token` of the driver's call is enough for this."""
    if asked.caller.call not in (None, (operation_id, result.attempt)):
        raise errors.ForbiddenError("this token belongs to another call: give that of the call you report on")
    told = results.record(
        service, call, operation_id, attempt=result.attempt, done=result.done, failures=result.failures
    )
    return Answer(told)
