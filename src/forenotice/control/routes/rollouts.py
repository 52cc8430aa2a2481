"""/v1/rollouts"""

from typing import Annotated

from fastapi import Query

from forenotice.control import documented, documented_rollouts, models
from forenotice.control.asking import AskedOf, CallOf, ServiceOf
from forenotice.control.expensive import Expensive
from forenotice.control.responses import Answer
from forenotice.control.routing import LIMIT, After, Id, Limit, Live, NewestFirst, needs, router, says
from forenotice.core.roles import Need
from forenotice.core.rollouts import RolloutStatus, StopStatus
from forenotice.service import rollouts

routes = router("rollouts")


@routes.get("/rollouts", responses=says(documented.Page[documented_rollouts.ListedRollout]))
@needs(Need.OVERSEE)
def list_rollouts(
    service: ServiceOf,
    asked: AskedOf,
    page: NewestFirst,
    live: Live = None,
    status: Annotated[RolloutStatus | None, Query()] = None,
) -> Answer:
    return Answer(rollouts.page(service, **page, live=live, status=status, access=asked.caller.access))


@routes.post("/rollouts", status_code=201, responses=says(documented_rollouts.Rollout, 201))
@needs(Need.MANAGE)
def start_rollout(service: ServiceOf, call: CallOf, asked: models.NewRollout) -> Answer:
    """Maintenance of many hosts, wave by wave; refused when some budget or window makes it impossible."""
    call = call.because(asked.reason)
    return Answer(rollouts.start(service, call, asked.request(call.reason)), 201)


@routes.post("/rollouts/plan", responses=says(documented_rollouts.RolloutPlan))
@needs(Need.OVERSEE)
def plan_rollout(service: ServiceOf, asked: models.NewRollout, _: Expensive) -> Answer:
    """What it would come to if it were started now; nothing is done."""
    return Answer(rollouts.plan(service, asked.request(asked.reason)))


@routes.get("/rollouts/{rollout_id}", responses=says(documented_rollouts.Rollout))
@needs(Need.OVERSEE)
def show_rollout(service: ServiceOf, asked: AskedOf, rollout_id: Id) -> Answer:
    return Answer(rollouts.show(service, rollout_id, asked.caller.access))


@routes.get("/rollouts/{rollout_id}/hosts", responses=says(documented.Page[documented_rollouts.RolloutHost]))
@needs(Need.OVERSEE)
def list_rollout_hosts(
    service: ServiceOf,
    rollout_id: Id,
    after: After = None,
    limit: Limit = LIMIT,
    status: Annotated[StopStatus | None, Query()] = None,
) -> Answer:
    return Answer(rollouts.hosts(service, rollout_id, after=after, limit=limit, status=status))


@routes.get("/rollouts/{rollout_id}/explanation", responses=says(documented_rollouts.RolloutExplanation))
@needs(Need.OVERSEE)
def explain_rollout(service: ServiceOf, rollout_id: Id) -> Answer:
    """Why it is where it is: its pause, its gate, its windows, whom its operations wait for."""
    return Answer(rollouts.explain(service, rollout_id))


@routes.post("/rollouts/{rollout_id}/pause", responses=says(documented_rollouts.Rollout))
@needs(Need.MANAGE)
def pause_rollout(service: ServiceOf, call: CallOf, rollout_id: Id, asked: models.Because | None = None) -> Answer:
    """Nothing of it starts until it is resumed; what has started goes on to its end."""
    return Answer(rollouts.pause(service, _because(call, asked), rollout_id))


@routes.post("/rollouts/{rollout_id}/resume", responses=says(documented_rollouts.Rollout))
@needs(Need.MANAGE)
def resume_rollout(service: ServiceOf, call: CallOf, rollout_id: Id, asked: models.Resumption | None = None) -> Answer:
    retry = asked is not None and asked.retry
    return Answer(rollouts.resume(service, _because(call, asked), rollout_id, retry=retry))


@routes.post("/rollouts/{rollout_id}/cancel", responses=says(documented_rollouts.Rollout))
@needs(Need.MANAGE)
def cancel_rollout(service: ServiceOf, call: CallOf, rollout_id: Id, asked: models.Because | None = None) -> Answer:
    """What is only Scheduled is cancelled; what has started goes on to its end."""
    return Answer(rollouts.cancel(service, _because(call, asked), rollout_id))


def _because(call: CallOf, asked: models.Because | None) -> CallOf:
    return call if asked is None else call.because(asked.reason)
