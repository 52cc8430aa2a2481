"""Core's things as operators see them: plain values, ready for JSON."""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from forenotice.core import membership, placement
from forenotice.core.draft import Draft
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Facts, Host, Scope, Vm, amount
from forenotice.core.journal import Entry
from forenotice.core.lifecycle import is_listening
from forenotice.core.operations import Event, Operation, Status
from forenotice.core.timing import Timing

View = dict[str, Any]


# Many things of one answer carry the same moment.
@lru_cache(maxsize=1024)
def moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def plain(value: object) -> Any:
    """Anything that a journal entry or an explanation may hold."""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def host_spec(host: Host) -> View:
    """What an operator can set."""
    return {
        "cordoned": host.cordoned,
        "labels": dict(host.labels),
        "capacity": host.capacity,
        "address": host.address,
    }


def host(host: Host, vms: int, used: float) -> View:
    return {"name": host.name, **host_spec(host), "used": used, "vms": vms}


def loaded_host(draft: Draft, name: str) -> View:
    return host(draft.host(name), len(draft.vms_on(name)), amount(placement.taken(draft, name)))


def facts(facts: Facts) -> View:
    return {**{name: getattr(facts, name) for name in Facts.__dataclass_fields__}, "tags": dict(facts.tags)}


def vm_spec(vm: Vm) -> View:
    """What an operator can set."""
    return {
        "name": vm.name,
        "vm_id": vm.vm_id,
        "host": vm.host,
        "group": vm.group,
        "update_domain": vm.update_domain,
        "fault_domain": vm.fault_domain,
        "spot": vm.spot,
        "addresses": list(vm.addresses),
        "facts": facts(vm.facts),
        "size": vm.size,
    }


def vm(vm: Vm, scope: Scope, now: datetime, timing: Timing) -> View:
    return {
        **vm_spec(vm),
        "scope": vm.scope,
        "policy": membership.policy_facts(scope.policy) if vm.group is None else None,
        **_hearing(scope, now, timing),
    }


def group(scope: Scope, vms: int, now: datetime, timing: Timing) -> View:
    return {
        "name": scope.name,
        "kind": scope.kind.value,
        "policy": membership.policy_facts(scope.policy),
        "vms": vms,
        **_hearing(scope, now, timing),
    }


def _hearing(scope: Scope, now: datetime, timing: Timing) -> View:
    return {
        "incarnation": scope.incarnation,
        "listening": is_listening(scope, now, timing),
        "last_heard": moment(scope.last_heard),
    }


def operation(operation: Operation, events: list[Event]) -> View:
    planned = operation.status is Status.PLANNED
    # While held, the time is unknown: `due_at` is only the next check.
    held = planned and operation.held
    return {
        "id": operation.id,
        "kind": str(operation.kind),
        "host": operation.host,
        "vms": list(operation.vms),
        "status": str(operation.status),
        "created_at": moment(operation.created_at),
        "not_before": None if held else moment(operation.not_before),
        "announce_at": moment(operation.due_at) if planned and not held else None,
        "started_at": moment(operation.started_at),
        "ended_at": moment(operation.ended_at),
        "by": operation.by,
        "reason": operation.reason,
        "rollout": operation.rollout,
        "targets": dict(operation.targets),
        "attempt": operation.attempt,
        "failures": dict(operation.failures),
        "events": [event_of(operation, event) for event in events],
    }


def event_of(operation: Operation, event: Event) -> View:
    noun, _, name = event.scope.partition(":")
    return {
        "id": event.id,
        "operation": event.operation,
        "kind": str(operation.kind),
        "host": operation.host,
        "scope": event.scope,
        "group": name if noun == "group" else None,
        "resources": list(event.resources),
        "type": str(event.type),
        "source": str(event.source),
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


def explanation(explanation: Explanation) -> View:
    return {
        explanation.noun: explanation.id,
        "sentence": explanation.sentence,
        "sentences": list(explanation.sentences),
        "since": moment(explanation.since),
        "until": moment(explanation.until),
        "waiting_for": plain(explanation.waiting_for),
    }


def entry(seq: int, entry: Entry) -> View:
    return {
        "seq": seq,
        "at": moment(entry.at),
        "action": entry.action,
        "by": entry.by,
        "origin": entry.origin,
        "reason": entry.reason,
        "scope": entry.scope,
        "event": entry.event,
        "operation": entry.operation,
        "host": entry.host,
        "vm": entry.vm,
        "rollout": entry.rollout,
        "data": plain(entry.data),
    }
