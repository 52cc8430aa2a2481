"""What the outside of a webhook driver tells by itself."""

from forenotice.control import documented, models
from forenotice.control.answers import Answer
from forenotice.control.asking import AskedOf, CallOf, ServiceOf
from forenotice.control.routing import Id, needs, router, says
from forenotice.core import errors
from forenotice.core.roles import Need
from forenotice.service import answering

routes = router("operations")


@routes.post("/operations/{operation_id}/result", responses=says(documented.Operation))
@needs(Need.MANAGE)
def tell_result(
    service: ServiceOf, asked: AskedOf, call: CallOf, operation_id: Id, result: models.DriverResult
) -> Answer:
    """What became of an attempt, of every VM that it was about. The first answer counts; again, it is the same.

    The token that came with the driver's call is enough for this."""
    if asked.caller.call not in (None, (operation_id, result.attempt)):
        raise errors.ForbiddenError("this token is for the result of another call: give the one that came with this")
    told = answering.answer(
        service, call, operation_id, attempt=result.attempt, done=result.done, failures=result.failures
    )
    return Answer(told)
