"""Why an event waits: for whom, for what, until when; in sentences and as facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from notbefore.core.draft import Draft, names
from notbefore.core.obstacles import Obstacle, ObstacleKind, obstacles
from notbefore.core.operations import Event, Operation, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    event: str
    sentence: str
    until: datetime | None
    """When the wait is over at the latest; None: nobody knows, or it does not wait."""
    waiting_for: tuple[Mapping[str, object], ...] = ()


def explain(draft: Draft, event: Event, expiry_from: datetime) -> Explanation:
    operation = draft.operation(event.operation)
    if event.status is Status.SCHEDULED:
        return _of_scheduled(draft, event, obstacles(draft, operation, expiry_from))
    if event.status is Status.STARTED:
        return _of_started(draft, event, operation)
    return Explanation(event=event.id, sentence=f"It is over: {event.status} at {_moment(event.ended_at)}.", until=None)


def _of_scheduled(draft: Draft, event: Event, found: list[Obstacle]) -> Explanation:
    if not found:
        return Explanation(event=event.id, sentence="Nothing is in the way: it starts now.", until=draft.now)
    ends = [obstacle.until for obstacle in found if obstacle.until is not None]
    return Explanation(
        event=event.id,
        sentence=" ".join(_sentences(draft, found)),
        until=max(ends) if len(ends) == len(found) else None,
        waiting_for=tuple(_facts(draft, obstacle) for obstacle in found),
    )


def _of_started(draft: Draft, event: Event, operation: Operation) -> Explanation:
    remaining = [name for name in operation.vms if name not in operation.done]
    homeless = [name for name in remaining if operation.kind.traits.moves and name not in operation.targets]
    driven = [name for name in remaining if name not in homeless]
    sentences: list[str] = []
    waiting: list[Mapping[str, object]] = []
    if homeless:
        sentences.append(f"It has started, but no host can take {names(homeless)}: add or uncordon one.")
        waiting += [{"kind": ObstacleKind.TARGET_HOST.value, "vm": name} for name in homeless]
    if driven and operation.attempt < draft.timing.retries.tries:
        sentences.append(_driven(draft, operation))
        waiting.append(
            {
                "kind": "driver",
                "vms": driven,
                "attempt": operation.attempt + 1,
                "since": operation.started_at,
                "failures": dict(operation.failures),
            }
        )
    if not waiting:
        sentences.append(f"It has {'failed' if remaining else 'been carried out'} and ends in a moment.")
    return Explanation(event=event.id, sentence=" ".join(sentences), until=None, waiting_for=tuple(waiting))


def _driven(draft: Draft, operation: Operation) -> str:
    """What the driver is doing: the first try, a later one, or the pause before it."""
    number = f"try {operation.attempt + 1} of {draft.timing.retries.tries}"
    if not operation.failures:
        # Also after a failed try: a VM that is served since, while another was turned away by its new host's failure.
        return f"It is being carried out since {_moment(operation.started_at)}, {number}."
    because = names(f"{name} ({reason})" for name, reason in operation.failures.items())
    pausing = operation.due_at is not None and operation.due_at > draft.now
    now = f"{number} is at {_moment(operation.due_at)}" if pausing else f"{number} is under way"
    return f"The driver failed for {because}; {now}."


def _sentences(draft: Draft, found: list[Obstacle]) -> list[str]:
    awaited = [obstacle for obstacle in found if obstacle.kind is ObstacleKind.APPROVAL]
    said: dict[str, None] = {}
    if awaited:
        who = names(_who(draft, obstacle.event or "") for obstacle in awaited)
        said[f"It waits for approval by {who}, until {_moment(awaited[0].until)} at the latest."] = None
    for obstacle in found:
        if obstacle.kind is not ObstacleKind.APPROVAL:
            said[_sentence(draft, obstacle)] = None
    return list(said)


def _sentence(draft: Draft, obstacle: Obstacle) -> str:
    until = _moment(obstacle.until)
    other = _who(draft, obstacle.event or "")
    return {
        ObstacleKind.NOTICE: f"Somebody does not listen, so it keeps its full notice, until {until}.",
        ObstacleKind.START_UP: (
            f"Its time has come, but guests may not have seen it since the service started: it waits until {until}."
        ),
        ObstacleKind.UPDATE_DOMAIN: (
            f"Another update domain is out: it waits until event {obstacle.event} on {other} has ended."
        ),
        ObstacleKind.VM_BUSY: _busy(draft, obstacle),
        ObstacleKind.EARLIER_DELETION: (
            f"The deletion of {other}, announced earlier, is not approved yet: it waits for that until {until}."
        ),
        ObstacleKind.TARGET_HOST: (
            f"No host can take {obstacle.vm}: add or uncordon one that keeps its group's domains apart."
        ),
    }[obstacle.kind]


def _busy(draft: Draft, obstacle: Obstacle) -> str:
    if obstacle.operation is None:
        return ""
    traits = draft.operation(obstacle.operation).kind.traits
    leaves = traits.moves or traits.removes
    what = "when it has left its host, this no longer names it" if leaves else "it waits until that has ended"
    return f"Operation {obstacle.operation} acts on {obstacle.vm}: {what}."


def _who(draft: Draft, event_id: str) -> str:
    """Those an event names, with their group where they have one."""
    event = draft.world.events.get(event_id)
    if event is None:
        return ""
    kind, _, name = event.scope.partition(":")
    return f"{name} ({names(event.resources)})" if kind == "group" else name


def _facts(draft: Draft, obstacle: Obstacle) -> Mapping[str, object]:
    facts: dict[str, object] = {"kind": obstacle.kind.value}
    for field in ("until", "scope", "event", "operation", "vm"):
        value = getattr(obstacle, field)
        if value is not None:
            facts[field] = value
    event = draft.world.events.get(obstacle.event or "")
    if event is not None:
        facts["resources"] = list(event.resources)
    return facts


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
