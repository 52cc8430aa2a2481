"""Who listens, what silence approves, and how a first poll takes that back."""

from datetime import timedelta

import pytest
from tests.core.builders import DAY, HOUR, MINUTE, NOW, SECOND, Site, row

from forenotice.core import lifecycle
from forenotice.core.fleet import Listening, Policy, Scope, ScopeKind
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.timing import Timing


@pytest.mark.parametrize(
    ("policy", "heard", "speed", "listens"),
    [
        (Listening.AUTO, None, 1, False),
        (Listening.AUTO, timedelta(0), 1, True),
        (Listening.AUTO, 24 * HOUR - SECOND, 1, True),
        (Listening.AUTO, 24 * HOUR, 1, False),
        (Listening.AUTO, HOUR, 24, False),
        (Listening.AUTO, HOUR - SECOND, 24, True),
        (Listening.ALWAYS, None, 1, True),
        (Listening.ALWAYS, 48 * HOUR, 1, True),
        (Listening.NEVER, timedelta(0), 1, False),
    ],
)
def test_who_listens(policy: Listening, heard: timedelta | None, speed: float, listens: bool) -> None:
    scope = Scope(
        key="vm:db",
        kind=ScopeKind.STANDALONE,
        tag="",
        policy=Policy(listening=policy),
        last_heard=None if heard is None else NOW - heard,
    )
    assert lifecycle.is_listening(scope, NOW, Timing(speed=speed)) is listens


def test_a_first_poll_starts_listening_and_takes_silence_back() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    before = site.scope("group:web")
    site.wait(SECOND)
    site.hear("group:web")
    event = site.event(operation)
    assert (event.approved, event.approved_by, event.implied) == (False, None, False)
    assert site.operation(operation).due_at == operation.not_before
    assert site.scope("group:web").last_heard == site.now
    assert site.scope("group:web").incarnation == before.incarnation
    assert site.actions(scope="group:web")[-2:] == ["scope.listening", "event.silence_withdrawn"]
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED
    site.wait(15 * MINUTE)
    site.tick()
    assert site.operation(operation).status is Status.STARTED


def test_being_heard_again_only_moves_the_time() -> None:
    site = row(listening=Listening.AUTO)
    site.hear("group:web")
    journal = len(site.journal)
    site.wait(HOUR)
    site.hear("group:web")
    assert site.scope("group:web").last_heard == site.now
    assert len(site.journal) == journal


def test_being_heard_twice_at_once_or_out_of_order_is_being_heard_once() -> None:
    site = row(listening=Listening.AUTO)
    site.hear("group:web")
    assert not site.hear("group:web").scopes
    draft = site.look(scopes=["group:web"])
    lifecycle.record_poll(draft, "group:web", site.now - MINUTE)
    assert not draft.changes().scopes


def test_after_a_day_of_silence_events_count_as_approved_until_the_next_poll() -> None:
    site = row(listening=Listening.AUTO)
    site.hear("group:web")
    assert not site.event(site.schedule(Kind.HOST_UPDATE, "a")).approved
    site.wait(DAY)
    silent = site.schedule(Kind.HOST_UPDATE, "b")
    assert site.event(silent).implied
    site.hear("group:web")
    assert not site.event(silent).approved


def test_an_event_made_while_somebody_listened_waits_although_they_fell_silent() -> None:
    site = row(listening=Listening.AUTO)
    site.hear("group:web")
    operation = site.schedule(Kind.HOST_UPDATE, "a", notice=3 * DAY)
    site.wait(2 * DAY)
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED


def test_a_poll_takes_back_nothing_that_has_started_or_that_policy_approved() -> None:
    site = row(listening=Listening.AUTO)
    site.set_policy("group:web", auto_approve_restart=True)
    started = site.schedule(Kind.RESTART, "web-0")
    waiting = site.schedule(Kind.RESTART, "web-0")
    update = site.schedule(Kind.HOST_UPDATE, "b")
    site.tick()
    site.hear("group:web")
    assert site.event(started).approved
    assert (site.event(waiting).approved_by, site.event(waiting).status) == ("policy", Status.SCHEDULED)
    assert (site.event(update).approved, site.event(update).status) == (True, Status.STARTED)


def test_a_poll_changes_nothing_where_listening_is_never() -> None:
    site = row(listening=Listening.NEVER)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.hear("group:web")
    assert site.event(operation).implied
    assert "scope.listening" not in site.actions(scope="group:web")


def test_a_policy_that_lets_a_scope_listen_takes_silence_back_too() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", auto_approve_restart=True)
    assert site.event(operation).implied
    site.set_policy("group:web", listening=Listening.ALWAYS)
    assert not site.event(operation).approved


def test_silence_does_not_bring_degraded_hardware_forward() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.DEGRADED_HARDWARE, "a")
    site.run(7 * DAY - SECOND)
    assert site.operation(operation).status is Status.SCHEDULED
    site.run(SECOND)
    assert site.operation(operation).status is Status.STARTED


def test_approval_brings_degraded_hardware_forward() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.DEGRADED_HARDWARE, "a")
    site.tick()
    site.approve_all(operation)
    site.tick()
    assert site.operation(operation).status is Status.STARTED


def beside_silent_neighbours(*listening: str) -> Site:
    """Host a has these standalone VMs, which listen, and two that do not."""
    site = Site()
    site.add_hosts("ab")
    for name in listening:
        site.add_vm(name, "a")
    for name in ("mute-0", "mute-1"):
        site.add_vm(name, "a", policy=Policy())
    return site


def event_of(site: Site, operation: Operation, vm: str) -> Event:
    (event,) = [event for event in site.events(operation) if event.resources == (vm,)]
    return event


def test_silence_counts_on_degraded_hardware_once_every_listening_scope_has_approved() -> None:
    site = beside_silent_neighbours("cache", "db")
    operation = site.schedule(Kind.DEGRADED_HARDWARE, "a")
    site.tick()
    site.approve("vm:db", event_of(site, operation, "db").id)
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED
    assert site.explain(event_of(site, operation, "db")).sentence == (
        "It waits for approval by cache, until 2026-03-08 12:00:00 UTC at the latest."
    )
    site.approve("vm:cache", event_of(site, operation, "cache").id)
    site.tick()
    assert site.operation(operation).status is Status.STARTED
