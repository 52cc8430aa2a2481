"""What the outside of a webhook driver tells by itself."""

from notbefore.control import documented, models
from notbefore.control.answers import Answer
from notbefore.control.asking import CallOf, ServiceOf
from notbefore.control.routing import Id, needs, router, says
from notbefore.core.roles import Need
from notbefore.service import answering

routes = router("operations")


@routes.post("/operations/{operation_id}/result", responses=says(documented.Operation))
@needs(Need.MANAGE)
def tell_result(service: ServiceOf, call: CallOf, operation_id: Id, result: models.DriverResult) -> Answer:
    """What became of an attempt, of every VM that it was about. The first answer counts; again, it is the same."""
    told = answering.answer(
        service, call, operation_id, attempt=result.attempt, done=result.done, failures=result.failures
    )
    return Answer(told)
