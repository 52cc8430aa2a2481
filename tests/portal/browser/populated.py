"""A demo fleet in which much is going on: past, present and to come. Nothing moves on while pages are looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.emulator.faulty import MovingClock
from tests.portal.running import Portal, running
from tests.service.rolling import request

from forenotice.cluster.messages import Beat, Fence
from forenotice.core.driver_calls import Finished
from forenotice.core.journal import Entry
from forenotice.core.operations import Kind
from forenotice.delivery import subscriptions
from forenotice.service import maintenance, queries, rollouts, tokens
from forenotice.service.calls import Call
from forenotice.service.tick import tick
from forenotice.views.maintenance import Event, Operation
from forenotice.views.subscriptions import NewSubscription

OPERATOR = Call(actor="operator:admin")


@contextmanager
def populated(home: Path) -> Iterator[Portal]:
    clock = MovingClock()
    clock.moved = -timedelta(hours=3)

    def polled(vm: str) -> datetime | None:
        return clock.now() - timedelta(seconds=20) if vm.startswith("web") else None

    with running(home, clock=clock, polled=polled) as portal:
        _past(portal, clock)
        clock.moved = timedelta(0)
        _tokens_and_subscriptions(portal)
        _present(portal)
        yield portal


def schedule(portal: Portal, kind: Kind, name: str, **more: Any) -> Operation:
    """Its operation."""
    [made] = maintenance.schedule(portal.service, OPERATOR, kind=kind, names=[name], **more).operations
    return made


def approve(portal: Portal, operation: Operation) -> None:
    for event in operation.events:
        maintenance.approve(portal.service, OPERATOR, event.id)


def finish(portal: Portal) -> None:
    """Whatever may start is carried out."""
    reports = [(task, Finished(done=task.vms, failures={})) for task in tick(portal.service).tasks]
    tick(portal.service, reports)


def live_events(portal: Portal) -> list[Event]:
    return queries.events(portal.service, live=True).items


def hear_edges(portal: Portal) -> None:
    """One that is current, one that is behind and has refused a state, one that is lost."""
    edges, now = portal.service.edges, portal.service.clock.now()
    refused = {"refused": 1, "refusal": "the state has format 2, and this version reads 1"}
    for host, fields in {
        "host-a": {"position": 80},
        "host-b": {"position": 76, **refused},
        "host-d": {"position": 70},
    }.items():
        edges.beat(host, Beat(version="1.0.0", at=now, **fields))  # type: ignore[arg-type]
    edges.watch(True)
    edges.published |= {"host-a": Fence(0, 80), "host-b": Fence(0, 80)}
    since = now - timedelta(minutes=7)
    edges.follow([Entry(at=now, action="edge.lost", host="host-d", data={"since": since})])


def _past(portal: Portal, clock: MovingClock) -> None:
    approve(portal, schedule(portal, Kind.RESTART, "db", reason="a new kernel"))
    approve(portal, schedule(portal, Kind.HOST_UPDATE, "host-b"))
    cancelled = schedule(portal, Kind.REDEPLOY, "web-2", reason="chosen by mistake", notice=timedelta(hours=10))
    maintenance.cancel_operation(portal.service, OPERATOR, cancelled.id)
    # One waits for the other, and then for its NotBefore.
    for _ in range(4):
        finish(portal)
        clock.moved += timedelta(minutes=20)
    assert live_events(portal) == []


def _tokens_and_subscriptions(portal: Portal) -> None:
    tokens.create(portal.service, OPERATOR, name="shop", role="tenant", scopes="web", expires_in=timedelta(days=90))
    tokens.create(portal.service, OPERATOR, name="dashboards", role="viewer")
    asked = NewSubscription(name="pager", url="https://hooks.example.com/pager", types=["forenotice.event.*"])
    subscriptions.create(portal.service, OPERATOR, asked)


def _present(portal: Portal) -> None:
    """Events of each type, and a rollout; the restart of db has been started."""
    rollouts.start(portal.service, OPERATOR, request(hosts="host-a,host-b"))
    rollouts.advance(portal.service, {})
    approve(portal, schedule(portal, Kind.RESTART, "db"))
    tick(portal.service)
    schedule(portal, Kind.RESTART, "web-0", reason="a new kernel")
    schedule(portal, Kind.REDEPLOY, "web-2")
    schedule(portal, Kind.DELETION, "pool_4")
    schedule(portal, Kind.EVICTION, "batch", notice=timedelta(minutes=10))
    schedule(portal, Kind.DEGRADED_HARDWARE, "host-c", notice=timedelta(hours=2))
    assert {event.status for event in live_events(portal)} == {"Scheduled", "Started"}
