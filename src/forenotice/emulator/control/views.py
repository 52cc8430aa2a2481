"""The emulator's things as whoever drives it sees them: plain values, ready for JSON."""

from datetime import datetime, timedelta
from typing import Any

from forenotice.core.operations import Event
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.faults.active import Active
from forenotice.emulator.faults.table import Fault
from forenotice.emulator.playing import Player
from forenotice.emulator.requests import Requested

View = dict[str, Any]


def moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def state(emulator: Emulator, now: datetime) -> View:
    stage = emulator.stage
    return {
        "now": moment(now),
        "paused": emulator.clock.stands,
        "speed": emulator.timing.speed,
        "endpoint": f"http://{emulator.address}",
        "as": emulator.as_vm,
        "vms": [{"name": vm.name, "update_domain": vm.update_domain} for vm in stage.vms],
        "incarnation": stage.scope.incarnation,
        "scenario": None if emulator.player is None else playing(emulator.player),
        "events": [event(each) for each in stage.live],
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
        "notes": [{"at": moment(note.at), "said": note.said} for note in player.notes],
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


def active(active: Active) -> View:
    """A fault that is switched on."""
    return {
        "name": active.fault.name,
        "on": str(active.on),
        "amount_seconds": None if active.fault.amount is None else active.amount.total_seconds(),
        "times": active.times,
        "until": moment(active.until),
    }


def fault(fault: Fault, switched_on: Active | None) -> View:
    return {
        "name": fault.name,
        "on": str(fault.on),
        "amount_seconds": _seconds(fault.amount),
        "lasts_seconds": _seconds(fault.lasts),
        "sees": fault.sees,
        "seen": fault.seen,
        "active": None if switched_on is None else active(switched_on),
    }


def request(request: Requested) -> View:
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
