"""Why an event, an operation or a rollout waits: for whom, for what, since when, until when; in words and as facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from forenotice.core import driver_calls, placement, rollout_progress, windows
from forenotice.core.blockers import Blocker, BlockerKind, announcement_blockers, host_blockers, start_blockers
from forenotice.core.draft import Draft
from forenotice.core.driver_calls import PendingCalls
from forenotice.core.fleet import names, several
from forenotice.core.operations import Event, Operation, Status, by_reason
from forenotice.core.rollouts import BEFORE_THE_FIRST, Rollout, RolloutHost, RolloutStatus

EXPLAINED_TOGETHER = frozenset(
    {BlockerKind.APPROVAL, BlockerKind.TARGET_HOST, BlockerKind.ANNOUNCEMENT, BlockerKind.WINDOW}
)
"""Kinds of blockers that are explained in one sentence."""
SENTENCES = 3
"""Of a rollout: operations and hosts that are explained in words; the facts have more."""

PHRASES: Mapping[str, tuple[str, str]] = {
    "approval": ("an approval", "your approval ({name})"),
    "notice": ("its full notice, because its scope is not listening",) * 2,
    "start-up": ("guests to see it, because the service has just started",) * 2,
    "edge": ("the edge of its host to show it to guests",) * 2,
    "clock": ("its full notice, because the clock jumped ahead",) * 2,
    "update-domain": ("another update domain", "your other update domain in {name}, which is down"),
    "vm-busy": ("another operation on a VM to end", "another operation on {vm} to end"),
    "earlier-deletion": ("an earlier deletion to be approved", "your earlier deletion in {name} to be approved"),
    "target-host": ("a host that can take a VM", "a host that can take {vm}"),
    "budget": ("a group to have enough VMs left", "your group {name} to have enough VMs left"),
    "window": ("a maintenance window", "your maintenance window ({name})"),
    "announcement": (
        "guests to be told before a maintenance window opens",
        "guests to be told before your maintenance window ({name}) opens",
    ),
    "host-busy": ("other maintenance of the host",) * 2,
    "rollout": ("its paused rollout",) * 2,
    "driver": ("the driver to carry it out",) * 2,
}
"""What is waited for, in general and when it is the reader's own."""

Facts = Mapping[str, object]


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
    """When the wait is over at the latest, or the try of the driver; None: unknown, or it does not wait."""
    waiting_for: tuple[Facts, ...] = ()

    @property
    def sentence(self) -> str:
        return " ".join(self.sentences)


# Events and operations


def explain_event(draft: Draft, event: Event, expiry_from: datetime) -> Explanation:
    """What its operation waits for; an event that is over may have ended alone."""
    operation = draft.operation(event.operation)
    if event.status is Status.CANCELED:
        operation = replace(operation, status=event.status, ended_at=event.ended_at)
    if not event.status.live:
        told = {name: why for name, why in operation.failures.items() if name in event.resources}
        operation = replace(operation, failures=told)
    return replace(explain_operation(draft, operation, expiry_from), noun="event", id=event.id)


def explain_operation(draft: Draft, operation: Operation, expiry_from: datetime) -> Explanation:
    match operation.status:
        case Status.PLANNED:
            found = announcement_blockers(draft, operation)
            in_time = all(blocker.kind is BlockerKind.ANNOUNCEMENT for blocker in found)
            since, otherwise = operation.created_at, "Nothing is in the way: guests are told now."
            until = max(operation.not_before, draft.now) if in_time else None
        case Status.SCHEDULED:
            found = start_blockers(draft, operation, expiry_from)
            announced = [event.created_at for event in draft.live_events_of(operation.id)]
            since, otherwise = min(announced, default=operation.created_at), "Nothing is in the way: it starts now."
            ends = [blocker.until for blocker in found if blocker.until is not None]
            until = max(ends, default=draft.now) if len(ends) == len(found) else None
            if until is not None and operation.kind.traits.maintenance:
                # A window that is open now may have closed by then.
                until = _next_open(draft, operation, until)
        case Status.STARTED:
            return _of_started(draft, operation)
        case _:
            return of_ended("operation", operation, operation.failures)
    return Explanation(
        noun="operation",
        id=operation.id,
        sentences=tuple(sentences(draft, found)) or (otherwise,),
        since=since,
        until=until,
        waiting_for=tuple(_facts(draft, blocker) for blocker in found),
    )


def of_ended(noun: str, ended: Event | Operation, failures: Mapping[str, str] | None = None) -> Explanation:
    said = f"It is over: {ended.status} at {moment_told(ended.ended_at)}."
    if failures:
        said += f" Without success: {_failed(failures)}."
    return Explanation(noun=noun, id=ended.id, sentences=(said,), since=ended.ended_at, until=None)


def _failed(failures: Mapping[str, str]) -> str:
    return names(f"{names(vms)} ({reason})" for reason, vms in by_reason(failures).items()) if failures else ""


def start_at_the_earliest(draft: Draft, operation: Operation, expiry_from: datetime) -> datetime | None:
    """If everybody approved now, and what ends at no known time ended now; None: never, as things are."""
    if operation.status is Status.PLANNED:
        return _next_open(draft, operation, operation.due_at or draft.now)
    if operation.status is not Status.SCHEDULED:
        return operation.started_at
    found = start_blockers(draft, operation, expiry_from)
    ends = [blocker.until for blocker in found if blocker.kind is BlockerKind.WINDOW]
    return None if None in ends else max((end for end in ends if end is not None), default=draft.now)


def _next_open(draft: Draft, operation: Operation, moment: datetime) -> datetime | None:
    return windows.next_open(windows.all_demands(draft, operation.vms, operation.rollout).values(), moment)


def _of_started(draft: Draft, operation: Operation) -> Explanation:
    unplaced, driven = driver_calls.unplaced(operation), list(driver_calls.asked_for(operation))
    said: list[str] = []
    waiting: list[Facts] = []
    if unplaced:
        sizes = {name: placement.size_in_the_way(draft, name) for name in unplaced}
        said.append(f"It has started, but {placement.without_target(draft, sizes)}.")
        missing = [Blocker(kind=BlockerKind.TARGET_HOST, vm=name, size=size) for name, size in sizes.items()]
        waiting += [_facts(draft, blocker) for blocker in missing]
    if driven and operation.attempt < draft.timing.retries.tries:
        number = f"try {operation.attempt + 1} of {draft.timing.retries.tries}"
        because = _failed(operation.failures)
        if not because and operation.waiting:
            said.append(f"It started at {moment_told(operation.started_at)}.")
        elif not because:
            # Also after a failed try: a VM that is served since, while another was turned away by a failed host.
            again = f", {number}" if operation.attempt else ""
            said.append(f"It started at {moment_told(operation.started_at)}, and the driver is carrying it out{again}.")
        elif operation.due_at is not None and operation.due_at > draft.now:
            said.append(f"The driver failed for {because}; {number} is at {moment_told(operation.due_at)}.")
        else:
            said.append(f"The driver failed for {because}; it is asked again, {number}.")
        facts: dict[str, object] = {"kind": "driver", "vms": driven, "attempt": operation.attempt + 1}
        facts |= {"since": operation.started_at, "failures": dict(operation.failures)}
        if operation.waiting:
            said[-1] += f" The driver waits: {reasons_to_wait(operation.waiting)}."
            facts["waiting"] = dict(operation.waiting)
        waiting.append(facts)
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


def reasons_to_wait(waiting: Mapping[str, str]) -> str:
    return "; ".join(f"{why} ({several(vms)})" for why, vms in by_reason(waiting).items())


# What only the process knows that answers


def with_pending_calls(explanation: Explanation, calls: PendingCalls) -> Explanation:
    if not any(facts["kind"] == "driver" for facts in explanation.waiting_for):
        return explanation
    more: Facts
    if calls.waiting:
        number = "1 call" if calls.waiting == 1 else f"{calls.waiting} calls"
        of_host = f", and at most {calls.at_once_per_host} for each host" if calls.at_once_per_host else ""
        said = f"{number} to the driver must wait: {calls.under_way} of at most {calls.at_once} are under way{of_host}."
        more = {"calls_waiting": calls.waiting, "calls_under_way": calls.under_way, "at_once": calls.at_once}
    elif calls.until is not None:
        said, more = f"This try is over by {moment_told(calls.until)} at the latest.", {"until": calls.until}
        explanation = replace(explanation, until=calls.until if len(explanation.waiting_for) == 1 else None)
    else:
        return explanation
    waiting = ({**facts, **more} if facts["kind"] == "driver" else facts for facts in explanation.waiting_for)
    *others, of_driver = explanation.sentences
    return replace(explanation, sentences=(*others, f"{of_driver} {said}"), waiting_for=tuple(waiting))


def with_clock_behind(explanation: Explanation, behind: timedelta) -> Explanation:
    """With a sentence about the clock, because the times look wrong on every other clock."""
    return replace(explanation, sentences=(*explanation.sentences, clock_behind(behind)))


def clock_behind(behind: timedelta) -> str:
    return (
        f"The clock is {behind.total_seconds():.0f} s behind the journal; the service goes on from the journal's time, "
        "so all times here are ahead by as much."
    )


# Blockers in words


def sentences(draft: Draft, found: list[Blocker]) -> list[str]:
    """First what has no known end, beginning with what does not end by itself: an operator must act."""
    said: dict[str, None] = {}
    for blocker in sorted(found, key=lambda each: (each.until is not None, bool(each.event or each.operation))):
        alike = [blocker]
        # Windows that never open together are explained in one sentence, those that will open one by one.
        if blocker.kind in EXPLAINED_TOGETHER and not (blocker.kind is BlockerKind.WINDOW and blocker.until):
            alike = [each for each in found if each.kind is blocker.kind and bool(each.until) == bool(blocker.until)]
        said[_sentence(draft, alike, found) + _held_up(draft, blocker)] = None
    return list(said)


def _is_shown(draft: Draft, event_id: str | None) -> bool:
    event = draft.world.events.get(event_id or "")
    return event is None or draft.edges.have_shown(event, draft.operation(event.operation).host)


def _sentence(draft: Draft, alike: list[Blocker], found: list[Blocker]) -> str:  # noqa: C901 - one case for each kind
    blocker = alike[0]
    until = moment_told(blocker.until)
    match blocker.kind:
        case BlockerKind.APPROVAL:
            who = names(_who(draft, each.event) for each in alike)
            if any(not _is_shown(draft, each.event) for each in alike):
                longest = moment_told(blocker.until and blocker.until + draft.edges.patience)
                return (
                    f"It waits for approval by {who}, until {until}; if the edge of its host has not shown the event "
                    f"to guests by then, until the edge has, or until {longest}."
                )
            last = all(each.until and blocker.until and each.until <= blocker.until for each in found)
            return f"It waits for approval by {who}, until {until}{' at the latest' if last else ''}."
        case BlockerKind.NOTICE:
            return f"No guest is listening, so it keeps its full notice, until {until}, unless somebody approves it."
        case BlockerKind.START_UP:
            return (
                "NotBefore has passed, but guests may not have seen it since the service started or the clock jumped: "
                f"it waits until {until}."
            )
        case BlockerKind.EDGE:
            return (
                f"NotBefore has passed, but the edge of host {blocker.host} has not shown the event to its guests: the "
                f"operation waits until it has, or until {until}."
            )
        case BlockerKind.CLOCK:
            return f"The clock jumped ahead since it was announced: its notice really ends at {until}."
        case BlockerKind.UPDATE_DOMAIN:
            event = draft.world.events.get(blocker.event or "")
            state = "announced" if event and event.status is Status.SCHEDULED else "down"
            who = _who(draft, blocker.event)
            return f"Another update domain is {state}: it waits until event {blocker.event} on {who} has ended."
        case BlockerKind.VM_BUSY:
            traits = draft.operation(blocker.operation or "").kind.traits
            leaves = traits.moves or traits.removes
            what = "when it has left its host, this no longer names it" if leaves else "it waits until that has ended"
            return f"Operation {blocker.operation} acts on {blocker.vm}: {what}."
        case BlockerKind.EARLIER_DELETION:
            who = _who(draft, blocker.event)
            waits = f"it waits for that until {until}"
            return f"The deletion of {who}, whose NotBefore is not later, is not approved yet: {waits}."
        case BlockerKind.TARGET_HOST:
            missing = placement.without_target(draft, {each.vm or "": each.size for each in alike})
            return f"{missing[:1].upper()}{missing[1:]}."
        case BlockerKind.BUDGET:
            scope = draft.scope(blocker.scope or "")
            members = draft.size_of(scope.key)
            most = scope.policy.allowed_down(members)
            allows = f"{scope.policy.budget(members)} of {scope.name} allows {most} of its {members} VMs down"
            if blocker.event is None:
                return f"The budget can never be met: {allows} at once. Change the budget."
            return f"{allows} at once: it waits until event {blocker.event} has ended."
        case BlockerKind.WINDOW if blocker.until is not None:
            return f"It is outside the window of {_hours(draft, blocker)}: it waits until {until}."
        case BlockerKind.WINDOW:
            whose = names(_hours(draft, each) for each in alike)
            if len(alike) > 1:
                return f"The windows of {whose} have no hours in common: change one of them."
            return f"The window of {whose} has no hours in common with the others that it needs: change one of them."
        case BlockerKind.ROLLOUT:
            rollout = draft.rollout(blocker.rollout or "")
            return f"Its rollout {rollout.id} is paused ({rollout.why}): it waits until the rollout is resumed."
        case BlockerKind.HOST_BUSY:
            return f"It waits until operation {blocker.operation} on its host has ended."
        case _:
            whose = names(_hours(draft, each) for each in alike)
            opens = f"window of {whose} opens at" if len(alike) == 1 else f"windows of {whose} are open together from"
            return f"It is planned; guests are told at {until}, because the {opens} {moment_told(blocker.opens_at)}."


def _hours(draft: Draft, blocker: Blocker) -> str:
    """Whose window it is, and when it is open."""
    if blocker.scope is not None:
        scope = draft.scope(blocker.scope)
        whose, hours = scope.name, scope.policy.windows
    else:
        whose, hours = "its rollout", draft.rollout(blocker.rollout or "").options.windows
    return f"{whose} ({'; '.join(map(str, hours))})"


def _held_up(draft: Draft, blocker: Blocker) -> str:
    """What an operator must do before the other operation can end."""
    other = draft.operation(blocker.operation) if blocker.operation else None
    rollout = draft.rollout(other.rollout) if other and other.rollout and other.status is Status.SCHEDULED else None
    if rollout is None or rollout.status is not RolloutStatus.PAUSED:
        return ""
    return f" That is a part of rollout {rollout.id}, which is paused: resume or cancel it."


def _who(draft: Draft, event_id: str | None) -> str:
    """Those an event names, with their group where they have one."""
    event = draft.event(event_id or "")
    kind, _, name = event.scope.partition(":")
    return f"{name} ({names(event.resources)})" if kind == "group" else name


def _facts(draft: Draft, blocker: Blocker) -> Facts:
    nouns = ("kind", "until", "opens_at", "scope", "event", "operation", "vm", "host", "size", "rollout")
    known: dict[str, object] = {noun: value for noun in nouns if (value := getattr(blocker, noun)) is not None}
    known["kind"] = blocker.kind.value
    event = draft.world.events.get(blocker.event or "")
    if event is not None:
        known |= {"resources": list(event.resources), "since": event.created_at}
    if blocker.operation is not None:
        other = draft.operation(blocker.operation)
        known["since"] = other.started_at or other.created_at
    return known


def moment_told(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# Rollouts


@dataclass(slots=True)
class _Reasons:
    since: datetime | None
    until: datetime | None = None
    sentences: list[str] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)

    def add(self, sentence: str | None, **facts: object) -> None:
        self.sentences += [sentence] if sentence else []
        self.facts.append({key: value for key, value in facts.items() if value is not None})


def explain_rollout(
    draft: Draft,
    rollout: Rollout,
    live: Sequence[str],
    waiting: Sequence[RolloutHost],
    expiry_from: datetime,
    *,
    more: int = 0,
) -> Explanation:
    """`live` are its operations, but for so many `more`; `waiting` some of the hosts of the wave."""
    found, since = _Reasons(since=rollout.since), moment_told(rollout.since)
    match rollout.status:
        case RolloutStatus.PAUSED:
            why = rollout.why.rstrip(".")
            paused = f"was {why}" if why.startswith(rollout_progress.PAUSED_BY) else f"is paused: {why}"
            said = f"It {paused}. Since {since} nothing of it starts, until it is resumed."
            found.add(said, kind="paused", why=rollout.why, since=rollout.since)
        case RolloutStatus.CANCELING:
            said = f"It was cancelled at {since}: operations that had started go on to their end."
            found.add(said, kind="canceling", since=rollout.since)
        case RolloutStatus.RUNNING if rollout.opened_at is None:
            if rollout.wave != BEFORE_THE_FIRST:
                _before_wave(draft, rollout, waiting, found)
        case RolloutStatus.RUNNING:
            found.since = rollout.opened_at
        case _:
            found.sentences.append(f"It is over: {rollout.status} at {moment_told(rollout.ended_at)}.")
    _explain_operations(draft, rollout, live, more, expiry_from, found)
    if rollout.status is RolloutStatus.RUNNING and rollout.opened_at is not None:
        _explain_hosts(draft, rollout, len(live) + more, waiting, found)
    return Explanation(
        noun="rollout",
        id=rollout.id,
        sentences=tuple(found.sentences) or ("Nothing is in the way: it goes on now.",),
        since=found.since,
        until=found.until,
        waiting_for=tuple(found.facts),
    )


def _before_wave(draft: Draft, rollout: Rollout, waiting: Sequence[RolloutHost], found: _Reasons) -> None:
    """Its pause, its window or its gate."""
    result, gate, wave = rollout.gate_result, rollout.options.told().gate, f"Wave {rollout.wave + 1}"
    found.since = rollout.opens_at
    if draft.now < rollout.opens_at:
        found.since, found.until = rollout.opens_at - draft.timing.shortened(rollout.options.pause), rollout.opens_at
        said = f"It pauses before {wave.lower()}, until {moment_told(rollout.opens_at)}."
        found.add(said, kind="pause", since=found.since, until=found.until)
    elif (later := rollout_progress.announce_at(draft, rollout)) > draft.now:
        found.until, hours = later, "; ".join(map(str, rollout.options.windows))
        said = f"{wave} is planned; guests are told from {moment_told(later)} on, because of its window ({hours})."
        found.add(said, kind=BlockerKind.ANNOUNCEMENT.value, since=found.since, until=later)
    elif gate is not None and all(
        any(blocker.kind is BlockerKind.ANNOUNCEMENT for blocker in host_blockers(draft, rollout, each.host))
        for each in waiting
    ):
        _explain_hosts(draft, rollout, 0, waiting, found)
    elif gate is not None and not (result and result.green):
        state = f"at {moment_told(result.at)} it was red: {result.status}" if result else "it is being asked"
        status = result.status if result else None
        said = f"{wave} waits for its gate {gate}: {state}."
        found.add(said, kind="gate", gate=gate, since=found.since, status=status)


def _explain_operations(
    draft: Draft, rollout: Rollout, live: Sequence[str], more: int, expiry_from: datetime, found: _Reasons
) -> None:
    ends: list[datetime | None] = [None] * more
    for number, operation_id in enumerate(live):
        operation = draft.operation(operation_id)
        why = explain_operation(draft, operation, expiry_from)
        ends.append(why.until)
        facts: dict[str, object] = {"kind": "operation", "operation": operation_id, "host": operation.host}
        facts |= {"status": operation.status.value, "since": why.since, "until": why.until}
        waiting, said = list(why.waiting_for), list(why.sentences)
        if rollout.status is RolloutStatus.PAUSED and operation.status is Status.SCHEDULED:
            # Without the rollout's own pause, which has a sentence of its own.
            blockers = start_blockers(draft, operation, expiry_from)
            said = sentences(draft, [each for each in blockers if each.kind is not BlockerKind.ROLLOUT])
        told = f"{operation.host} is {operation.status}"
        told = f"{told}: {_within(' '.join(said))}" if said else f"{told}."
        found.add(told if number < SENTENCES else None, **facts, waiting_for=waiting)
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        found.until = max(known)
    if len(live) > SENTENCES:
        found.sentences.append(f"More hosts are under way: {len(live) + more - SENTENCES}.")


def _within(sentence: str) -> str:
    """After a colon; no sentence of an explanation begins with a name."""
    return sentence[0].lower() + sentence[1:]


def _explain_hosts(
    draft: Draft, rollout: Rollout, under_way: int, waiting: Sequence[RolloutHost], found: _Reasons
) -> None:
    batch = rollout.options.batch
    if under_way >= batch and waiting:
        found.add(f"Other hosts of wave {rollout.wave + 1} wait: the batch is {batch}.", kind="batch", batch=batch)
        return
    blocked = False
    for host in [rollout_host.host for rollout_host in waiting]:
        blockers = list(host_blockers(draft, rollout, host))
        put_off = [each for each in blockers if each.kind is BlockerKind.ANNOUNCEMENT]
        for blocker in blockers:
            blocked, found.until = True, None
            sentence = sentences(draft, put_off if blocker in put_off else [blocker])[0]
            told = f"{host} waits: {_within(sentence)}"
            is_news = len(found.sentences) < 2 * SENTENCES and told not in found.sentences
            found.add(told if is_news else None, **_facts(draft, blocker), host=host)
    if not blocked and waiting:
        found.sentences.append(f"Next: {names([rollout_host.host for rollout_host in waiting[:SENTENCES]])}.")
