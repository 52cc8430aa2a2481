"""Rollouts: operators' commands, the steps that are due, and the thread that takes them and asks gates."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from forenotice import garbage_collection
from forenotice.core import errors, explanations, rollout_plan, rollout_progress, rollouts
from forenotice.core.draft import Draft, World
from forenotice.core.roles import Access, Need
from forenotice.core.rollout_progress import GateCheck
from forenotice.core.rollouts import GateResult, Rollout, RolloutHostStatus, RolloutSpec, RolloutStatus
from forenotice.service import views
from forenotice.service.calls import Call, command, recalled
from forenotice.service.loops import Loop, time_until
from forenotice.service.queries import with_targets
from forenotice.service.service import ALLOWANCES, Service, UnitOfWork
from forenotice.store.rollouts import RolloutFilter
from forenotice.store.transaction import Reader
from forenotice.views import base
from forenotice.views import rollouts as shown
from forenotice.views.base import Page
from forenotice.views.maintenance import RolloutExplanation

log = structlog.get_logger()

SAMPLE = 10
"""Hosts that an explanation looks at, of those under way and of those that wait."""

PAUSE = timedelta(milliseconds=100)
"""Between two looks, however fast the journal grows."""

GATES_AT_ONCE = 16

AT_ONCE = 20
"""Rollouts looked at in one round."""

CANDIDATES = 20
"""Hosts of the wave that one transaction looks at: guests who approve wait for its end."""


def plan(service: Service, spec: RolloutSpec) -> shown.RolloutPlan:
    """What it would come to; nothing is done. What could not be started is refused here too."""
    fleet = _fleet(service, spec)
    with service.store.read() as reader:
        _require_alone(reader, spec, rollouts.chosen_hosts(spec, fleet.world.hosts))
    return views.plan(rollout_plan.plan(fleet, spec), spec)


def start(service: Service, call: Call, spec: RolloutSpec) -> shown.Rollout:
    """Waves come from a view of the fleet before; what is promised is checked when each host is announced."""
    with service.store.read() as reader:
        known = recalled(reader, call, shown.Rollout, service.clock.now())
    if known is not None:
        return known
    fleet = _fleet(service, spec)
    chosen = rollouts.chosen_hosts(spec, fleet.world.hosts)
    rollouts.require_possible(fleet, spec, chosen)
    waves = rollouts.assign_waves(fleet, chosen)
    domains = {host: rollouts.update_domains(rollouts.parts(fleet, host)) for host in chosen}

    def work(unit: UnitOfWork) -> shown.Rollout:
        _require_alone(unit.transaction, spec, waves)
        draft = unit.draft(World(), call)
        rollout = rollout_progress.begin(draft, spec, waves, domains)
        unit.keep(draft)
        return _view(unit.transaction, rollout)

    return command(service, call, shown.Rollout, work)


def _fleet(service: Service, spec: RolloutSpec) -> Draft:
    """The whole fleet; a gate that could never be asked is refused."""
    if spec.options.gate is not None:
        service.gates.require(spec.options.gate)
    with service.store.read() as reader, garbage_collection.paused():
        world = reader.worlds.fleet()
    return service.draft(world, allowance=ALLOWANCES[0])


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
    explained: RolloutExplanation = views.explanation(found, service.clock.behind)
    return explained


def pause(service: Service, call: Call, rollout_id: str) -> shown.Rollout:
    why = f"{rollout_progress.PAUSED_BY}{call.actor}" + (f": {call.reason}" if call.reason else "")
    return _change(
        service, call, rollout_id, lambda _, draft: rollout_progress.pause(draft, draft.rollout(rollout_id), why)
    )


def resume(service: Service, call: Call, rollout_id: str, *, retry: bool = False) -> shown.Rollout:
    """With `retry`, hosts that failed have another try."""

    def decide(unit: UnitOfWork, draft: Draft) -> None:
        rollout_progress.resume(draft, draft.rollout(rollout_id))
        if retry:
            unit.transaction.rollouts.change_hosts(rollout_id, RolloutHostStatus.FAILED, RolloutHostStatus.WAITING, "")

    return _change(service, call, rollout_id, decide)


def cancel(service: Service, call: Call, rollout_id: str) -> shown.Rollout:
    def decide(unit: UnitOfWork, draft: Draft) -> None:
        rollout_progress.cancel(draft, draft.rollout(rollout_id))
        unit.transaction.rollouts.change_hosts(
            rollout_id, RolloutHostStatus.WAITING, RolloutHostStatus.SKIPPED, "the rollout was cancelled"
        )

    return _change(service, call, rollout_id, decide)


def _change(
    service: Service, call: Call, rollout_id: str, decide: Callable[[UnitOfWork, Draft], None]
) -> shown.Rollout:
    def work(unit: UnitOfWork) -> shown.Rollout:
        live = unit.transaction.rollouts.live_operations(rollout_id)
        draft = unit.load(call, rollouts=[rollout_id], operations=live)
        decide(unit, draft)
        unit.keep(draft)
        return _view(unit.transaction, draft.rollout(rollout_id))

    return command(service, call, shown.Rollout, work)


def _require_alone(reader: Reader, spec: RolloutSpec, hosts: Collection[str]) -> None:
    """The same again while one is under way is a mistake."""
    known = reader.rollouts.awaited(spec.kind, hosts)
    if known is not None:
        (rollout, host), kind = known, views.NAMES[spec.kind]
        raise errors.ConflictError(
            f"rollout {rollout} is going to {kind} host {host} already: wait for it, or cancel it first",
            rollout=rollout,
            host=host,
        )


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


def _view(reader: Reader, rollout: Rollout) -> shown.Rollout:
    return views.rollout(rollout, reader.rollouts.tally(rollout.id))


def advance(service: Service, checked: Mapping[GateCheck, GateResult]) -> list[GateCheck]:
    """Take the next step of every rollout that is due; gives the gates that must be asked."""
    for check, result in checked.items():
        _record_gate(service, check, result)
    with service.store.read() as reader:
        due = reader.rollouts.due(service.clock.now(), AT_ONCE)
    return [asked for rollout_id in due if (asked := _step(service, rollout_id))]


def next_due(service: Service) -> datetime | None:
    with service.store.read() as reader:
        return reader.rollouts.next_due()


def _record_gate(service: Service, check: GateCheck, result: GateResult) -> None:
    def work(unit: UnitOfWork) -> None:
        draft = unit.load(rollouts=[check.rollout])
        rollout_progress.record_gate(draft, check.rollout, check.wave, replace(result, at=unit.now))
        unit.keep(draft)

    service.transact(work)


def _step(service: Service, rollout_id: str) -> GateCheck | None:
    def work(unit: UnitOfWork) -> int | None:
        known = unit.transaction.rollouts
        if rollout_id not in known.due(unit.now, AT_ONCE):
            return None  # Another process has taken the step.
        draft = unit.load(rollouts=[rollout_id])
        ended = known.ended(rollout_id)
        under_way = known.under_way(rollout_id) - len(ended)
        rollout_progress.settle(draft, rollout_id, ended)
        step = rollout_progress.next_step(draft, rollout_id, under_way, known.next_wave(rollout_id))
        unit.keep(draft)
        return step

    step = service.transact(work)
    if step is None:
        return None
    after: str | GateCheck | None = ""
    while isinstance(after, str):
        after = service.transact(partial(_take_some, rollout_id, step, after))
    return after


def _take_some(rollout_id: str, wave: int, after: str, unit: UnitOfWork) -> str | GateCheck | None:
    """Announce some of the wave's hosts; gives the host to continue after, or the gate to ask first; None: done."""
    known = unit.transaction.rollouts
    rollout = known.named([rollout_id])[rollout_id]
    free = rollout.options.batch - known.under_way(rollout_id)
    if rollout.status is not RolloutStatus.RUNNING or rollout.wave != wave or free <= 0:
        return None
    waiting = known.waiting(rollout_id, wave, after, CANDIDATES)
    if not waiting:
        if free == rollout.options.batch and known.next_wave(rollout_id) != wave:
            # All the rest were skipped.
            known.put([replace(rollout, due_at=unit.now)])
        return None
    hosts = [rollout_host.host for rollout_host in waiting]
    arriving = {each for host in hosts for each in unit.transaction.operations.moving_to(host)}
    world = unit.transaction.worlds.load(rollouts=[rollout_id], hosts=hosts, operations=arriving)
    draft = unit.draft(world, Call(actor=f"rollout:{rollout_id}"))
    taken = rollout_progress.take(draft, rollout_id, waiting, free)
    unit.keep(draft)
    return taken if isinstance(taken, GateCheck) else waiting[-1].host


class RolloutLoop:
    """The thread that moves rollouts on; gates are asked in threads of their own."""

    def __init__(self, service: Service, *, gates_at_once: int = GATES_AT_ONCE) -> None:
        self._service = service
        self._grown = service.follow_growth()
        self._checked: dict[GateCheck, GateResult] = {}
        self._checking: set[GateCheck] = set()
        """Until the result is recorded, so that no gate is asked twice for one wave at once."""
        self._wanted: dict[GateCheck, None] = {}
        """Checks that wait until fewer than `gates_at_once` are being made."""
        self._gates_at_once = gates_at_once
        self._loop = Loop("roll", self.step, self._grown, service.liveness, service.runtime, pause=PAUSE)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Gates that have not answered by now are asked again after the next start."""
        self._service.gates.close()
        self._loop.stop()

    def step(self) -> timedelta:
        """Take all steps that are due; gives how long nothing is."""
        checked = self._checked.copy()
        wanted = advance(self._service, checked)
        for check in checked:
            del self._checked[check]
            self._checking.discard(check)
        self._wanted |= {check: None for check in wanted if check not in self._checking}
        for check in list(self._wanted)[: max(0, self._gates_at_once - len(self._checking))]:
            del self._wanted[check]
            self._checking.add(check)
            self._service.runtime.start_thread(partial(self._check, check), "gate")
        return time_until(next_due(self._service), self._service.clock.now())

    def _check(self, check: GateCheck) -> None:
        try:
            if not self._is_wanted(check):
                self._end(check)
                return
            facts = {"rollout": check.rollout, "wave": str(check.wave + 1)}
            result = self._service.gates.check(check.gate, facts, self._service.clock.now())
        except (errors.UnavailableError, errors.UnsoundError):
            self._end(check)
            return
        except Exception as error:
            log.exception("A gate could not be asked", action="gate.failed", gate=check.gate)
            status = f"{type(error).__name__}: {error}"
            result = GateResult(green=False, status=status, at=self._service.clock.now())
        self._checked[check] = result
        self._grown.set()

    def _end(self, check: GateCheck) -> None:
        """Without a result: the rollout asks again when one is due."""
        self._checking.discard(check)
        self._grown.set()

    def _is_wanted(self, check: GateCheck) -> bool:
        """Whether the rollout still waits for this gate: it may have been paused, cancelled or moved on meanwhile."""
        with self._service.store.read() as reader:
            rollout = reader.worlds.load(rollouts=[check.rollout]).rollouts.get(check.rollout)
        return (
            rollout is not None
            and rollout.status is RolloutStatus.RUNNING
            and rollout.wave == check.wave
            and rollout.opened_at is None
        )
