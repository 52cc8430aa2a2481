"""The thread that moves rollouts on, with real time."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import cast

import structlog
from tests.service.rig import OPERATOR
from tests.service.rolling import Rolling, request
from tests.service.test_tick import Flaky, wait_for

from forenotice.clock import SystemClock
from forenotice.core.rollouts import GateResult
from forenotice.service import maintenance, queries, rollouts
from forenotice.service.gates import Gates
from forenotice.service.rollouts import RolloutLoop
from forenotice.ssrf import OutgoingClient
from forenotice.store.database import Store


@contextmanager
def rolling(store: Store, gates_at_once: int = 4, **gates: tuple[str, ...]) -> Iterator[Rolling]:
    rig = Rolling(store, speed=1000, clock=SystemClock())
    rig.settle_demo()
    rig.service.gates = Gates(gates, rig.service.outgoing)
    roller = RolloutLoop(rig.service, gates_at_once=gates_at_once)
    roller.start()
    try:
        yield rig
    finally:
        roller.stop()


def start(rig: Rolling, gate: str | None = None, hosts: str = "*") -> str:
    return str(rollouts.start(rig.service, OPERATOR, request(hosts=hosts, gate=gate)).id)


def test_it_goes_on_when_something_has_ended(sqlite_store: Store) -> None:
    with rolling(sqlite_store) as rig:
        found = start(rig)
        wait_for(lambda: rig.hosts(found)["host-a"] == "Under way")
        (operation,) = queries.operations(rig.service, live=True).items
        # By the clock it would be looked at in a minute.
        maintenance.cancel_operation(rig.service, OPERATOR, operation.id)
        wait_for(lambda: rig.hosts(found)["host-b"] == "Under way")
        assert rig.hosts(found)["host-a"] == "Skipped"


def test_it_asks_gates_until_they_are_green(sqlite_store: Store, tmp_path: Path) -> None:
    healthy = tmp_path / "healthy"
    with rolling(sqlite_store, health=("ls", str(healthy))) as rig:
        found = start(rig, "health")
        wait_for(lambda: rig.actions(action="rollout.gate_red") != [])
        assert "Under way" not in rig.hosts(found).values()
        healthy.touch()
        wait_for(lambda: "Under way" in rig.hosts(found).values())


class BrokenGates(Gates):
    def check(self, gate: str, facts: Mapping[str, str], now: datetime) -> GateResult:
        raise RuntimeError("no such thing")


def test_a_gate_that_raises_is_red(sqlite_store: Store) -> None:
    with structlog.testing.capture_logs() as logs, rolling(sqlite_store) as rig:
        rig.service.gates = BrokenGates({"health": ("true",)}, rig.service.outgoing)
        found = start(rig, "health")
        wait_for(lambda: rig.show(found).gate_result is not None)
        assert rig.show(found).gate_result.status == "RuntimeError: no such thing"
    assert "gate.failed" in [entry["action"] for entry in logs]


def test_a_gate_that_does_not_answer_keeps_nobody_from_stopping(sqlite_store: Store) -> None:
    with rolling(sqlite_store, slow=("sleep", "60")) as rig:
        start(rig, "slow")
        wait_for(lambda: any(thread.name.startswith("gate") for thread in threading.enumerate()))


class SlowGates(Gates):
    def __init__(self, outgoing: OutgoingClient) -> None:
        super().__init__({"health": ("true",)}, outgoing)
        self.asked: list[str] = []
        self.answering = threading.Event()

    def check(self, gate: str, facts: Mapping[str, str], now: datetime) -> GateResult:
        self.asked.append(facts["rollout"])
        self.answering.wait(60)
        return GateResult(green=True, status="well", at=now)


def test_a_gate_stands_in_line_once_and_only_while_it_is_wanted(sqlite_store: Store) -> None:
    with rolling(sqlite_store, gates_at_once=1) as rig:
        slow = rig.service.gates = SlowGates(rig.service.outgoing)
        first = start(rig, "health", "host-a")
        wait_for(lambda: slow.asked == [first])
        second, third = start(rig, "health", "host-b"), start(rig, "health", "host-c")
        wait_for(lambda: is_at_rest(rig))
        rollouts.pause(rig.service, OPERATOR, second)
        rollouts.resume(rig.service, OPERATOR, second)
        rollouts.pause(rig.service, OPERATOR, third)
        wait_for(lambda: is_at_rest(rig))
        slow.answering.set()
        wait_for(lambda: rig.show(second).gate_result is not None)
        assert slow.asked == [first, second]
        rollouts.resume(rig.service, OPERATOR, third)
        wait_for(lambda: slow.asked == [first, second, third])


def is_at_rest(rig: Rolling) -> bool:
    due = rollouts.next_due(rig.service)
    return due is None or due > rig.clock.now()


def test_it_outlives_every_error(sqlite_store: Store) -> None:
    with structlog.testing.capture_logs() as logs, rolling(sqlite_store) as rig:
        found = start(rig)
        flaky = Flaky(sqlite_store)
        rig.service.store = cast(Store, flaky)
        rig.service.tell_growth()
        wait_for(lambda: not flaky.troubles)
        wait_for(lambda: "Under way" in rig.hosts(found).values())
    assert {"roll.unavailable", "roll.failed"} <= {entry["action"] for entry in logs}
