"""What the outside of a webhook driver tells by itself."""

from forenotice.control import documented, models
from forenotice.control.answers import Answer
from forenotice.control.asking import CallOf, ServiceOf
from forenotice.control.routing import Id, needs, router, says
from forenotice.core.roles import Need
from forenotice.service import answering

routes = router("operations")


@routes.post("/operations/{operation_id}/result", responses=says(documented.Operation))
@needs(Need.MANAGE)
def tell_result(service: ServiceOf, call: CallOf, operation_id: Id, result: models.DriverResult) -> Answer:
    """What became of an attempt, of every VM that it was about. The first answer counts; again, it is the same."""
    told = answering.answer(
        service, call, operation_id, attempt=result.attempt, done=result.done, failures=result.failures
    )
    return Answer(told)
