"""A service on a real store, with a clock that the test moves and ticks that it asks for."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from forenotice import demo
from forenotice.core.documents import Document
from forenotice.core.draft import World
from forenotice.core.driver_calls import Task
from forenotice.core.fleet import ScopeKind
from forenotice.core.lifecycle import StartRequests
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.timing import Timing
from forenotice.drivers.call_queue import CallTerms, Driver, DriverChoice
from forenotice.drivers.registry import SimulatedDriver
from forenotice.publication import Publication
from forenotice.runtime import Runtime
from forenotice.service import fleet, history, housekeeping, maintenance, queries, tick
from forenotice.service.calls import Call
from forenotice.service.guests import Guests
from forenotice.service.service import Service
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.store.worlds import Worlds
from forenotice.views.fleet import HostChange, NewGroup, NewHost, PolicyChange, VmChange

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
OPERATOR = Call(actor="ada", token_id="t1")


class ManualClock:
    def __init__(self, now: datetime = START) -> None:
        self._now = self._set_to = now

    def now(self) -> datetime:
        return self._now

    def not_below(self, moment: datetime) -> None:
        self._now = max(self._now, moment)

    jumped = timedelta(0)

    @property
    def behind(self) -> timedelta:
        return self._now - self._set_to

    def outside(self) -> datetime:
        return self._set_to

    def correct(self, moment: datetime) -> None: ...

    def mark(self) -> str:
        return ""

    def go_on_from(self, mark: str) -> None: ...

    def advance(self, **duration: float) -> None:
        self._now += timedelta(**duration)
        self._set_to += timedelta(**duration)


@dataclass
class Published:
    """What guests would be told."""

    incarnations: dict[str, list[int]] = field(default_factory=dict)
    latest: dict[str, Document] = field(default_factory=dict)
    by_key: dict[str, Publication] = field(default_factory=dict)

    def documents(self, documents: Sequence[Document]) -> None:
        for document in documents:
            self.latest[document.scope] = document
            self.incarnations.setdefault(document.scope, []).append(document.incarnation)

    def scopes(self, scopes: Sequence[Publication]) -> None:
        for each in scopes:
            self.by_key[each.key] = each

    def everything(self, scopes: Sequence[Publication]) -> None:
        self.by_key.clear()
        self.scopes(scopes)


class Rig:
    def __init__(
        self,
        store: Store,
        *,
        driver: Driver | None = None,
        terms: CallTerms | None = None,
        speed: float = 1,
        clock: Any = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.clock: Any = clock or (runtime.clock if runtime else ManualClock())
        self.published = Published()
        timing = Timing(speed=speed)
        self.driver = driver or SimulatedDriver(timing)
        self.service = Service(
            store=store,
            runtime=runtime or Runtime(clock=self.clock),
            timing=timing,
            publisher=self.published,
            drivers=[DriverChoice(driver=self.driver, terms=terms or CallTerms())],
            allows_loopback=True,
        )
        self.guests = Guests(self.service)
        self.asked: list[Task] = []

    def settle_demo(self) -> "Rig":
        housekeeping.resume(self.service, alone=True)
        demo.make_fleet(self.service)
        return self

    def schedule(self, kind: Kind, *names: str, call: Call = OPERATOR, **more: Any) -> list[Any]:
        made: list[Any] = maintenance.schedule(self.service, call, kind=kind, names=names, **more).operations
        return made

    def tick(self) -> None:
        """Until nothing is due any more."""
        tasks = tick.tick(self.service).tasks
        while tasks:
            self.asked += tasks
            reports = [(task, self.driver.carry_out(task, self.clock.now())) for task in tasks]
            tasks = tick.tick(self.service, reports).tasks

    def run(self, seconds: float, step: float = 1) -> None:
        passed = 0.0
        while passed < seconds:
            self.tick()
            self.clock.advance(seconds=step)
            passed += step
        self.tick()

    def approve(self, vm: str, scope: str, *event_ids: str) -> Exception | None:
        return self.guests.approve([StartRequests(vm=vm, scope=scope, event_ids=event_ids)])[0]

    # As an operator

    def approve_all(self, *operations: Any, call: Call = OPERATOR) -> None:
        for event in (event for operation in operations for event in operation.events):
            maintenance.approve(self.service, call, event.id)

    def cancel(self, operation: Any) -> Any:
        return maintenance.cancel_operation(self.service, OPERATOR, operation.id)

    def set_policy(self, key: str, **policy: Any) -> None:
        fleet.set_policy(self.service, OPERATOR, key, PolicyChange(**policy))

    def set_host(self, name: str, **changes: Any) -> None:
        fleet.set_host(self.service, OPERATOR, name, HostChange(**changes))

    def set_vm(self, name: str, **changes: Any) -> Any:
        return fleet.set_vm(self.service, OPERATOR, name, VmChange(**changes))

    def add_host(self, name: str, **fields: Any) -> Any:
        return fleet.add_host(self.service, OPERATOR, NewHost(name=name, **fields))

    def add_group(self, name: str, kind: ScopeKind = ScopeKind.AVAILABILITY_SET, **policy: Any) -> Any:
        return fleet.add_group(self.service, OPERATOR, NewGroup(name=name, kind=kind, policy=PolicyChange(**policy)))

    def add_vm(self, name: str, host: str, **fields: Any) -> Any:
        return fleet.add_vm(self.service, OPERATOR, VmSpec(name=name, host=host, **fields))

    def remove_vm(self, name: str) -> None:
        fleet.remove_vm(self.service, OPERATOR, name)

    # What operators see

    def vm(self, name: str) -> Any:
        return queries.vm(self.service, name)

    def operation(self, known: Any) -> Any:
        """As it is now."""
        return queries.operation(self.service, known.id)

    def event(self, event_id: str) -> Any:
        return queries.event(self.service, event_id)

    def live_events(self) -> list[Any]:
        return list(queries.events(self.service, live=True).items)

    def explain(self, event_id: str) -> Any:
        return queries.explain_event(self.service, event_id)

    def entries(self, **filters: Any) -> list[Any]:
        return list(history.page(self.service, JournalFilter(**filters), limit=10_000).items)

    def actions(self, **filters: Any) -> list[str]:
        return [entry.action for entry in self.entries(**filters)]


def load_whole_fleet(worlds: Worlds, **_: Any) -> World:
    """In place of the little that `Worlds.to_explain` loads, in its order."""
    world = worlds.fleet()
    for event in sorted(world.events.values(), key=lambda event: (event.scope, event.created_at, event.id)):
        world.events[event.id] = world.events.pop(event.id)
    return world


def moment(text: str) -> datetime:
    """`22:00` of the day when the clock of a test begins, or a whole date and time."""
    return datetime.fromisoformat(f"{text if 'T' in text else f'{START:%Y-%m-%d}T{text}'}Z")


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        pause.wait(0.01)
