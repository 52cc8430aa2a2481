"""A service with rollouts under way, and a clock that goes from one thing that is due to the next."""

import json
from datetime import datetime, timedelta
from typing import Any

import msgspec
from tests.acceptance.checker import check
from tests.service.rig import OPERATOR, Rig

from forenotice.core.driver_calls import Finished, Outcome, Task
from forenotice.core.roles import EVERYTHING
from forenotice.core.rollout_progress import GateCheck
from forenotice.core.rollouts import KINDS, GateResult, Options, RolloutSpec
from forenotice.drivers.registry import SimulatedDriver
from forenotice.service import fleet, history, housekeeping, rollouts, tick
from forenotice.service.calls import SYSTEM, Call


class Failing(SimulatedDriver):
    """Fails on some hosts, for as long as they are named."""

    hosts: frozenset[str] = frozenset()

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        if task.host in self.hosts:
            return Finished(failures=dict.fromkeys(task.vms, "no power"))
        return super().carry_out(task, now)


class Rolling(Rig):
    fleet: dict[str, Any]

    def settle(self, document: dict[str, Any]) -> "Rolling":
        housekeeping.resume(self.service, alone=True)
        found = fleet.parse(json.dumps(document).encode(), "json")
        fleet.apply(self.service, SYSTEM, found, prune=False, dry_run=False)
        self.fleet = document
        return self

    def start(self, kind: str = "update", hosts: str = "*", call: Call = OPERATOR, **options: Any) -> str:
        made = rollouts.start(self.service, call, request(kind, hosts, **options))
        self.step()
        return str(made.id)

    def step(self) -> None:
        """All that is due now."""
        checked: dict[GateCheck, GateResult] = {}
        while True:
            self.tick()
            checked = {each: self.check(each) for each in rollouts.advance(self.service, checked)}
            if not checked and not self.is_due:
                return

    def check(self, check: GateCheck) -> GateResult:
        return self.service.gates.check(check.gate, {"rollout": check.rollout}, self.clock.now())

    @property
    def next_due(self) -> datetime | None:
        known = tick.next_due(self.service), rollouts.next_due(self.service)
        return min((due for due in known if due is not None), default=None)

    @property
    def is_due(self) -> bool:
        due = self.next_due
        return due is not None and due <= self.clock.now()

    def pass_time(self, **duration: float) -> None:
        """So long at speed 1."""
        end = self.clock.now() + self.service.timing.shortened(timedelta(**duration))
        self.step()
        while (due := self.next_due) is not None and due <= end:
            self.clock.not_below(due)
            self.step()
        self.clock.not_below(end)

    def show(self, rollout: str) -> Any:
        return rollouts.show(self.service, rollout, EVERYTHING)

    def status(self, rollout: str) -> str:
        return str(self.show(rollout).status)

    def hosts(self, rollout: str) -> dict[str, str]:
        return {host.host: host.status for host in rollouts.hosts(self.service, rollout).items}

    def why(self, rollout: str) -> str:
        return str(rollouts.explain(self.service, rollout).sentence)

    def waits_for(self, rollout: str, kind: str) -> dict[str, Any]:
        """The first that it waits for of that kind."""
        found = rollouts.explain(self.service, rollout).waiting_for
        return next((facts for facts in found if facts["kind"] == kind), {"kind": [each["kind"] for each in found]})

    @property
    def journal(self) -> list[Any]:
        return [entry for some in history.everything(self.service) for entry in some]

    @property
    def violations(self) -> list[str]:
        return check(msgspec.to_builtins(self.journal), self.fleet, speed=self.service.timing.speed)


def request(kind: str = "update", hosts: str = "*", **options: Any) -> RolloutSpec:
    return RolloutSpec(kind=KINDS[kind], hosts=hosts, options=Options(**options))
