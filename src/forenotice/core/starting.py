"""When an operation starts: whole or not at all."""

from dataclasses import replace
from datetime import datetime, timedelta

from forenotice.core import placement
from forenotice.core.draft import Draft
from forenotice.core.obstacles import Obstacle, ObstacleKind, obstacles
from forenotice.core.operations import Operation, Status

RECHECK = timedelta(seconds=60)
"""What is held is looked at when something ends or changes; and, lest that be missed, this often."""

TRACKED = frozenset(
    {ObstacleKind.APPROVAL, ObstacleKind.NOTICE, ObstacleKind.CLOCK, ObstacleKind.START_UP, ObstacleKind.WINDOW}
)
"""Obstacles that go by themselves at a known time, or by an approval that says so."""


def start_or_hold(draft: Draft, operation: Operation, expiry_from: datetime) -> list[Obstacle]:
    """Start a Scheduled operation if nothing is in the way; otherwise say what is, and when to look again."""
    found = obstacles(draft, operation, expiry_from)
    if not found:
        start(draft, operation)
        return found
    known = [obstacle.until for obstacle in found if obstacle.until is not None]
    held = any(obstacle.kind not in TRACKED or obstacle.until is None for obstacle in found)
    again = min([*known, draft.now + RECHECK]) if held else max(known)
    if operation.held != held:
        draft.note(
            "operation.held" if held else "operation.waiting",
            operation=operation.id,
            host=operation.host,
            rollout=operation.rollout,
            because=[obstacle.kind for obstacle in found],
        )
    draft.put_operation(replace(operation, due_at=again, held=held))
    return found


def start(draft: Draft, operation: Operation) -> None:
    targets = placement.choose(draft, operation, operation.vms) if operation.kind.traits.moves else {}
    draft.put_operation(
        replace(
            operation,
            status=Status.STARTED,
            started_at=draft.now,
            due_at=draft.now,
            held=False,
            targets=targets,
        )
    )
    draft.note(
        "operation.started",
        operation=operation.id,
        host=operation.host,
        rollout=operation.rollout,
        targets=dict(targets),
    )
    for event in draft.live_events_of(operation.id):
        draft.put_event(replace(event, status=Status.STARTED))
        draft.note("event.started", scope=event.scope, event=event.id, operation=operation.id, host=operation.host)
