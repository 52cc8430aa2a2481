"""/act: do something to VMs or hosts, after a look at what comes of it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from forenotice.control.responses import status_of
from forenotice.core import announcements, errors, roles
from forenotice.core.announcements import BY_POLICY, BY_SILENCE
from forenotice.core.blockers import BlockerKind
from forenotice.core.fleet import names as joined
from forenotice.core.operations import EventType, Kind
from forenotice.core.roles import Need
from forenotice.core.timing import SILENCE
from forenotice.portal import forms
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.renderer import span, utc
from forenotice.service import maintenance, queries
from forenotice.views import maintenance as views
from forenotice.views.base import YEAR_MINUTES
from forenotice.views.maintenance import PreviewedEvent, PreviewedOperation
from forenotice.views.wording import kind_of, several

SUGGESTED = 50
FIELDS = ("kind", "name", "notice", "duration", "reason")
MOST_EVENTS = 12
"""Shown one by one; a host may have many more."""
MOST_OPERATIONS = 12
MEANING = {
    EventType.FREEZE: "the VM pauses for some seconds, and keeps what is in its memory",
    EventType.REBOOT: "the VM restarts, and loses what is in its memory",
    EventType.REDEPLOY: "the VM moves to another host and starts anew there",
    EventType.PREEMPT: "the spot VM is removed",
    EventType.TERMINATE: "the VM is deleted",
}
NOT_ANNOUNCED = "No guest is told: a deletion is announced only in groups that ask for it, and never to spot VMs."

pages = Pages()


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of operation, as somebody asks for it."""

    kind: Kind
    verb: str
    meaning: str
    then: str
    """What happens once it starts."""
    warning: str = ""
    """Of what cannot be undone."""

    @property
    def noun(self) -> str:
        return "host" if self.kind.traits.of_host else "VM"

    @property
    def notice(self) -> timedelta | None:
        """Where none is given; None: each group says it."""
        return announcements.usual_notice(self.kind)

    @property
    def notice_can_be_chosen(self) -> bool:
        return self.kind not in announcements.NOTICE_SETTLED


REMOVED = "It is removed from its host and from the fleet."
ACTIONS = {
    action.kind: action
    for action in (
        Action(Kind.RESTART, "Restart", "a VM, where it is", "It restarts on its host."),
        Action(
            Kind.REDEPLOY,
            "Redeploy",
            "a VM: it moves to another host and starts anew there",
            "It is stopped, and starts anew on another host.",
        ),
        Action(
            Kind.EVICTION,
            "Evict",
            "a spot VM: its capacity is needed elsewhere",
            REMOVED,
            "An eviction cannot be undone: what is evicted is removed for good.",
        ),
        Action(
            Kind.DELETION,
            "Delete",
            "a VM for good",
            REMOVED,
            "A deletion cannot be undone: what is deleted is removed for good.",
        ),
        Action(
            Kind.HOST_UPDATE,
            "Update",
            "a host: its VMs freeze for some seconds",
            "The host is updated; its VMs stand still for some seconds.",
        ),
        Action(Kind.HOST_REBOOT, "Reboot", "a host, and all VMs on it", "The host reboots, and its VMs with it."),
        Action(
            Kind.LIVE_MIGRATION,
            "Migrate",
            "all VMs of a host to other hosts, while they run",
            "Its VMs move to other hosts; each stands still for some seconds.",
        ),
        Action(
            Kind.DEGRADED_HARDWARE,
            "Degrade",
            "a host whose hardware is expected to fail: its VMs are redeployed in good time",
            "Its VMs are stopped, and start anew on other hosts.",
        ),
        Action(
            Kind.HARDWARE_FAILURE,
            "Fail",
            "a host whose hardware has failed: its VMs are redeployed at once",
            "Its VMs start anew on other hosts.",
            "A failure gives nobody time to prepare and cannot be undone: it starts the moment you confirm.",
        ),
    )
}


def actions_on(noun: str, visit: PageRequest) -> list[Action]:
    """What this one may do to a `VM`, to a `host`, or to either where the noun is empty."""
    return [each for each in ACTIONS.values() if noun in ("", each.noun) and visit.may(roles.need_of(each.kind))]


@pages.get("/act", needs=Need.OPERATE)
def show(visit: PageRequest) -> Response:
    given = {field: visit.query.get(field, "").strip() for field in FIELDS}
    given["name"] = ", ".join(name.strip() for name in visit.query.getlist("name") if name.strip())
    if not (given["kind"] and given["name"]):
        return _page(visit, given)
    try:
        asked = _asked(visit, given)
        found = maintenance.preview(visit.service, visit.call(), **_options(asked))
    except (errors.RefusedError, errors.ConflictError, errors.NotFoundError) as error:
        # The page itself is in order: it says that this would be refused.
        return _page(visit, given, refused=error.message, already=_already(visit, given, error))
    return _page(visit, given, preview=_previews(asked, found))


@pages.post("/act", needs=Need.OPERATE)
def act(visit: PageRequest) -> Response:
    given = {field: visit.form.get(field, "").strip() for field in FIELDS}
    try:
        asked = _asked(visit, given)
        made = maintenance.schedule(visit.service, visit.call(), **_options(asked)).operations
    except (errors.RefusedError, errors.ConflictError, errors.NotFoundError) as error:
        return _page(visit, given, refused=error.message, status=status_of(error))
    path = _page_of(made[0]) if len(made) == 1 else "/"
    return visit.go(path, message=f"{ACTIONS[asked.kind].verb} {several(asked.names)}: {_done(made)}")


def _page_of(operation: views.Operation) -> str:
    events = operation.events
    return f"/events/{events[0].id}" if len(events) == 1 else f"/operations/{operation.id}"


def _already(visit: PageRequest, given: dict[str, str], error: errors.ForenoticeError) -> views.Operation | None:
    """The same, where it is announced: somebody who confirmed it and went back here has done nothing wrong."""
    if (known := error.facts.get("operation")) is None:
        return None
    try:
        operation = queries.operation(visit.service, str(known), visit.seen)
    except errors.NotFoundError:
        return None
    same = operation.kind == given["kind"] and given["name"] in (*operation.vms, operation.host)
    return operation if same else None


def _asked(visit: PageRequest, given: dict[str, str]) -> views.NewOperation:
    values: dict[str, Any] = {"kind": given["kind"], "names": _names(given["name"])}
    if given["notice"]:
        values["notice_minutes"] = _minutes(given["notice"])
    if given["duration"]:
        values["duration_seconds"] = forms.number(given["duration"])
    return visit.asked(views.NewOperation, values)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 <= minutes <= YEAR_MINUTES:
        raise errors.RefusedError(
            f"a notice of {text[:20]!r} is not a number of minutes from 0 to {YEAR_MINUTES}: "
            "give one such as 20, or leave it out"
        )
    return minutes


def _options(asked: views.NewOperation) -> dict[str, Any]:
    notice = None if asked.notice_minutes is None else timedelta(minutes=asked.notice_minutes)
    return {"kind": asked.kind, "names": asked.names, "notice": notice, "duration": asked.duration_seconds}


def _page(
    visit: PageRequest,
    given: dict[str, str],
    *,
    preview: dict[str, Any] | None = None,
    refused: str = "",
    already: views.Operation | None = None,
    status: int = 200,
) -> Response:
    actions = actions_on("", visit)
    action = next((action for action in actions if action.kind == given["kind"]), None)
    # What is confirmed is done to the hosts that were shown, not to others that fit a selector by then.
    names = preview["names"] if preview else _names(given["name"])
    return visit.page(
        "act.html",
        status=status,
        actions=actions,
        action=action,
        given=given,
        names=names,
        what=f"{action.verb} {several(names)}" if action and names else "",
        suggestions=_suggestions(visit, action),
        preview=preview,
        refused=refused,
        already=already,
        already_at=_page_of(already) if already else "",
        empty=not queries.vms(visit.service, limit=1, seen=visit.seen).items,
        timing=visit.service.timing,
    )


def _suggestions(visit: PageRequest, action: Action | None) -> list[tuple[str, str]]:
    """Names that can be typed, each with what it is."""
    found: list[tuple[str, str]] = []
    if action is None or action.noun == "VM":
        vms = queries.vms(visit.service, limit=SUGGESTED, seen=visit.seen).items
        found += [(vm.name, f"VM of group {vm.group}" if vm.group else "VM") for vm in vms]
    if visit.may(Need.MANAGE) and (action is None or action.noun == "host"):
        found = found[: SUGGESTED // 2] if action is None else found
        hosts = queries.hosts(visit.service, limit=SUGGESTED - len(found)).items
        found += [(host.name, "host") for host in hosts]
    return found


def _done(made: Sequence[views.Operation]) -> str:
    if len(made) > 1:
        return f"{len(made)} operations are made."
    (operation,) = made
    if operation.status == "Started":
        return "it has started. Nobody is waited for."
    if operation.announce_at:
        return f"it is planned. Guests are told at {utc(operation.announce_at)}."
    return "it is announced."


# The preview, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPreview:
    """Times stand in the sentences as the service writes them."""

    name: str
    """The VM or host that it is asked for."""
    events: Sequence[tuple[str, PreviewedEvent, str]]
    """Who reads each, and the JSON that they read."""
    more: int
    """How many events there are beside these."""
    meaning: str
    start: str
    waits: Sequence[str]


def _previews(asked: views.NewOperation, found: views.Preview) -> dict[str, Any]:
    operations = found.operations
    names = [each.host if asked.kind.traits.of_host else each.vms[0] for each in operations]
    shown = operations[:MOST_OPERATIONS]
    return {
        "at": found.at,
        "names": names,
        "previews": [_preview(each, name, found.at) for name, each in zip(names, shown, strict=False)],
        "more": len(operations) - len(shown),
        "besides": _besides(found),
        "announced": any(operation.events for operation in operations),
        "can_be_cancelled": any(operation.status != "Started" for operation in operations),
    }


def _preview(operation: PreviewedOperation, name: str, at: datetime) -> OperationPreview:
    shown = operation.events[:MOST_EVENTS]
    return OperationPreview(
        name=name,
        events=[(_who(event), event, json.dumps(event.told, indent=2, ensure_ascii=False)) for event in shown],
        more=len(operation.events) - len(shown),
        meaning=_meaning(operation),
        start=_start(operation, at),
        waits=[*_waits(operation), *_not_waited_for(operation)],
    )


def _meaning(operation: PreviewedOperation) -> str:
    kind = operation.kind.traits.type
    means = f"{kind} means that {MEANING[kind]}."
    if operation.announce_at:
        return f"Guests are not told before {utc(operation.announce_at)}. {means}"
    return means if operation.events else NOT_ANNOUNCED


def _start(operation: PreviewedOperation, now: datetime) -> str:
    earliest, latest = operation.earliest or now, operation.latest
    later = f", but not before {utc(earliest)}" if earliest > now else ""
    if latest is None:
        return f"Nobody knows until when it must wait: something is in the way that ends at no known time{later}."
    if latest <= now:
        return "At once, when you confirm."
    ahead = _roughly(latest - now)
    if earliest == latest:
        return f"At {utc(latest)}, {ahead} from now, and not earlier."
    awaited = _awaited(operation)
    if any(each["kind"] == BlockerKind.NOTICE for each in operation.waiting_for):
        sooner = "as soon as somebody approves it"
    elif awaited:
        approve = "approves" if len(awaited) == 1 else "approve"
        sooner = f"as soon as {several(map(_approver, awaited))} {approve}"
    else:
        sooner = "if what is in the way ends earlier"
    return f"At {utc(latest)} at the latest, {ahead} from now. Earlier, {sooner}{later}."


def _roughly(ahead: timedelta) -> str:
    """A second more or less is of no interest in a quarter of an hour."""
    whole = timedelta(minutes=round(ahead / timedelta(minutes=1)))
    return span(whole if ahead > timedelta(minutes=2) else ahead)


def _waits(operation: PreviewedOperation) -> list[str]:
    sentences = list(operation.sentences)
    awaited = _awaited(operation)
    if operation.status == "Scheduled" and awaited:
        vms = several(name for event in awaited for name in event.resources)
        sentences.append(
            f"Until then nothing happens to {vms}: this is the time to prepare. A guest that reads its events approves "
            "when it is ready, or you approve in its place on the event's page."
        )
        if operation.latest is not None:
            sentences[-1] += " Without approval it starts all the same when its time has come."
    return sentences


def _awaited(operation: PreviewedOperation) -> list[PreviewedEvent]:
    return [event for event in operation.events if event.approved_at is None]


def _not_waited_for(operation: PreviewedOperation) -> list[str]:
    silent = [_who(event) for event in operation.events if event.approved_by == BY_SILENCE]
    settled = [_who(event) for event in operation.events if event.approved_by == BY_POLICY]
    sentences = []
    if silent:
        sentences.append(
            f"Not waited for: {several(silent)}. Nobody there listens: no guest has polled within "
            f"the last {span(SILENCE)}, or the policy says so."
        )
    if settled:
        sentences.append(f"Not waited for: {several(settled)}, by policy: it approves {operation.kind}s itself.")
    return sentences


def _who(event: PreviewedEvent) -> str:
    vms = several(event.resources)
    return f"{vms} of group {event.group}" if event.group else vms


def _approver(event: PreviewedEvent) -> str:
    """Any of a group's VMs approves for all that its event names."""
    vms = several(event.resources)
    return f"{event.group} ({vms})" if len(event.resources) > 1 else vms


def _besides(found: views.Preview) -> list[str]:
    sentences = [f"Host {name} is cordoned: no VM is put there until somebody uncordons it." for name in found.cordons]
    if ended := [f"the {kind_of(each.kind)} of {several(each.vms)}" for each in found.ends]:
        sentences.append(f"What was announced or under way there is over: {joined(ended)}.")
    return sentences
