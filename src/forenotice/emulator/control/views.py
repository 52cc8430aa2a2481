"""What those who control the emulator over HTTP send and are shown."""

from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from forenotice.core.operations import Event
from forenotice.emulator import words
from forenotice.emulator.active_faults import ActiveFault
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.faults import Fault, On
from forenotice.emulator.player import Player
from forenotice.emulator.request_log import LoggedRequest
from forenotice.emulator.scenarios.format import MOST_TIMES, Amount
from forenotice.emulator.scenarios.reader import LARGEST
from forenotice.settings.spans import Span
from forenotice.views.base import LongText, Name, Request, Text

View = dict[str, Any]


def moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def state(emulator: Emulator, now: datetime) -> View:
    simulation = emulator.simulation
    return {
        "now": moment(now),
        "paused": emulator.clock.stands,
        "speed": emulator.timing.speed,
        "endpoint": f"http://{emulator.address}",
        "as": emulator.as_vm,
        "vms": [{"name": vm.name, "update_domain": vm.update_domain} for vm in simulation.vms],
        "incarnation": simulation.scope.incarnation,
        "scenario": None if emulator.player is None else playing(emulator.player),
        "events": [event(each) for each in simulation.live],
        "faults": [active(each) for each in emulator.faults.active],
        "requests": len(emulator.requests),
    }


def playing(player: Player) -> View:
    return {
        "name": player.scenario.name,
        "title": player.scenario.title,
        "seed": player.scenario.seed,
        "done": player.done,
        "waiting_for": player.waiting_for,
        "events": dict(player.labels),
        "notes": [{"at": moment(note.at), "message": note.message} for note in player.deviations],
    }


def event(event: Event) -> View:
    return {
        "id": event.id,
        "type": str(event.type),
        "source": str(event.source),
        "resources": list(event.resources),
        "description": event.description,
        "duration_seconds": event.duration,
        "status": str(event.status),
        "created_at": moment(event.created_at),
        "not_before": moment(event.not_before),
        "approved_at": moment(event.approved_at),
        "approved_by": event.approved_by,
        "implied": event.implied,
        "ended_at": moment(event.ended_at),
    }


def active(active: ActiveFault) -> View:
    """A fault that is switched on."""
    return {
        "name": active.fault.name,
        "on": str(active.on),
        "amount_seconds": None if active.fault.amount is None else active.amount.total_seconds(),
        "times": active.times,
        "until": moment(active.until),
    }


def fault(fault: Fault, switched_on: ActiveFault | None) -> View:
    return {
        "name": fault.name,
        "on": str(fault.on),
        "amount_seconds": _seconds(fault.amount),
        "lasts_seconds": _seconds(fault.lasts),
        "sees": fault.symptom,
        "seen": fault.evidence,
        "active": None if switched_on is None else active(switched_on),
    }


def request(request: LoggedRequest) -> View:
    return {
        "at": moment(request.at),
        "vm": request.vm,
        "method": request.method,
        "target": request.target,
        "api_version": request.api_version,
        "headers": dict(request.headers),
        "body": request.body.decode(errors="replace"),
        "status": request.status,
        "fault": request.fault,
        "reason": request.reason,
        "event_ids": list(request.event_ids),
    }


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


MOST_RESOURCES = 1000


Word = Annotated[str, Meta(extra_json_schema={"enum": list(words.WORDS)})]
Resources = Annotated[tuple[Name, ...], Meta(max_length=MOST_RESOURCES)]


class NewEvent(Request):
    kind: Word
    resources: Resources = ()
    """None: the VM that callers are."""
    notice: Span | None = None
    takes: Span | None = None
    description: LongText | None = None
    duration_seconds: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None


class Play(Request):
    scenario: Annotated[str, Meta(min_length=1, max_length=LARGEST)]
    """One of the catalogue, or the TOML of another."""
    source: Text = "scenario.toml"
    """The file that complaints about the TOML speak of."""
    resources: Resources = ()
    seed: int | None = None


class Advance(Request):
    by: Span


class NewFault(Request):
    name: Text
    amount: Amount | None = None
    on: On | None = None
    times: Annotated[int, Meta(ge=1, le=MOST_TIMES)] | None = None
    lasts: Span | None = None


class NewEndpoint(Request):
    vm: Name
