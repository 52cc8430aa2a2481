"""Why an event or an operation waits: for whom, for what, since when, until when; in sentences and as facts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forenotice.core import budgets, driver_calls, placement, rollout_progress, windows
from forenotice.core.blockers import Blocker, BlockerKind, announcement_blockers, start_blockers
from forenotice.core.draft import Draft
from forenotice.core.driver_calls import PendingCalls
from forenotice.core.fleet import names
from forenotice.core.operations import Event, Operation, Status, by_reason
from forenotice.core.rollouts import BEFORE_THE_FIRST, Rollout, RolloutStatus, Stop


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
        return _of_scheduled(draft, operation, start_blockers(draft, operation, expiry_from))
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
    found = announcement_blockers(draft, operation)
    in_time = all(blocker.kind is BlockerKind.ANNOUNCEMENT for blocker in found)
    return Explanation(
        noun="operation",
        id=operation.id,
        sentences=tuple(sentences(draft, found)) or ("Nothing is in the way: guests are told now.",),
        since=operation.created_at,
        until=max(operation.not_before, draft.now) if in_time else None,
        waiting_for=tuple(facts(draft, blocker) for blocker in found),
    )


def _of_scheduled(draft: Draft, operation: Operation, found: list[Blocker]) -> Explanation:
    return Explanation(
        noun="operation",
        id=operation.id,
        sentences=tuple(sentences(draft, found)) or ("Nothing is in the way: it starts now.",),
        since=min((event.created_at for event in draft.live_events_of(operation.id)), default=operation.created_at),
        until=_start_at_the_latest(draft, operation, found),
        waiting_for=tuple(facts(draft, blocker) for blocker in found),
    )


def _start_at_the_latest(draft: Draft, operation: Operation, found: list[Blocker]) -> datetime | None:
    ends = [blocker.until for blocker in found if blocker.until is not None]
    if len(ends) < len(found):
        return None
    latest = max(ends, default=draft.now)
    if not operation.kind.traits.planned:
        return latest
    # A window that is open now may have closed by then.
    return windows.next_open(windows.all_demands(draft, operation.vms, operation.rollout).values(), latest)


def start_at_the_earliest(draft: Draft, operation: Operation, expiry_from: datetime) -> datetime | None:
    """If everybody approved now, and what ends at no known time ended now; None: never, as things are."""
    if operation.status is Status.PLANNED:
        told_at = operation.due_at or draft.now
        return windows.next_open(windows.all_demands(draft, operation.vms, operation.rollout).values(), told_at)
    if operation.status is not Status.SCHEDULED:
        return operation.started_at
    found = start_blockers(draft, operation, expiry_from)
    ends = [blocker.until for blocker in found if blocker.kind is BlockerKind.WINDOW]
    return None if None in ends else max((end for end in ends if end is not None), default=draft.now)


def with_standing(explanation: Explanation, standing: PendingCalls) -> Explanation:
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
    homeless, driven = driver_calls.unplaced(operation), list(driver_calls.asked_for(operation))
    said: list[str] = []
    waiting: list[Mapping[str, object]] = []
    if homeless:
        sizes = {name: placement.size_in_the_way(draft, name) for name in homeless}
        said.append(f"It has started, but {placement.without_target(sizes)}.")
        found = (Blocker(kind=BlockerKind.TARGET_HOST, vm=name, size=size) for name, size in sizes.items())
        waiting += [facts(draft, blocker) for blocker in found]
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


def sentences(draft: Draft, found: list[Blocker]) -> list[str]:
    """First what has no end, and of that what does not end by itself: somebody must act."""
    together = {kind: [each for each in found if each.kind is kind and not _opens(each)] for kind in TOLD_TOGETHER}
    said: dict[str, None] = {}
    for blocker in sorted(found, key=lambda each: (each.until is not None, bool(each.event or each.operation))):
        if blocker.kind not in together or _opens(blocker):
            said[_sentence(draft, blocker) + _held_up(draft, blocker)] = None
        elif alike := together[blocker.kind]:
            together[blocker.kind] = []
            said[TOLD_TOGETHER[blocker.kind](draft, alike, found)] = None
    return list(said)


def _opens(blocker: Blocker) -> bool:
    """Whether it is a window that will open; windows that never open together are explained in one sentence."""
    return blocker.kind is BlockerKind.WINDOW and blocker.until is not None


def _approval(draft: Draft, awaited: list[Blocker], found: list[Blocker]) -> str:
    who = names(_who(draft, blocker.event or "") for blocker in awaited)
    until = awaited[0].until
    last = until is not None and all(each.until is not None and each.until <= until for each in found)
    return f"It waits for approval by {who}, until {moment_told(until)}{' at the latest' if last else ''}."


def _homeless(_: Draft, homeless: list[Blocker], __: list[Blocker]) -> str:
    said = placement.without_target({blocker.vm or "": blocker.size for blocker in homeless})
    return f"{said[:1].upper()}{said[1:]}."


def _announcement(draft: Draft, put_off: list[Blocker], _: list[Blocker]) -> str:
    told_at, opens_at = moment_told(put_off[0].until), moment_told(put_off[0].opens_at)
    whose = names(_hours(draft, blocker) for blocker in put_off)
    opens = f"window of {whose} opens at" if len(put_off) == 1 else f"windows of {whose} are open together from"
    return f"It is planned; guests are told at {told_at}, because the {opens} {opens_at}."


def _never(draft: Draft, closed: list[Blocker], _: list[Blocker]) -> str:
    whose = names(_hours(draft, blocker) for blocker in closed)
    if len(closed) == 1:
        return f"The window of {whose} has no hours in common with the others that it needs: change one of them."
    return f"The windows of {whose} have no hours in common: change one of them."


TOLD_TOGETHER: Mapping[BlockerKind, Callable[[Draft, list[Blocker], list[Blocker]], str]] = {
    BlockerKind.APPROVAL: _approval,
    BlockerKind.TARGET_HOST: _homeless,
    BlockerKind.ANNOUNCEMENT: _announcement,
    BlockerKind.WINDOW: _never,
}
"""Kinds of blockers that are explained together, in one sentence."""


def _sentence(draft: Draft, blocker: Blocker) -> str:
    until = moment_told(blocker.until)
    other = _who(draft, blocker.event or "")
    return {
        BlockerKind.NOTICE: (
            f"Nobody there listens, so it keeps its full notice, until {until}, unless somebody approves it."
        ),
        BlockerKind.START_UP: (
            "Its time has come, but guests may not have seen it since the service started or the clock jumped: "
            f"it waits until {until}."
        ),
        BlockerKind.CLOCK: f"The clock jumped ahead since it was announced: its notice really ends at {until}.",
        BlockerKind.UPDATE_DOMAIN: (
            f"Another update domain is {_out(draft, blocker)}: "
            f"it waits until event {blocker.event} on {other} has ended."
        ),
        BlockerKind.VM_BUSY: _busy(draft, blocker),
        BlockerKind.EARLIER_DELETION: (
            f"The deletion of {other}, announced earlier, is not approved yet: it waits for that until {until}."
        ),
        BlockerKind.BUDGET: _budget(draft, blocker),
        BlockerKind.WINDOW: _window(draft, blocker),
        BlockerKind.ROLLOUT: _paused(draft, blocker),
        BlockerKind.HOST_BUSY: f"Operation {blocker.operation} of its host is not over: it waits for that.",
    }[blocker.kind]


def _out(draft: Draft, blocker: Blocker) -> str:
    event = draft.world.events.get(blocker.event or "")
    return "announced" if event and event.status is Status.SCHEDULED else "out"


def _busy(draft: Draft, blocker: Blocker) -> str:
    if blocker.operation is None:
        return ""
    traits = draft.operation(blocker.operation).kind.traits
    leaves = traits.moves or traits.removes
    what = "when it has left its host, this no longer names it" if leaves else "it waits until that has ended"
    return f"Operation {blocker.operation} acts on {blocker.vm}: {what}."


def _budget(draft: Draft, blocker: Blocker) -> str:
    if blocker.kind is not BlockerKind.BUDGET:
        return ""
    scope = draft.scope(blocker.scope or "")
    members = draft.size_of(scope.key)
    allows = f"{budgets.told(scope.policy, members)} of {scope.name} allows {budgets.allowed(scope.policy, members)}"
    if blocker.event is None:
        return f"The budget can never be met: {allows} of its {members} VMs out at once. Change the budget."
    return f"{allows} of its {members} VMs out at once: it waits until event {blocker.event} has ended."


def _window(draft: Draft, blocker: Blocker) -> str:
    if blocker.kind is not BlockerKind.WINDOW:
        return ""
    return f"It is outside the window of {_hours(draft, blocker)}: it waits for it, until {moment_told(blocker.until)}."


def _hours(draft: Draft, blocker: Blocker) -> str:
    """Whose window it is, and when it is open."""
    if blocker.scope is not None:
        scope = draft.scope(blocker.scope)
        whose, hours = scope.name, scope.policy.windows
    else:
        whose, hours = "its rollout", draft.rollout(blocker.rollout or "").options.windows
    return f"{whose} ({'; '.join(map(str, hours))})"


def _paused(draft: Draft, blocker: Blocker) -> str:
    if blocker.kind is not BlockerKind.ROLLOUT:
        return ""
    rollout = draft.rollout(blocker.rollout or "")
    return f"Its rollout {rollout.id} is paused ({rollout.why}): it waits until that is resumed."


def _held_up(draft: Draft, blocker: Blocker) -> str:
    """What somebody must do before the other thing can end."""
    other = draft.operation(blocker.operation) if blocker.operation else None
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


def facts(draft: Draft, blocker: Blocker) -> Mapping[str, object]:
    known: dict[str, object] = {"kind": blocker.kind.value}
    for name in ("until", "opens_at", "scope", "event", "operation", "vm", "size", "rollout"):
        value = getattr(blocker, name)
        if value is not None:
            known[name] = value
    event = draft.world.events.get(blocker.event or "")
    if event is not None:
        known["resources"] = list(event.resources)
    if since := _since(draft, blocker):
        known["since"] = since
    return known


def _since(draft: Draft, blocker: Blocker) -> datetime | None:
    """Since when the other thing is in the way."""
    if blocker.operation is not None:
        other = draft.operation(blocker.operation)
        return other.started_at or other.created_at
    event = draft.world.events.get(blocker.event or "")
    return None if event is None else event.created_at


def moment_told(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


SENTENCES = 3
"""Operations and hosts that are told of in words; the facts have more."""


@dataclass(slots=True)
class _Found:
    since: datetime | None
    sentences: list[str] = field(default_factory=list)
    facts: list[Mapping[str, object]] = field(default_factory=list)
    until: datetime | None = None

    def add(self, sentence: str, **facts: object) -> None:
        self.sentences.append(sentence)
        self.facts.append({key: value for key, value in facts.items() if value is not None})


def explain_rollout(
    draft: Draft,
    rollout: Rollout,
    live: Sequence[str],
    waiting: Sequence[Stop],
    expiry_from: datetime,
    *,
    more: int = 0,
) -> Explanation:
    """`live` are its operations, but for so many `more`; `waiting` some of the hosts of the wave."""
    found = _Found(since=rollout.since)
    match rollout.status:
        case RolloutStatus.PAUSED:
            found.add(
                f"It {_pause_told(rollout)}. Since {moment_told(rollout.since)} nothing of it starts, "
                "until it is resumed.",
                kind="paused",
                why=rollout.why,
                since=rollout.since,
            )
        case RolloutStatus.CANCELING:
            found.add(
                f"It was cancelled at {moment_told(rollout.since)}: what had started goes on to its end.",
                kind="canceling",
                since=rollout.since,
            )
        case RolloutStatus.RUNNING if rollout.opened_at is None:
            _before_wave(draft, rollout, waiting, found)
        case RolloutStatus.RUNNING:
            found.since = rollout.opened_at
        case _:
            found.sentences.append(f"It is over: {rollout.status} at {moment_told(rollout.ended_at)}.")
    _operations(draft, rollout, live, more, expiry_from, found)
    if rollout.status is RolloutStatus.RUNNING and rollout.opened_at is not None:
        _hosts(draft, rollout, len(live) + more, waiting, found)
    if not found.sentences:
        found.sentences.append("Nothing is in the way: it goes on now.")
    return Explanation(
        noun="rollout",
        id=rollout.id,
        sentences=tuple(found.sentences),
        since=found.since,
        until=found.until,
        waiting_for=tuple(found.facts),
    )


def _before_wave(draft: Draft, rollout: Rollout, waiting: Sequence[Stop], found: _Found) -> None:
    result = rollout.gate_result
    if rollout.wave == BEFORE_THE_FIRST:
        return
    if draft.now < rollout.opens_at:
        found.since = rollout.opens_at - draft.timing.shortened(rollout.options.pause)
        found.until = rollout.opens_at
        found.add(
            f"It pauses before wave {rollout.wave + 1}, until {moment_told(rollout.opens_at)}.",
            kind="pause",
            since=found.since,
            until=rollout.opens_at,
        )
    elif (later := rollout_progress.told_at(draft, rollout)) > draft.now:
        found.since, found.until = rollout.opens_at, later
        hours = "; ".join(map(str, rollout.options.windows))
        found.add(
            f"Wave {rollout.wave + 1} is planned; guests are told from {moment_told(later)} on, because of its window "
            f"({hours}).",
            kind=BlockerKind.ANNOUNCEMENT.value,
            since=rollout.opens_at,
            until=later,
        )
    elif rollout.options.gate is not None and all(
        rollout_progress.is_put_off(draft, rollout, stop.host) for stop in waiting
    ):
        found.since = rollout.opens_at
        _hosts(draft, rollout, 0, waiting, found)
    elif rollout.options.gate is not None and not (result and result.green):
        found.since = rollout.opens_at
        said = f"at {moment_told(result.at)} it was red: {result.status}" if result else "it is being asked"
        gate = rollout.options.told().gate
        found.add(
            f"Wave {rollout.wave + 1} waits for its gate {gate}: {said}.",
            kind="gate",
            gate=gate,
            since=rollout.opens_at,
            status=result.status if result else None,
        )


def _pause_told(rollout: Rollout) -> str:
    why = rollout.why.rstrip(".")
    return f"was {why}" if why.startswith(rollout_progress.PAUSED_BY) else f"is paused: {why}"


def _operations(
    draft: Draft, rollout: Rollout, live: Sequence[str], more: int, expiry_from: datetime, found: _Found
) -> None:
    ends: list[datetime | None] = [None] * more
    for number, operation_id in enumerate(live):
        operation = draft.operation(operation_id)
        why = explain_operation(draft, operation, expiry_from)
        ends.append(why.until)
        found.facts.append(
            {
                "kind": "operation",
                "operation": operation_id,
                "host": operation.host,
                "status": operation.status.value,
                "since": why.since,
                **({"until": why.until} if why.until else {}),
                "waiting_for": list(why.waiting_for),
            }
        )
        if number < SENTENCES:
            found.sentences.append(_of_host(draft, rollout, operation, why, expiry_from))
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        found.until = max(known)
    if len(live) > SENTENCES:
        found.sentences.append(f"More hosts are under way: {len(live) + more - SENTENCES}.")


def _of_host(draft: Draft, rollout: Rollout, operation: Operation, why: Explanation, expiry_from: datetime) -> str:
    """Without the rollout's own pause, which is told of all of it."""
    said = list(why.sentences)
    if rollout.status is RolloutStatus.PAUSED and operation.status is Status.SCHEDULED:
        others = (
            each for each in start_blockers(draft, operation, expiry_from) if each.kind is not BlockerKind.ROLLOUT
        )
        said = sentences(draft, list(others))
    told = f"{operation.host} is {operation.status}"
    return f"{told}: {_within(' '.join(said))}" if said else f"{told}."


def _within(sentence: str) -> str:
    """After a colon; no sentence of an explanation begins with a name."""
    return sentence[0].lower() + sentence[1:]


def _hosts(draft: Draft, rollout: Rollout, under_way: int, waiting: Sequence[Stop], found: _Found) -> None:
    if under_way >= rollout.options.batch and waiting:
        found.add(
            f"Others of wave {rollout.wave + 1} wait: the batch is {rollout.options.batch}.",
            kind="batch",
            batch=rollout.options.batch,
        )
        return
    hindered = list(_hindered(draft, rollout, waiting))
    if hindered:
        found.until = None
    for host, sentence, facts in hindered:
        found.facts.append({**facts, "host": host})
        said = f"{host} waits: {_within(sentence)}"
        if len(found.sentences) < 2 * SENTENCES and said not in found.sentences:
            found.sentences.append(said)
    if not hindered and waiting:
        found.sentences.append(f"Next: {names([stop.host for stop in waiting[:SENTENCES]])}.")


def _hindered(
    draft: Draft, rollout: Rollout, waiting: Sequence[Stop]
) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    for stop in waiting:
        found = list(rollout_progress.host_blockers(draft, rollout, stop.host))
        put_off = [each for each in found if each.kind is BlockerKind.ANNOUNCEMENT]
        for blocker in found:
            said = sentences(draft, put_off if blocker in put_off else [blocker])[0]
            yield stop.host, said, facts(draft, blocker)
