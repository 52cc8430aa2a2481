"""From a spec to an operation: its notice, its events, and when it may start."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from forenotice.core import errors, lifecycle, placement, windows
from forenotice.core.blockers import announcement_blockers
from forenotice.core.draft import Draft
from forenotice.core.fleet import Scope, Vm, names, names_of, natural_key
from forenotice.core.lifecycle import RECHECK
from forenotice.core.operations import DEGRADED_NOTICE, Event, Kind, Operation, Source, Status, require_duration
from forenotice.core.roles import TENANT

MINUTE = timedelta(minutes=1)
BY_SILENCE = "silence"
BY_POLICY = "policy"
NOTICE_SETTLED = frozenset({Kind.DELETION, Kind.HARDWARE_FAILURE})
"""Kinds whose notice cannot be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSpec:
    """What an operator or a rollout asks for: maintenance of a VM or a host, as the kind says."""

    kind: Kind
    name: str
    notice: timedelta | None = None
    """How far ahead, where that is not settled by the kind."""
    duration: int | None = None
    """How many seconds a host update freezes the VMs; None: as usual."""
    reason: str = ""
    rollout: str | None = None


def schedule(draft: Draft, spec: OperationSpec) -> Operation:
    """Make the operation and its events. Some are born Started; one that waits for a window is Planned and has none."""
    kind = spec.kind
    host, vms = _vms_of_host(draft, spec) if kind.traits.of_host else _one_vm(draft, spec)
    if kind is Kind.HARDWARE_FAILURE:
        lifecycle.end_operations_of_failed_host(draft, host)
        vms = draft.vms_on(host)
    notice = _notice(draft, spec, vms)
    announce_at, not_before = draft.now, windows.earliest(draft, notice)
    if kind.traits.maintenance:
        for scope, members in _by_scope(draft, vms):
            draft.require_budget(scope.key, vms=len(members), host=host)
        not_before = windows.first_start(draft, [vm.name for vm in vms], spec.rollout, not_before)
        announce_at = windows.announce_at(not_before, draft.timing.shortened(notice), draft.now)
    planned = announce_at > draft.now
    operation = Operation(
        id=draft.new_id(),
        kind=kind,
        host=host,
        vms=names_of(vms),
        status=Status.PLANNED if planned else Status.SCHEDULED,
        created_at=draft.now,
        not_before=not_before,
        due_at=announce_at if planned else not_before,
        notice=notice,
        duration=require_duration(kind, spec.duration),
        by=draft.by,
        reason=spec.reason,
        rollout=spec.rollout,
    )
    if kind is Kind.REDEPLOY and spec.name not in placement.choose(draft, operation, operation.vms):
        missing = placement.size_in_the_way(draft, spec.name)
        facts = {} if missing is None else {"size": missing}
        raise errors.ConflictError(placement.without_target(draft, {spec.name: missing}), vm=spec.name, **facts)
    (_plan if planned else announce)(draft, operation)
    if kind in (Kind.DEGRADED_HARDWARE, Kind.HARDWARE_FAILURE) and not draft.host(host).cordoned:
        draft.put_host(replace(draft.host(host), cordoned=True))
        draft.note("host.cordoned", host=host, operation=operation.id)
    return draft.operation(operation.id)


def usual_notice(kind: Kind) -> timedelta | None:
    """The notice where the request names none, at speed 1; None: the group's policy decides."""
    if kind is Kind.DELETION:
        return None
    return DEGRADED_NOTICE if kind is Kind.DEGRADED_HARDWARE else kind.traits.minimum_notice


def announce_in_time(draft: Draft, operation: Operation) -> None:
    """Check a Planned operation with the current VMs and windows, and announce it if it is time."""
    operation = replace(operation, vms=names_of(draft.vms_on(operation.host)))
    if not operation.vms:
        lifecycle.end(draft, operation, Status.CANCELED)
        return
    found = announcement_blockers(draft, operation)
    if not found:
        earliest = windows.earliest(draft, operation.notice)
        not_before = windows.first_start(draft, operation.vms, operation.rollout, earliest)
        announce(
            draft, replace(operation, status=Status.SCHEDULED, not_before=not_before, due_at=not_before, held=False)
        )
        return
    known = [blocker.until for blocker in found if blocker.until is not None]
    held = len(known) < len(found)
    planned = replace(operation, due_at=min([*known, draft.now + RECHECK]) if held else known[0], held=held)
    opens_at = next((blocker.opens_at for blocker in found if blocker.opens_at is not None), operation.not_before)
    if opens_at == operation.not_before:
        draft.put_operation(planned)
    else:
        _plan(draft, replace(planned, not_before=opens_at))


def _plan(draft: Draft, operation: Operation) -> None:
    """Operators see it; guests do not."""
    draft.put_operation(operation)
    times = {"announce_at": operation.due_at, "not_before": operation.not_before}
    draft.note("operation.planned", operation, **times, **_facts(operation))


def announce(draft: Draft, operation: Operation) -> None:
    """Make an event for every scope concerned; start what is born Started, and set when tick looks at the rest."""
    draft.put_operation(operation)
    draft.note("operation.scheduled", operation, **_facts(operation))
    vms = [draft.vm(name) for name in operation.vms]
    for scope, members in _by_scope(draft, vms):
        wanted = scope.policy.terminate_notice is not None and not members[0].spot
        # A deletion is an event only where the group asks for it, and never for a spot VM.
        if operation.kind is not Kind.DELETION or wanted:
            _tell(draft, operation, scope, members)
    approved = all(event.approved for event in draft.live_events_of(operation.id))
    if operation.kind is Kind.HARDWARE_FAILURE:
        lifecycle.start(draft, operation)
    elif approved and operation.kind.traits.source is Source.USER:
        lifecycle.start_or_hold(draft, operation, expiry_from=draft.now)
    elif approved:
        draft.put_operation(replace(operation, due_at=draft.now))


def _facts(operation: Operation) -> dict[str, Any]:
    return {"kind": operation.kind, "vms": list(operation.vms), "reason": operation.reason}


def _vms_of_host(draft: Draft, spec: OperationSpec) -> tuple[str, list[Vm]]:
    host = draft.host(spec.name)
    for other in draft.live_operations_on(host.name):
        if other.kind is spec.kind and (lifecycle.may_be_canceled(other) or spec.kind is Kind.HARDWARE_FAILURE):
            raise _already(spec, other)
    vms = draft.vms_on(host.name)
    arriving = placement.arriving_at(draft, host.name)
    if arriving and spec.kind.traits.maintenance:
        operation, moving = arriving[0]
        why = f"operation {operation.id} is moving {names(moving)} to host {host.name}: let it end first"
        raise errors.ConflictError(why, operation=operation.id, status=operation.status)
    require_vms(draft, host.name)
    return host.name, vms


def require_vms(draft: Draft, host: str) -> None:
    """Refuse a host that has no VMs, nor will have."""
    if not draft.vms_on(draft.host(host).name) and not placement.arriving_at(draft, host):
        why = f"host {host} has no VMs, so no guest has to be told: carry out the maintenance, or cordon the host"
        raise errors.ConflictError(why, host=host, vms=0)


def _one_vm(draft: Draft, spec: OperationSpec) -> tuple[str, list[Vm]]:
    vm = draft.vm(spec.name)
    if spec.kind is Kind.EVICTION and not vm.spot:
        raise errors.ConflictError(f"{vm.name} is not a spot VM: only those are evicted", vm=vm.name, spot=vm.spot)
    for other in draft.live_operations_naming(vm.name):
        if other.kind is spec.kind and other.status is Status.SCHEDULED:
            raise _already(spec, other)
    if spec.kind.traits.source is Source.USER:
        _require_within_limits(draft, draft.scope(vm.scope))
    return vm.host, [vm]


def _already(spec: OperationSpec, other: Operation) -> errors.ConflictError:
    why = f"{spec.name} has a {spec.kind} that is {other.status} already: operation {other.id}"
    return errors.ConflictError(why, operation=other.id, status=other.status, not_before=other.not_before)


def _require_within_limits(draft: Draft, scope: Scope) -> None:
    limit, fleet, tenant = scope.policy.max_user_operations, draft.limits.fleet, draft.limits.tenant
    if limit is not None and len(live := draft.users_operations_in(scope.key)) >= limit:
        why = f"{scope.name} has {len(live)} users' operations under way and allows {limit} at a time"
        why += ": wait for one to end, or cancel one"
        raise errors.ConflictError(why, limit=limit, operations=sorted(live))
    if fleet is not None and draft.world.asked_by.total() >= fleet:
        why = f"the fleet allows {fleet} users' operations at a time: wait for one to end, or ask for fewer"
        raise errors.ConflictError(why, limit=fleet)
    if tenant is not None and draft.by.startswith(TENANT) and draft.world.asked_by[draft.by] >= tenant:
        why = f"{draft.by} may have {tenant} operations at a time: wait for one to end, cancel one, or ask for fewer"
        raise errors.ConflictError(why, limit=tenant)


def _notice(draft: Draft, spec: OperationSpec, vms: list[Vm]) -> timedelta:
    minimum = spec.kind.traits.minimum_notice
    if spec.notice is None:
        usual = usual_notice(spec.kind)
        return usual if usual is not None else draft.scope(vms[0].scope).policy.terminate_notice or timedelta(0)
    if spec.kind in NOTICE_SETTLED:
        raise errors.RefusedError(f"the notice of a {spec.kind} cannot be chosen: leave it out")
    if spec.notice < minimum:
        raise errors.RefusedError(
            f"{spec.kind} needs at least {minimum / MINUTE:g} minutes of notice, not {spec.notice / MINUTE:g}"
        )
    return spec.notice


def _by_scope(draft: Draft, vms: list[Vm]) -> list[tuple[Scope, list[Vm]]]:
    found: dict[str, list[Vm]] = {}
    for vm in sorted(vms, key=lambda vm: natural_key(vm.name)):
        found.setdefault(vm.scope, []).append(vm)
    return [(draft.scope(key), members) for key, members in found.items()]


def _approved_by(draft: Draft, kind: Kind, scope: Scope) -> str | None:
    """What approves the event of a scope as soon as it is announced."""
    if kind is Kind.HARDWARE_FAILURE:
        return None
    policy = scope.policy
    if {Kind.RESTART: policy.auto_approve_restart, Kind.REDEPLOY: policy.auto_approve_redeploy}.get(kind):
        return BY_POLICY
    return None if lifecycle.is_listening(scope, draft.now, draft.timing) else BY_SILENCE


def _tell(draft: Draft, operation: Operation, scope: Scope, members: list[Vm]) -> None:
    traits, by = operation.kind.traits, _approved_by(draft, operation.kind, scope)
    event = Event(
        id=draft.new_id().upper(),
        operation=operation.id,
        scope=scope.key,
        resources=tuple(vm.name for vm in members),
        update_domain=members[0].update_domain,
        type=traits.type,
        source=traits.source,
        description=traits.description,
        duration=operation.announced_seconds,
        status=Status.SCHEDULED,
        created_at=draft.now,
        not_before=operation.not_before,
        approved_at=draft.now if by else None,
        approved_by=by,
        implied=by == BY_SILENCE,
    )
    draft.put_event(event)
    facts = {"type": event.type, "resources": list(event.resources), "not_before": event.not_before, "approved_by": by}
    draft.note("event.scheduled", event, host=operation.host, **facts)
