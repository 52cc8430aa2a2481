"""Freezes of this VM: watched for when one is near, and measured when it is over."""

from collections.abc import Iterable
from dataclasses import replace

from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.rules.saga import Saga
from forenotice.agent.sampling import Sampler

NEAR = 30.0
"""Seconds before NotBefore from which on a pause is watched for."""


def watch(live: Iterable[Saga], sampler: Sampler, asked_at: float | None) -> bool:
    """Whether a freeze is near. `asked_at` is when the endpoint was asked for the latest document."""
    near = [
        saga
        for saga in live
        if _is_measurable(saga) and (saga.event.started or saga.approving_at or saga.event.seconds_left < NEAR)
    ]
    if not near:
        sampler.end()
        return False
    sampler.begin()
    if asked_at is not None and not any(saga.event.started or saga.started_at for saga in near):
        sampler.not_yet(asked_at)
    return True


def measured(saga: Saga, sampler: Sampler, log: Log, metrics: Metrics) -> Saga:
    """With the pause that really was, now that the event is gone."""
    if not _is_measurable(saga):
        return saga
    pause = sampler.end()
    if saga.started_at is None and not (pause and pause.seconds):
        return saga
    announced = saga.event.duration_seconds
    told: dict[str, object] = {}
    if pause:
        metrics.froze(pause.seconds, None if announced is None or announced < 0 else announced)
        told = {"seconds": round(pause.seconds, 3), "resolution": pause.resolution, "by": pause.by}
    log.info("A freeze is over", action="freeze.measured", event_id=saga.id, announced_seconds=announced, **told)
    return replace(saga, pause=pause)


def _is_measurable(saga: Saga) -> bool:
    """Not that of another VM: this machine's clocks know nothing of it."""
    return saga.event.type == "Freeze" and saga.is_here and not saga.state.returning
