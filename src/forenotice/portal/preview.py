"""A preview in words: what guests are told, when it can start, whom it waits for, what else comes of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forenotice.core.announcements import BY_POLICY, BY_SILENCE
from forenotice.core.blockers import BlockerKind
from forenotice.core.fleet import names
from forenotice.core.operations import EventType
from forenotice.portal import renderer
from forenotice.views import wording
from forenotice.views.maintenance import Preview, PreviewedEvent, PreviewedOperation

MOST_EVENTS = 12
"""Told one by one; a host may have many more."""
MOST_OPERATIONS = 12
MEANING = {
    EventType.FREEZE: "the VM pauses for some seconds, and keeps what is in its memory",
    EventType.REBOOT: "the VM restarts, and loses what is in its memory",
    EventType.REDEPLOY: "the VM moves to another host and starts anew there",
    EventType.PREEMPT: "the spot VM is removed",
    EventType.TERMINATE: "the VM is deleted",
}
UNTOLD = "No guest is told: a deletion is announced only in groups that ask for it, and never to spot VMs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one scope's guests will read."""

    who: str
    type: str
    started: bool
    not_before: datetime
    exactly: str
    """The event, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPreview:
    """Of one operation. Times stand in the sentences as the service writes them."""

    name: str
    """The VM or host that it is asked for."""
    told: Sequence[Told]
    more: int
    """Who else is told, and is not in `told`."""
    meaning: str
    """Of what they are told."""
    start: str
    waits: Sequence[str]


def of(operation: PreviewedOperation, name: str, at: datetime, silence: timedelta) -> OperationPreview:
    """`at` is the moment of the preview; whoever has been silent for so long does not listen."""
    events = operation.events
    return OperationPreview(
        name=name,
        told=[_told(event) for event in events[:MOST_EVENTS]],
        more=len(events[MOST_EVENTS:]),
        meaning=_meaning(operation),
        start=_start(operation, at),
        waits=[*_waits(operation), *_not_waited_for(operation, silence)],
    )


def _meaning(operation: PreviewedOperation) -> str:
    told = operation.kind.traits.type
    means = f"{told} means that {MEANING[told]}."
    if operation.announce_at:
        return f"Guests are not told before {renderer.utc(operation.announce_at)}. {means}"
    return means if operation.events else UNTOLD


def _told(event: PreviewedEvent) -> Told:
    return Told(
        who=_who(event),
        type=event.type,
        started=event.status == "Started",
        not_before=event.not_before,
        exactly=json.dumps(event.told, indent=2, ensure_ascii=False),
    )


def _start(operation: PreviewedOperation, now: datetime) -> str:
    earliest = operation.earliest or now
    later = f", but not before {renderer.utc(earliest)}" if earliest > now else ""
    if operation.latest is None:
        return f"Nobody knows until when it must wait: something is in the way that ends at no known time{later}."
    latest = operation.latest
    if latest <= now:
        return "At once, when you confirm."
    ahead = _roughly(latest - now)
    if earliest == latest:
        return f"At {renderer.utc(latest)}, {ahead} from now, and not earlier."
    said = f"At {renderer.utc(latest)} at the latest, {ahead} from now. Earlier"
    awaited = _awaited(operation)
    if any(each["kind"] == BlockerKind.NOTICE for each in operation.waiting_for):
        return f"{said}, as soon as somebody approves it{later}."
    if not awaited:
        return f"{said}, if what is in the way ends earlier{later}."
    approve = "approves" if len(awaited) == 1 else "approve"
    return f"{said}, as soon as {wording.several(map(_approver, awaited))} {approve}{later}."


def _roughly(ahead: timedelta) -> str:
    """A second more or less is of no interest in a quarter of an hour."""
    whole = timedelta(minutes=round(ahead / timedelta(minutes=1)))
    return renderer.span(whole if ahead > timedelta(minutes=2) else ahead)


def _waits(operation: PreviewedOperation) -> list[str]:
    said = list(operation.sentences)
    awaited = _awaited(operation)
    if operation.status == "Scheduled" and awaited:
        vms = wording.several(name for event in awaited for name in event.resources)
        said.append(
            f"Until then nothing happens to {vms}: this is the time to prepare. A guest that reads its events approves "
            "when it is ready, or you approve in its place on the event's page."
        )
        if operation.latest is not None:
            said[-1] += " Without approval it starts all the same when its time has come."
    return said


def _awaited(operation: PreviewedOperation) -> list[PreviewedEvent]:
    return [event for event in operation.events if event.approved_at is None]


def _not_waited_for(operation: PreviewedOperation, silence: timedelta) -> list[str]:
    events = operation.events
    silent = [_who(event) for event in events if event.approved_by == BY_SILENCE]
    settled = [_who(event) for event in events if event.approved_by == BY_POLICY]
    said = []
    if silent:
        said.append(
            f"Not waited for: {wording.several(silent)}. Nobody there listens: no guest has polled within "
            f"the last {renderer.span(silence)}, or the policy says so."
        )
    if settled:
        said.append(f"Not waited for: {wording.several(settled)}, by policy: it approves {operation.kind}s itself.")
    return said


def _who(event: PreviewedEvent) -> str:
    vms = wording.several(event.resources)
    return f"{vms} of group {event.group}" if event.group else vms


def _approver(event: PreviewedEvent) -> str:
    """Any of a group's VMs approves for all that its event names."""
    vms = wording.several(event.resources)
    return f"{event.group} ({vms})" if len(event.resources) > 1 else vms


def besides(preview: Preview) -> list[str]:
    said = [f"Host {name} is cordoned: no VM is put there until somebody uncordons it." for name in preview.cordons]
    ended = [f"the {wording.kind_of(each.kind)} of {wording.several(each.vms)}" for each in preview.ends]
    if ended:
        said.append(f"What was announced or under way there is over: {names(ended)}.")
    return said
