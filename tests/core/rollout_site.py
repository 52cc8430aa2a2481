"""A site with rollouts: their steps in memory, as the service takes them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.core.builders import MINUTE, Site, success

from forenotice.core import explanations, rollout_plan, rollout_progress, rollouts
from forenotice.core.blockers import BlockerKind, host_blockers
from forenotice.core.driver_calls import NotYet, Outcome, Task
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Kind, Operation
from forenotice.core.rollout_plan import Plan
from forenotice.core.rollout_progress import GateCheck
from forenotice.core.rollouts import (
    GateResult,
    Options,
    Rollout,
    RolloutHost,
    RolloutHostStatus,
    RolloutSpec,
    RolloutStatus,
)

Gate = Callable[[GateCheck], bool]


def always_green(_: GateCheck) -> bool:
    return True


CANDIDATES = 2
"""Hosts whose wave it is that are looked at together: few, so that there are pages."""


class RollingSite(Site):
    def plan(self, kind: Kind = Kind.HOST_UPDATE, hosts: str = "*", options: Options = Options()) -> Plan:  # noqa: B008
        return rollout_plan.plan(self.look(everything=True), RolloutSpec(kind=kind, hosts=hosts, options=options))

    def begin(self, kind: Kind = Kind.HOST_UPDATE, hosts: str = "*", options: Options = Options()) -> Rollout:  # noqa: B008
        spec = RolloutSpec(kind=kind, hosts=hosts, options=options)
        fleet = self.look(everything=True)
        rollout_plan.plan(fleet, spec)
        order = rollouts.assign_waves(fleet, rollouts.chosen_hosts(spec, fleet.world.hosts))
        with self.transaction(by="op") as draft:
            domains = {host: rollouts.update_domains(rollouts.parts(fleet, host)) for host in order}
            return rollout_progress.begin(draft, spec, order, domains)

    def pause(self, rollout: Rollout | str, why: str = "paused by op") -> None:
        key = self.rollout(rollout).id
        with self.transaction(rollouts=[key], operations=self.live_of(key)) as draft:
            rollout_progress.pause(draft, draft.rollout(key), why)

    def resume(self, rollout: Rollout | str, *, retry: bool = False) -> None:
        key = self.rollout(rollout).id
        with self.transaction(rollouts=[key], operations=self.live_of(key)) as draft:
            rollout_progress.resume(draft, draft.rollout(key))
        self._change_hosts(key, RolloutHostStatus.FAILED if retry else None, RolloutHostStatus.WAITING)
        self.watch_rollouts.forget_answers(key)

    def cancel_rollout(self, rollout: Rollout | str) -> None:
        key = self.rollout(rollout).id
        with self.transaction(rollouts=[key], operations=self.live_of(key)) as draft:
            rollout_progress.cancel(draft, draft.rollout(key))
        self._change_hosts(key, RolloutHostStatus.WAITING, RolloutHostStatus.SKIPPED)

    def _change_hosts(self, rollout: str, before: RolloutHostStatus | None, after: RolloutHostStatus) -> None:
        for each in self.hosts_of(rollout):
            if each.status is before:
                self.rollout_hosts[each.rollout, each.host] = replace(each, status=after, operation=None)

    def roll(self) -> list[GateCheck]:
        """The next step of every rollout that is due; gives the gates that must be asked."""
        return [asked for key in self.due_rollouts() if (asked := self.step_of(key))]

    def step_of(self, rollout: str) -> GateCheck | None:
        known = self.hosts_of(rollout)
        under_way = [each for each in known if each.status is RolloutHostStatus.UNDER_WAY]
        ended = [(each, self.operation(each.operation or "")) for each in under_way]
        ended = sorted((each for each in ended if not each[1].status.live), key=lambda each: str(each[1].ended_at))
        with self.transaction(rollouts=[rollout]) as draft:
            rollout_progress.settle(draft, rollout, ended)
            next_wave = min(
                (each.wave for each in known if each.status is RolloutHostStatus.WAITING),
                default=None,
            )
            busy = len(under_way) - len(ended)
            wave = rollout_progress.next_step(draft, rollout, busy, next_wave)
        return None if wave is None else self._take(rollout, wave, self.rollout(rollout).options.batch - busy)

    def _take(self, rollout: str, wave: int, free: int) -> GateCheck | None:
        most, taken, after = min(free, CANDIDATES), 0, ""
        while taken < most and (rollout_hosts := self.waiting(rollout, wave, after)[:CANDIDATES]):
            after = rollout_hosts[-1].host
            hosts = [each.host for each in rollout_hosts]
            with self.transaction(rollouts=[rollout], hosts=hosts, operations=self.moving_to(hosts)) as draft:
                found = rollout_progress.take(draft, rollout, rollout_hosts, most - taken)
            if isinstance(found, GateCheck):
                return found
            taken += found
            if self.rollout(rollout).status is not RolloutStatus.RUNNING:
                return None
        left = [each for each in self.hosts_of(rollout) if each.status is RolloutHostStatus.UNDER_WAY]
        wave_is_over = not left and not self.waiting(rollout, wave)
        if wave_is_over or taken == most < free:
            self.state.rollouts[rollout] = replace(self.rollout(rollout), due_at=self.now)
        return None

    def hear_gate(self, ask: GateCheck, green: bool = True, said: str = "ok") -> None:
        with self.transaction(rollouts=[ask.rollout]) as draft:
            rollout_progress.record_gate(
                draft, ask.rollout, ask.wave, GateResult(green=green, status=said, at=self.now)
            )
        self.watch_rollouts.answers[ask.rollout, ask.wave] = green

    def carry_on(
        self,
        *,
        until: datetime | None = None,
        gate: Gate = always_green,
        takes: timedelta = timedelta(0),
        most: int = 1000,
    ) -> int:
        """Let time pass until nothing is to come, with drivers that take so long and succeed; gives the steps."""
        for steps in range(most):
            self.settle_now(gate, takes)
            moment = self.next_moment()
            if moment is None or (until is not None and moment > until):
                self.now = max(self.now, until or self.now)
                return steps
            assert moment > self.now, "something is due now for ever"
            self.now = moment
        raise AssertionError("it goes on for ever")

    def settle_now(self, gate: Gate = always_green, takes: timedelta = timedelta(0)) -> None:
        """All that happens at this moment."""
        for _ in range(100):
            tasks = self.tick()
            while tasks:
                tasks = self.tick({task.operation: self._outcome(task, takes) for task in tasks})
            for ask in self.roll():
                self.hear_gate(ask, gate(ask))
            if not self.due() and not self.due_rollouts():
                return
        raise AssertionError("something is due now for ever")

    def _outcome(self, task: Task, takes: timedelta) -> Outcome:
        over_at = task.started_at + takes
        return success(task) if over_at <= self.now else NotYet(again_at=over_at)

    def next_moment(self) -> datetime | None:
        """When something is due of itself; what is looked at once a minute in any case is left for then."""
        rollouts = self.state.rollouts.values()
        moments = [max(o.due_at or self.now, o.claimed_until or self.now) for o in self.live() if not o.held]
        asked = [r for r in rollouts if r.opened_at is None and (r.gate_result or not self.told_at(r))]
        moments += [r.due_at for r in asked if r.due_at is not None]
        moments += [moment for r in rollouts if r.due_at is not None for moment in self.told_at(r)]
        held = [o.due_at for o in self.live() if o.due_at is not None]
        held += [r.due_at for r in rollouts if r.due_at is not None]
        return min(moments or held, default=None)

    def told_at(self, rollout: Rollout) -> list[datetime]:
        """When guests of its next hosts are told, where windows put that off."""
        waiting = [each.host for each in self.waiting(rollout.id, rollout.wave)]
        draft = self.look(rollouts=[rollout.id], hosts=waiting)
        found = [each for host in waiting for each in host_blockers(draft, rollout, host)]
        return [each.until for each in found if each.kind is BlockerKind.ANNOUNCEMENT and each.until is not None]

    # What is

    def rollout(self, known: Rollout | str) -> Rollout:
        return self.state.rollouts[known if isinstance(known, str) else known.id]

    def due_rollouts(self) -> list[str]:
        def wave(rollout: Rollout) -> tuple[datetime, datetime]:
            return rollout.due_at or self.now, rollout.created_at

        known = sorted(self.state.rollouts.values(), key=wave)
        return [rollout.id for rollout in known if rollout.due_at is not None and rollout.due_at <= self.now]

    def hosts_of(self, rollout: Rollout | str) -> list[RolloutHost]:
        key = self.rollout(rollout).id
        return sorted(
            (each for each in self.rollout_hosts.values() if each.rollout == key),
            key=lambda each: each.host,
        )

    def rollout_host(self, rollout: Rollout | str, host: str) -> RolloutHost:
        return self.rollout_hosts[self.rollout(rollout).id, host]

    def waiting(self, rollout: str, wave: int, after: str = "") -> list[RolloutHost]:
        mine = self.hosts_of(rollout)
        return [s for s in mine if s.status is RolloutHostStatus.WAITING and s.wave == wave and s.host > after]

    def live_of(self, rollout: str) -> list[str]:
        return [operation.id for operation in self.live() if operation.rollout == rollout]

    def on(self, host: str) -> Operation:
        """The one that is live there."""
        (operation,) = [operation for operation in self.live() if operation.host == host]
        return operation

    def explain_rollout(self, rollout: Rollout | str) -> Explanation:
        known = self.rollout(rollout)
        live, waiting = self.live_of(known.id), self.waiting(known.id, known.wave)
        hosts = [each.host for each in waiting]
        draft = self.look(rollouts=[known.id], operations=live, hosts=hosts, targets=True)
        return explanations.explain_rollout(draft, known, live, waiting, self.expiry_from)

    def explain_operation(self, operation: Operation | str) -> Explanation:
        draft = self.look(operations=[self.operation(operation).id], targets=True)
        return explanations.explain_operation(draft, self.operation(operation), self.expiry_from)


def rolling_row(hosts: str = "abcd", **policy: Any) -> RollingSite:
    """As `builders.row`: availability set `web`, an update domain each on a, b and c; d is spare."""
    site = RollingSite()
    site.add_hosts(hosts)
    site.add_group("web", **policy)
    for number, host in enumerate("abc"):
        site.add_vm(f"web-{number}", host, group="web", update_domain=number, fault_domain=number)
    return site


NOTICE = 15 * MINUTE
UPDATE = timedelta(seconds=9)
