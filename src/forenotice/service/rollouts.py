"""Operators' commands about rollouts."""

from collections.abc import Callable, Collection
from dataclasses import replace

from forenotice import garbage_collection
from forenotice.core import errors, explanations, rollout_plan, rollout_progress, rollouts
from forenotice.core.draft import Draft, World
from forenotice.core.roles import Access, Need
from forenotice.core.rollouts import Rollout, RolloutHostStatus, RolloutSpec, RolloutStatus
from forenotice.service import clocks, views
from forenotice.service.calls import Call, command, recalled
from forenotice.service.queries import with_targets
from forenotice.service.service import ALLOWANCES, Service, UnitOfWork
from forenotice.service.views import NAMES
from forenotice.store.rollouts import RolloutFilter
from forenotice.store.transaction import Reader, Transaction
from forenotice.views import base
from forenotice.views import rollouts as shown
from forenotice.views.base import Page
from forenotice.views.maintenance import RolloutExplanation

SAMPLE = 10
"""Hosts that an explanation looks at, of those under way and of those that wait."""


def plan(service: Service, spec: RolloutSpec) -> shown.RolloutPlan:
    """What it would come to; nothing is done. What could not be started is refused here too."""
    _require_gate(service, spec)
    fleet = _fleet(service)
    with service.store.read() as reader:
        _require_alone(reader, spec, rollouts.chosen_hosts(spec, fleet.world.hosts))
    return views.plan(rollout_plan.plan(fleet, spec), spec)


def start(service: Service, call: Call, spec: RolloutSpec) -> shown.Rollout:
    """Waves come from a view of the fleet before; what is promised is checked when each host is announced."""
    with service.store.read() as reader:
        known = recalled(reader, call, shown.Rollout, service.clock.now())
    if known is not None:
        return known
    _require_gate(service, spec)
    order, domains = _order(_fleet(service), spec)

    def work(unit: UnitOfWork) -> shown.Rollout:
        _require_alone(unit.transaction, spec, order)
        draft = unit.draft(World(), call)
        rollout = rollout_progress.begin(draft, spec, order, domains)
        unit.keep(draft)
        return _view(unit.transaction, rollout)

    return command(service, call, shown.Rollout, work)


def _order(draft: Draft, spec: RolloutSpec) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """The wave and the update domains of each host."""
    hosts = rollouts.chosen_hosts(spec, draft.world.hosts)
    rollouts.require_possible(draft, spec, hosts)
    return rollouts.assign_waves(draft, hosts), {
        host: rollouts.update_domains(rollouts.parts(draft, host)) for host in hosts
    }


def page(
    service: Service,
    *,
    after: str | None = None,
    limit: int = 100,
    descending: bool = True,
    live: bool | None = None,
    status: RolloutStatus | None = None,
    access: Access,
) -> Page[shown.ListedRollout]:
    """Without what is told by wave: hosts are only counted here."""
    with service.store.read() as reader:
        found = reader.rollouts.page(after, limit, RolloutFilter(live=live, status=status), descending=descending)
        counts = reader.rollouts.counts([rollout.id for rollout in found])
    items = [views.listed_rollout(_redacted(rollout, access), counts[rollout.id]) for rollout in found]
    return base.page(items, limit, "id")


def show(service: Service, rollout_id: str, access: Access) -> shown.Rollout:
    with service.store.read() as reader:
        return _view(reader, _redacted(_named(reader, rollout_id), access))


def hosts(
    service: Service,
    rollout_id: str,
    *,
    after: str | None = None,
    limit: int = 100,
    status: RolloutHostStatus | None = None,
) -> Page[shown.RolloutHost]:
    with service.store.read() as reader:
        _named(reader, rollout_id)
        found = reader.rollouts.hosts(rollout_id, after or "", limit, status)
    return base.page([views.rollout_host(rollout_host) for rollout_host in found], limit, "host")


def explain(service: Service, rollout_id: str) -> RolloutExplanation:
    """Why it is where it is: its pause, its gate, its windows, whom its operations wait for, who is not yet due."""
    with service.store.read() as reader:
        rollout = _named(reader, rollout_id)
        waiting = reader.rollouts.waiting(rollout_id, rollout.wave, "", SAMPLE)
        all_live = reader.rollouts.live_operations(rollout_id)
        live = all_live[:SAMPLE]
        hosts = [each.host for each in waiting]
        world = reader.worlds.load(operations=live, hosts=hosts, rollouts=[rollout_id], to_explain=True)
        draft = with_targets(service, reader, live, world)
    found = explanations.explain_rollout(
        draft, rollout, live, waiting, service.expiry_from, more=len(all_live) - len(live)
    )
    explained: RolloutExplanation = views.explanation(clocks.with_clock_behind(service, found))
    return explained


def pause(service: Service, call: Call, rollout_id: str) -> shown.Rollout:
    why = f"{rollout_progress.PAUSED_BY}{call.actor}" + (f": {call.reason}" if call.reason else "")
    return _change(service, call, rollout_id, lambda draft, rollout: rollout_progress.pause(draft, rollout, why))


def resume(service: Service, call: Call, rollout_id: str, *, retry: bool = False) -> shown.Rollout:
    """With `retry`, hosts that failed have another try."""

    def work(unit: UnitOfWork, draft: Draft) -> None:
        rollout_progress.resume(draft, draft.rollout(rollout_id))
        if retry:
            unit.transaction.rollouts.change_hosts(rollout_id, RolloutHostStatus.FAILED, RolloutHostStatus.WAITING, "")

    return _change_with(service, call, rollout_id, work)


def cancel(service: Service, call: Call, rollout_id: str) -> shown.Rollout:
    def work(unit: UnitOfWork, draft: Draft) -> None:
        rollout_progress.cancel(draft, draft.rollout(rollout_id))
        unit.transaction.rollouts.change_hosts(
            rollout_id, RolloutHostStatus.WAITING, RolloutHostStatus.SKIPPED, "the rollout was cancelled"
        )

    return _change_with(service, call, rollout_id, work)


def _change(service: Service, call: Call, rollout_id: str, decide: Callable[[Draft, Rollout], None]) -> shown.Rollout:
    return _change_with(service, call, rollout_id, lambda _, draft: decide(draft, draft.rollout(rollout_id)))


def _change_with(
    service: Service, call: Call, rollout_id: str, decide: Callable[[UnitOfWork, Draft], None]
) -> shown.Rollout:
    def work(unit: UnitOfWork) -> shown.Rollout:
        live = unit.transaction.rollouts.live_operations(rollout_id)
        world = unit.transaction.worlds.load(rollouts=[rollout_id], operations=live)
        draft = unit.draft(world, call)
        decide(unit, draft)
        unit.keep(draft)
        return _view(unit.transaction, draft.rollout(rollout_id))

    return command(service, call, shown.Rollout, work)


def _fleet(service: Service) -> Draft:
    with service.store.read() as reader, garbage_collection.paused():
        world = reader.worlds.fleet()
    return service.draft(world, allowance=ALLOWANCES[0])


def _require_alone(reader: Reader, spec: RolloutSpec, hosts: Collection[str]) -> None:
    """The same again while one is under way is a mistake."""
    known = reader.rollouts.awaited(spec.kind, hosts)
    if known is not None:
        rollout, host = known
        raise errors.ConflictError(
            f"rollout {rollout} is going to {NAMES[spec.kind]} host {host} already: wait for it, or cancel it first",
            rollout=rollout,
            host=host,
        )


def _require_gate(service: Service, spec: RolloutSpec) -> None:
    if spec.options.gate is not None:
        service.gates.require(spec.options.gate)


def _named(reader: Reader, rollout_id: str) -> Rollout:
    found = reader.rollouts.named([rollout_id]).get(rollout_id)
    if found is None:
        raise errors.NotFoundError(f"there is no rollout {rollout_id!r}", rollout=rollout_id)
    return found


def _redacted(rollout: Rollout, access: Access) -> Rollout:
    """Only those who may choose a gate see its output, and the whole of its URL."""
    if access.may(Need.MANAGE):
        return rollout
    gate_result = rollout.gate_result and replace(rollout.gate_result, output="")
    return replace(rollout, gate_result=gate_result, options=rollout.options.told())


def _view(reader: Reader | Transaction, rollout: Rollout) -> shown.Rollout:
    return views.rollout(rollout, reader.rollouts.tally(rollout.id))
