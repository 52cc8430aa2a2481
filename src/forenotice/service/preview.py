"""What scheduling an operation would do: what guests read, when it can start, and what it waits for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from forenotice.core import explanations, placement
from forenotice.core.blockers import BlockerKind
from forenotice.core.documents import Document
from forenotice.core.draft import Draft
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.selectors import Selector
from forenotice.service import maintenance, views, visibility
from forenotice.service.calls import Call
from forenotice.service.service import Service, allowance_for
from forenotice.views.maintenance import EndedOperation, Preview, PreviewedEvent, PreviewedOperation
from forenotice.wire import document, versions

NOT_YET_KNOWN = "not yet known"
"""In place of the id that an event will have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A draft on which everything is decided, and which is then thrown away."""

    draft: Draft
    shown: Draft
    """The part of it that the caller may see."""
    told: dict[str, Mapping[str, Any]]
    """What each new event's scope reads, by the event's id."""
    made_up: frozenset[str]
    """Ids of the new operations and events: they will have others, so these are not told."""
    expiry_from: datetime
    seen: Selector | None


def preview(
    service: Service, call: Call, *, kind: Kind, names: Sequence[str], notice: timedelta | None = None
) -> Preview:
    """The same decisions and the same refusals as by `maintenance.schedule` at this moment; nothing is written."""
    maintenance.require_sound(call, kind, names)
    with service.store.read() as reader:
        names = maintenance.selected(reader, call, kind, names)
        world = maintenance.load(reader, kind, names, service.limits)
    draft = service.draft(
        world,
        by=call.actor,
        reason=call.reason,
        allowance=allowance_for(world),
        limits=service.limits,
    )
    made = [each.id for each in maintenance.decide(draft, call, kind=kind, names=names, notice=notice)]
    changes = draft.changes()
    made_up = frozenset(made)
    told = _as_guests_read(changes.documents, made_up)
    outcome = Outcome(
        draft=draft,
        shown=visibility.visible(draft, call.access.scopes),
        told=told,
        made_up=made_up.union(told),
        expiry_from=service.expiry_from,
        seen=call.access.scopes,
    )
    ended = [each for key, each in changes.operations.items() if key not in made_up and not each.status.live]
    return Preview(
        at=draft.now,
        kind=kind,
        operations=[_operation(outcome, key) for key in made],
        ends=[
            EndedOperation(id=each.id, kind=each.kind, host=each.host, vms=list(each.vms), status=each.status)
            for each in ended
        ],
        cordons=[host.name for host in changes.hosts.values() if host is not None and host.cordoned],
    )


def _as_guests_read(documents: Sequence[Document], made: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """The new events as their scopes' documents will have them in the newest api-version."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in documents:
        new = replace(each, events=tuple(event for event in each.events if event.operation in made))
        rendered = msgspec.json.decode(document.render(new, versions.NEWEST))["Events"]
        found |= {event["EventId"]: {**event, "EventId": NOT_YET_KNOWN} for event in rendered}
    return found


def _operation(outcome: Outcome, key: str) -> PreviewedOperation:
    draft, shown = outcome.draft, outcome.shown
    operation = draft.operation(key)
    view = views.operation(shown.operation(key), shown.events_of(key))
    earliest = explanations.start_at_the_earliest(draft, operation, outcome.expiry_from)
    found = explanations.explain_operation(draft, operation, outcome.expiry_from)
    if operation.status is Status.STARTED:
        found = _of_started(draft, operation, found)
    explained = views.explanation(visibility.explanation(draft, found, outcome.seen))
    fields = msgspec.structs.asdict(view) | {
        "id": "",
        "events": [
            PreviewedEvent(
                **msgspec.structs.asdict(event) | {"id": "", "operation": ""}, told=dict(outcome.told[event.id])
            )
            for event in view.events
        ],
    }
    return PreviewedOperation(
        **fields,
        earliest=earliest,
        latest=found.until,
        sentence=explained.sentence,
        sentences=explained.sentences,
        waiting_for=[_without_made_up(outcome, facts) for facts in explained.waiting_for],
    )


def _of_started(draft: Draft, operation: Operation, found: Explanation) -> Explanation:
    """It is in the driver's hands then, but for those who have nowhere to go."""
    waiting = tuple(facts for facts in found.waiting_for if facts["kind"] == BlockerKind.TARGET_HOST)
    said = ["It starts at once: nobody is waited for."]
    if waiting:
        sizes = {str(facts["vm"]): placement.size_in_the_way(draft, str(facts["vm"])) for facts in waiting}
        said.append(f"But {placement.without_target(sizes)}.")
    return replace(found, sentences=tuple(said), until=operation.started_at, waiting_for=waiting)


def _without_made_up(outcome: Outcome, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if not (isinstance(value, str) and value in outcome.made_up)}
