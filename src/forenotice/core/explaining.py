"""Why an event or an operation waits: for whom, for what, since when, until when; in sentences and as facts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forenotice.core import budgets, calendar, driving, placement, windows
from forenotice.core.draft import Draft, by_reason, names
from forenotice.core.driving import Standing
from forenotice.core.obstacles import Obstacle, ObstacleKind, before_announcement, obstacles
from forenotice.core.operations import Event, Operation, Status
from forenotice.core.rollouts import RolloutStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    noun: str
    """`event`, `operation` or `rollout`."""
    id: str
    sentences: tuple[str, ...]
    """One for each reason; what has no end stands first."""
    since: datetime | None
    """Since when it is so."""
    until: datetime | None
    """When the wait is over at the latest, be it for a try of the driver; None: nobody knows, or it does not wait."""
    waiting_for: tuple[Mapping[str, object], ...] = ()

    @property
    def sentence(self) -> str:
        return " ".join(self.sentences)


def explain_event(draft: Draft, event: Event, expiry_from: datetime) -> Explanation:
    """What its operation waits for; an event that is over may have ended alone."""
    operation = draft.operation(event.operation)
    if event.status is Status.CANCELED:
        operation = replace(operation, status=event.status, ended_at=event.ended_at)
    return replace(explain_operation(draft, operation, expiry_from), noun="event", id=event.id)


def explain_operation(draft: Draft, operation: Operation, expiry_from: datetime) -> Explanation:
    if operation.status is Status.PLANNED:
        return _of_planned(draft, operation)
    if operation.status is Status.SCHEDULED:
        return _of_scheduled(draft, operation, obstacles(draft, operation, expiry_from))
    if operation.status is Status.STARTED:
        return _of_started(draft, operation)
    return of_ended("operation", operation)


def of_ended(noun: str, ended: Event | Operation) -> Explanation:
    return Explanation(
        noun=noun,
        id=ended.id,
        sentences=(f"It is over: {ended.status} at {moment_told(ended.ended_at)}.",),
        since=ended.ended_at,
        until=None,
    )


def _of_planned(draft: Draft, operation: Operation) -> Explanation:
    found = before_announcement(draft, operation)
    in_time = all(obstacle.kind is ObstacleKind.ANNOUNCEMENT for obstacle in found)
    return Explanation(
        noun="operation",
        id=operation.id,
        sentences=tuple(sentences(draft, found)) or ("Nothing is in the way: guests are told now.",),
        since=operation.created_at,
        until=max(operation.not_before, draft.now) if in_time else None,
        waiting_for=tuple(facts(draft, obstacle) for obstacle in found),
    )


def _of_scheduled(draft: Draft, operation: Operation, found: list[Obstacle]) -> Explanation:
    return Explanation(
        noun="operation",
        id=operation.id,
        sentences=tuple(sentences(draft, found)) or ("Nothing is in the way: it starts now.",),
        since=min((event.created_at for event in draft.live_events_of(operation.id)), default=operation.created_at),
        until=_start_at_the_latest(draft, operation, found),
        waiting_for=tuple(facts(draft, obstacle) for obstacle in found),
    )


def _start_at_the_latest(draft: Draft, operation: Operation, found: list[Obstacle]) -> datetime | None:
    ends = [obstacle.until for obstacle in found if obstacle.until is not None]
    if len(ends) < len(found):
        return None
    latest = max(ends, default=draft.now)
    if not operation.kind.traits.planned:
        return latest
    # A window that is open now may have closed by then.
    return windows.next_open(calendar.demands(draft, operation.vms, operation.rollout).values(), latest)


def start_at_the_earliest(draft: Draft, operation: Operation, expiry_from: datetime) -> datetime | None:
    """If everybody approved now, and what ends at no known time ended now; None: never, as things are."""
    if operation.status is Status.PLANNED:
        told_at = operation.due_at or draft.now
        return windows.next_open(calendar.demands(draft, operation.vms, operation.rollout).values(), told_at)
    if operation.status is not Status.SCHEDULED:
        return operation.started_at
    found = obstacles(draft, operation, expiry_from)
    ends = [obstacle.until for obstacle in found if obstacle.kind is ObstacleKind.WINDOW]
    return None if None in ends else max((end for end in ends if end is not None), default=draft.now)


def with_standing(explanation: Explanation, standing: Standing) -> Explanation:
    """With what only the process knows that calls the driver."""
    if not any(facts["kind"] == "driver" for facts in explanation.waiting_for):
        return explanation
    if not standing.waiting:
        return explanation if standing.until is None else _with_end(explanation, standing.until)
    calls = "1 call" if standing.waiting == 1 else f"{standing.waiting} calls"
    of_host = f", and at most {standing.at_once_per_host} for each host" if standing.at_once_per_host else ""
    said = (
        f"{calls} to the driver must wait: {standing.under_way} of at most {standing.at_once} are under way{of_host}."
    )
    more = {"calls_waiting": standing.waiting, "calls_under_way": standing.under_way, "at_once": standing.at_once}
    return _with_driver_facts(explanation, said, more)


def with_clock_behind(explanation: Explanation, behind: timedelta) -> Explanation:
    """With a sentence about the clock, because the times look wrong on every other clock."""
    return replace(explanation, sentences=(*explanation.sentences, clock_behind(behind)))


def clock_behind(behind: timedelta) -> str:
    return (
        f"The clock is {behind.total_seconds():.0f} s behind the journal; the service goes on from the journal's time, "
        "so all times here are ahead by as much."
    )


def _with_end(explanation: Explanation, until: datetime) -> Explanation:
    said = f"This try is over by {moment_told(until)} at the latest."
    alone = len(explanation.waiting_for) == 1
    return _with_driver_facts(replace(explanation, until=until if alone else None), said, {"until": until})


def _with_driver_facts(explanation: Explanation, said: str, more: Mapping[str, object]) -> Explanation:
    waiting = ({**facts, **more} if facts["kind"] == "driver" else facts for facts in explanation.waiting_for)
    *others, of_driver = explanation.sentences
    return replace(explanation, sentences=(*others, f"{of_driver} {said}"), waiting_for=tuple(waiting))


def _of_started(draft: Draft, operation: Operation) -> Explanation:
    homeless, driven = driving.homeless(operation), list(driving.asked_for(operation))
    said: list[str] = []
    waiting: list[Mapping[str, object]] = []
    if homeless:
        sizes = {name: placement.size_in_the_way(draft, name) for name in homeless}
        said.append(f"It has started, but {placement.without_target(sizes)}.")
        found = (Obstacle(kind=ObstacleKind.TARGET_HOST, vm=name, size=size) for name, size in sizes.items())
        waiting += [facts(draft, obstacle) for obstacle in found]
    if driven and operation.attempt < draft.timing.retries.tries:
        said.append(_driven(draft, operation))
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
        said.append(f"It has {'failed' if driven else 'been carried out'} and ends in a moment.")
    return Explanation(
        noun="operation",
        id=operation.id,
        sentences=tuple(said),
        since=operation.started_at,
        until=None,
        waiting_for=tuple(waiting),
    )


def _driven(draft: Draft, operation: Operation) -> str:
    """What the driver is asked for: the first try, a later one, or after a pause. Its calls may stand in line."""
    number = f"try {operation.attempt + 1} of {draft.timing.retries.tries}"
    if not operation.failures:
        # Also after a failed try: a VM that is served since, while another was turned away by its new host's failure.
        again = f", {number}" if operation.attempt else ""
        return f"It has started at {moment_told(operation.started_at)} and is in the driver's hands{again}."
    because = names(f"{names(vms)} ({reason})" for reason, vms in by_reason(operation.failures).items())
    pausing = operation.due_at is not None and operation.due_at > draft.now
    now = f"{number} is at {moment_told(operation.due_at)}" if pausing else f"it is asked again, {number}"
    return f"The driver failed for {because}; {now}."


def sentences(draft: Draft, found: list[Obstacle]) -> list[str]:
    """First what has no end, and of that what does not end by itself: somebody must act."""
    together = {kind: [each for each in found if each.kind is kind and not _opens(each)] for kind in TOLD_TOGETHER}
    said: dict[str, None] = {}
    for obstacle in sorted(found, key=lambda each: (each.until is not None, bool(each.event or each.operation))):
        if obstacle.kind not in together or _opens(obstacle):
            said[_sentence(draft, obstacle) + _held_up(draft, obstacle)] = None
        elif alike := together[obstacle.kind]:
            together[obstacle.kind] = []
            said[TOLD_TOGETHER[obstacle.kind](draft, alike, found)] = None
    return list(said)


def _opens(obstacle: Obstacle) -> bool:
    """Whether it is a window that will open; windows that never open together are explained in one sentence."""
    return obstacle.kind is ObstacleKind.WINDOW and obstacle.until is not None


def _approval(draft: Draft, awaited: list[Obstacle], found: list[Obstacle]) -> str:
    who = names(_who(draft, obstacle.event or "") for obstacle in awaited)
    until = awaited[0].until
    last = until is not None and all(each.until is not None and each.until <= until for each in found)
    return f"It waits for approval by {who}, until {moment_told(until)}{' at the latest' if last else ''}."


def _homeless(_: Draft, homeless: list[Obstacle], __: list[Obstacle]) -> str:
    said = placement.without_target({obstacle.vm or "": obstacle.size for obstacle in homeless})
    return f"{said[:1].upper()}{said[1:]}."


def _announcement(draft: Draft, put_off: list[Obstacle], _: list[Obstacle]) -> str:
    told_at, opens_at = moment_told(put_off[0].until), moment_told(put_off[0].opens_at)
    whose = names(_hours(draft, obstacle) for obstacle in put_off)
    opens = f"window of {whose} opens at" if len(put_off) == 1 else f"windows of {whose} are open together from"
    return f"It is planned; guests are told at {told_at}, because the {opens} {opens_at}."


def _never(draft: Draft, closed: list[Obstacle], _: list[Obstacle]) -> str:
    whose = names(_hours(draft, obstacle) for obstacle in closed)
    if len(closed) == 1:
        return f"The window of {whose} has no hours in common with the others that it needs: change one of them."
    return f"The windows of {whose} have no hours in common: change one of them."


TOLD_TOGETHER: Mapping[ObstacleKind, Callable[[Draft, list[Obstacle], list[Obstacle]], str]] = {
    ObstacleKind.APPROVAL: _approval,
    ObstacleKind.TARGET_HOST: _homeless,
    ObstacleKind.ANNOUNCEMENT: _announcement,
    ObstacleKind.WINDOW: _never,
}
"""Kinds of obstacles that are explained together, in one sentence."""


def _sentence(draft: Draft, obstacle: Obstacle) -> str:
    until = moment_told(obstacle.until)
    other = _who(draft, obstacle.event or "")
    return {
        ObstacleKind.NOTICE: (
            f"Nobody there listens, so it keeps its full notice, until {until}, unless somebody approves it."
        ),
        ObstacleKind.START_UP: (
            "Its time has come, but guests may not have seen it since the service started or the clock jumped: "
            f"it waits until {until}."
        ),
        ObstacleKind.CLOCK: f"The clock jumped ahead since it was announced: its notice really ends at {until}.",
        ObstacleKind.UPDATE_DOMAIN: (
            f"Another update domain is {_out(draft, obstacle)}: "
            f"it waits until event {obstacle.event} on {other} has ended."
        ),
        ObstacleKind.VM_BUSY: _busy(draft, obstacle),
        ObstacleKind.EARLIER_DELETION: (
            f"The deletion of {other}, announced earlier, is not approved yet: it waits for that until {until}."
        ),
        ObstacleKind.BUDGET: _budget(draft, obstacle),
        ObstacleKind.WINDOW: _window(draft, obstacle),
        ObstacleKind.ROLLOUT: _paused(draft, obstacle),
        ObstacleKind.HOST_BUSY: f"Operation {obstacle.operation} of its host is not over: it waits for that.",
    }[obstacle.kind]


def _out(draft: Draft, obstacle: Obstacle) -> str:
    event = draft.world.events.get(obstacle.event or "")
    return "announced" if event and event.status is Status.SCHEDULED else "out"


def _busy(draft: Draft, obstacle: Obstacle) -> str:
    if obstacle.operation is None:
        return ""
    traits = draft.operation(obstacle.operation).kind.traits
    leaves = traits.moves or traits.removes
    what = "when it has left its host, this no longer names it" if leaves else "it waits until that has ended"
    return f"Operation {obstacle.operation} acts on {obstacle.vm}: {what}."


def _budget(draft: Draft, obstacle: Obstacle) -> str:
    if obstacle.kind is not ObstacleKind.BUDGET:
        return ""
    scope = draft.scope(obstacle.scope or "")
    members = draft.size_of(scope.key)
    allows = f"{budgets.told(scope.policy, members)} of {scope.name} allows {budgets.allowed(scope.policy, members)}"
    if obstacle.event is None:
        return f"The budget can never be met: {allows} of its {members} VMs out at once. Change the budget."
    return f"{allows} of its {members} VMs out at once: it waits until event {obstacle.event} has ended."


def _window(draft: Draft, obstacle: Obstacle) -> str:
    if obstacle.kind is not ObstacleKind.WINDOW:
        return ""
    return (
        f"It is outside the window of {_hours(draft, obstacle)}: it waits for it, until {moment_told(obstacle.until)}."
    )


def _hours(draft: Draft, obstacle: Obstacle) -> str:
    """Whose window it is, and when it is open."""
    if obstacle.scope is not None:
        scope = draft.scope(obstacle.scope)
        whose, hours = scope.name, scope.policy.windows
    else:
        whose, hours = "its rollout", draft.rollout(obstacle.rollout or "").options.windows
    return f"{whose} ({'; '.join(map(str, hours))})"


def _paused(draft: Draft, obstacle: Obstacle) -> str:
    if obstacle.kind is not ObstacleKind.ROLLOUT:
        return ""
    rollout = draft.rollout(obstacle.rollout or "")
    return f"Its rollout {rollout.id} is paused ({rollout.why}): it waits until that is resumed."


def _held_up(draft: Draft, obstacle: Obstacle) -> str:
    """What somebody must do before the other thing can end."""
    other = draft.operation(obstacle.operation) if obstacle.operation else None
    if other is None or other.status is not Status.SCHEDULED or other.rollout is None:
        return ""
    paused = draft.rollout(other.rollout).status is RolloutStatus.PAUSED
    return f" That is a part of rollout {other.rollout}, which is paused: resume or cancel it." if paused else ""


def _who(draft: Draft, event_id: str) -> str:
    """Those an event names, with their group where they have one."""
    event = draft.world.events.get(event_id)
    if event is None:
        return ""
    kind, _, name = event.scope.partition(":")
    return f"{name} ({names(event.resources)})" if kind == "group" else name


def facts(draft: Draft, obstacle: Obstacle) -> Mapping[str, object]:
    known: dict[str, object] = {"kind": obstacle.kind.value}
    for field in ("until", "opens_at", "scope", "event", "operation", "vm", "size", "rollout"):
        value = getattr(obstacle, field)
        if value is not None:
            known[field] = value
    event = draft.world.events.get(obstacle.event or "")
    if event is not None:
        known["resources"] = list(event.resources)
    if since := _since(draft, obstacle):
        known["since"] = since
    return known


def _since(draft: Draft, obstacle: Obstacle) -> datetime | None:
    """Since when the other thing is in the way."""
    if obstacle.operation is not None:
        other = draft.operation(obstacle.operation)
        return other.started_at or other.created_at
    event = draft.world.events.get(obstacle.event or "")
    return None if event is None else event.created_at


def moment_told(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
