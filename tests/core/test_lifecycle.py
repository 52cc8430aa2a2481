"""The life of an operation: approvals, start, end, and what a late commit or a wrong clock changes."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.core.builders import DAY, HOUR, MINUTE, NOW, SECOND, Site, is_nothing, row

from forenotice.core import errors, lifecycle
from forenotice.core.fleet import Listening, Policy, Scope, ScopeKind
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.timing import Timing
from forenotice.core.windows import parse_all


def shared() -> Site:
    """On host a: `pool_0` and `pool_1` of one group, `db` alone, and `batch`, a spot VM; b is spare."""
    site = Site()
    site.add_hosts("ab")
    site.add_group("pool", ScopeKind.PLACEMENT_GROUP, terminate_notice=5 * MINUTE)
    site.add_vm("pool_0", "a", group="pool")
    site.add_vm("pool_1", "a", group="pool")
    site.add_vm("db", "a")
    site.add_vm("batch", "a", spot=True)
    return site


def carry_out(site: Site, kind: Kind, name: str) -> Operation:
    operation = site.schedule(kind, name)
    site.approve_all(operation)
    site.run(3 * SECOND)
    assert site.operation(operation).status is Status.COMPLETED
    return site.operation(operation)


def test_only_what_is_scheduled_can_be_cancelled() -> None:
    site = shared()
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    with pytest.raises(errors.ConflictError, match="is Started: only what is Planned or Scheduled can be cancelled"):
        site.cancel(operation.id)
    site.run(3 * SECOND)
    with pytest.raises(errors.ConflictError, match="is Completed"):
        site.cancel(operation.id)


def test_what_was_deleted_without_an_event_wakes_what_waited_for_the_vm() -> None:
    site = shared()
    deletion = site.schedule(Kind.DELETION, "db")
    restart = site.schedule(Kind.RESTART, "db")
    site.approve_all(restart)
    for _ in range(3):
        tasks = site.tick()
        site.fail(tasks[0])
        site.wait(5 * SECOND)
    assert site.operation(restart).held
    draft = site.look(operations=[deletion.id])
    lifecycle.end(draft, draft.operation(deletion.id), Status.FAILED)
    assert list(draft.changes().woken) == ["vm:db"]


def test_an_event_that_ends_because_its_vm_left_wakes_its_scope() -> None:
    site = shared()
    site.schedule(Kind.RESTART, "pool_0")
    redeploy = site.schedule(Kind.REDEPLOY, "pool_0")
    site.approve_all(redeploy)
    (task,) = site.tick()
    changes = site.succeed(task)
    assert (list(changes.woken), changes.room_made) == (["group:pool"], True)


@pytest.mark.parametrize(("kind", "name"), [(Kind.DELETION, "pool_0"), (Kind.EVICTION, "batch")])
def test_a_removed_vm_is_gone_when_the_event_is(kind: Kind, name: str) -> None:
    site = shared()
    operation = site.schedule(kind, name)
    site.approve_all(operation)
    (task,) = site.tick()
    site.succeed(task)
    site.tick()
    assert name in site.state.vms
    assert len(site.listed(site.vm(name).scope)) == 1
    site.run(2 * SECOND)
    assert name not in site.state.vms
    assert site.actions(vm=name)[-1] == "vm.removed"
    assert site.event(operation).status is Status.COMPLETED


def test_the_scope_of_a_standalone_vm_goes_with_it_and_a_groups_stays() -> None:
    site = shared()
    site.schedule(Kind.DELETION, "db")
    carry_out(site, Kind.DELETION, "pool_0")
    assert "vm:db" not in site.state.scopes
    assert "group:pool" in site.state.scopes


def test_the_others_of_its_scope_stay_named() -> None:
    site = shared()
    update = site.schedule(Kind.HOST_UPDATE, "a")
    before = site.scope("group:pool").incarnation
    carry_out(site, Kind.DELETION, "pool_0")
    (event,) = [event for event in site.events(update) if event.scope == "group:pool"]
    assert (event.resources, event.status) == (("pool_1",), Status.SCHEDULED)
    # Appeared, Started, gone; the last with the Resources of the other.
    assert site.scope("group:pool").incarnation == before + 3
    assert "event.resource_dropped" in site.actions(event=event.id)


def test_what_waited_only_for_the_vm_that_left_is_looked_at_at_once() -> None:
    site = Site()
    site.add_hosts("ab")
    site.add_vm("db", "a")
    site.add_vm("mute", "a", policy=Policy())
    update = site.schedule(Kind.HOST_UPDATE, "a")
    assert update.due_at == update.not_before
    redeploy = site.schedule(Kind.REDEPLOY, "db")
    site.approve_all(redeploy)
    (task,) = site.tick()
    site.succeed(task)
    assert site.operation(update).due_at == site.now


def test_a_vm_with_the_same_name_later_is_another_scope() -> None:
    site = shared()
    operation = site.schedule(Kind.RESTART, "db")
    tag = site.scope("vm:db").tag
    site.schedule(Kind.DELETION, "db")
    site.run(3 * SECOND)
    assert site.operation(operation).status is Status.CANCELED
    site.add_vm("db", "b")
    assert (site.scope("vm:db").incarnation, site.scope("vm:db").tag != tag) == (1, True)
    site.wait(HOUR)
    assert site.listed("vm:db") == []


def test_what_waits_for_a_known_moment_is_looked_at_then() -> None:
    site = row(listening=Listening.NEVER)
    operation = site.schedule(Kind.DEGRADED_HARDWARE, "a")
    site.tick()
    assert (site.operation(operation).due_at, site.operation(operation).held) == (operation.not_before, False)
    assert "operation.held" not in site.actions(operation=operation.id)


def test_what_is_held_is_looked_at_every_minute_and_noted_once() -> None:
    site = row(hosts="abc")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.wait(15 * MINUTE)
    site.tick()
    assert (site.operation(operation).due_at, site.operation(operation).held) == (site.now + lifecycle.RECHECK, True)
    site.run(10 * MINUTE)
    assert site.actions(operation=operation.id).count("operation.held") == 1


def test_what_is_held_is_looked_at_sooner_when_something_is_known_to_change() -> None:
    site = row(hosts="abc")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.wait(15 * MINUTE - 10 * SECOND)
    with site.transaction(operations=[operation.id], targets=True) as draft:
        found = lifecycle.start_or_hold(draft, draft.operation(operation.id), site.expiry_from)
    assert [blocker.kind for blocker in found] == ["approval", "target-host"]
    assert site.operation(operation).due_at == operation.not_before


def test_what_was_held_and_starts_is_held_no_longer() -> None:
    site = row(hosts="abc")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.wait(15 * MINUTE)
    site.tick()
    site.add_host("d")
    with site.transaction(operations=[operation.id], targets=True) as draft:
        assert lifecycle.start_or_hold(draft, draft.operation(operation.id), site.expiry_from) == []
    started = site.operation(operation)
    assert (started.status, started.held, started.due_at) == (Status.STARTED, False, site.now)


def pair() -> Site:
    """`db` and `www`, standalone, both on host a."""
    site = Site()
    site.add_hosts("ab")
    site.add_vm("db", "a")
    site.add_vm("www", "a")
    return site


def test_all_scopes_must_approve() -> None:
    site = pair()
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    mine, other = site.events(operation)
    site.approve(mine.scope, mine.id)
    assert site.operation(operation).due_at == operation.not_before
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED
    site.approve(other.scope, other.id)
    site.tick()
    assert site.operation(operation).status is Status.STARTED


def test_another_scopes_event_and_none_at_all_are_refused_alike() -> None:
    site = pair()
    own = site.event(site.schedule(Kind.RESTART, "db"))
    other = site.event(site.schedule(Kind.RESTART, "www"))
    said = []
    for stranger in (other.id, "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(errors.RefusedError) as refused:
            site.approve("vm:db", own.id, stranger)
        said.append((refused.value.message, refused.value.facts))
    assert said[0] == said[1]
    assert not any(event.approved for event in site.state.events.values())


def test_what_else_was_loaded_does_not_help_a_guest() -> None:
    """Approvals of several guests are decided together."""
    site = pair()
    other = site.event(site.schedule(Kind.RESTART, "www"))
    over = site.event(site.schedule(Kind.RESTART, "db"))
    site.cancel(over.operation)
    site.wait(2 * HOUR)
    draft = site.look(scopes=["vm:db", "vm:www"], events=[over.id])
    for stranger in (other, over):
        with pytest.raises(errors.RefusedError):
            lifecycle.approve_as_guest(draft, StartRequests(vm="db", scope="vm:db", event_ids=(stranger.id,)))
    assert is_nothing(draft.changes())


def test_approving_twice_is_approving_once() -> None:
    site = pair()
    operation = site.schedule(Kind.RESTART, "db")
    event = site.event(operation)
    site.approve("vm:db", event.id, event.id.lower())
    assert site.actions(event=event.id).count("event.approved") == 1
    site.wait(SECOND)
    again = site.approve("vm:db", event.id)
    assert is_nothing(again)


@pytest.mark.parametrize(("ago", "fine"), [(timedelta(0), True), (HOUR, True), (HOUR + SECOND, False)])
def test_an_event_that_ended_within_the_last_hour_still_answers(ago: timedelta, fine: bool) -> None:
    site = pair()
    operation = site.schedule(Kind.RESTART, "db")
    site.cancel(operation.id)
    site.wait(ago)
    if fine:
        changes = site.approve("vm:db", site.event(operation).id)
        assert is_nothing(changes)
    else:
        with pytest.raises(errors.RefusedError):
            site.approve("vm:db", site.event(operation).id)


def test_an_approval_before_its_time_is_not_late() -> None:
    site = pair()
    site.approve("vm:db", site.event(site.schedule(Kind.RESTART, "db")).id)
    assert site.journal[-1].data["late"] is False


def test_an_explicit_approval_takes_the_place_of_silence() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.approve("group:web", site.event(operation).id, by="web-0")
    event = site.event(operation)
    assert (event.approved_by, event.implied) == ("web-0", False)
    site.hear("group:web")
    assert site.event(operation).approved


LATE = timedelta(seconds=4, milliseconds=300)


def make_up(site: Site, operation: Operation) -> Operation:
    promised_at = site.now
    site.wait(LATE)
    with site.transaction(operations=[operation.id]) as draft:
        lifecycle.restore_notice(draft, draft.operation(operation.id), promised_at)
    return site.state.operations[operation.id]


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.HOST_UPDATE])
def test_what_was_announced_is_put_off(kind: Kind) -> None:
    site = row()
    operation = site.schedule(kind, "a" if kind.traits.of_host else "web-0")
    after = make_up(site, operation)
    assert after.not_before == after.due_at == operation.not_before + timedelta(seconds=5)
    assert {event.not_before for event in site.events(operation)} == {after.not_before}
    assert [entry.action for entry in site.journal].count("event.postponed") == len(site.events(operation))


def test_what_started_counts_from_now() -> None:
    site = row()
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert make_up(site, operation).started_at == site.now


def test_what_was_made_earlier_stays_as_it_is() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(LATE)
    assert make_up(site, operation) == operation


def test_a_window_that_closes_meanwhile_is_waited_for_again() -> None:
    site = row()
    site.set_policy("group:web", windows=parse_all(["daily 12:14-12:15 UTC", "daily 23:00-23:30 UTC"]))
    site.wait(-timedelta(seconds=3))
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    assert operation.not_before == NOW + timedelta(minutes=14, seconds=57)
    after = make_up(site, operation)
    assert after.not_before == after.due_at == NOW.replace(hour=23)


def set_right(site: Site, operation: Operation, *, behind: timedelta) -> Operation:
    """The journal is at the site's time, and the clock so far behind it."""
    wrongly = site.now
    site.wait(-behind)
    draft = site.look(operations=[operation.id])
    lifecycle.correct_clock(draft, draft.operation(operation.id), wrongly)
    return draft.operation(operation.id)


def test_what_was_left_of_the_notice_is_left_of_it() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(5 * MINUTE)
    after = set_right(site, operation, behind=DAY)
    assert (after.not_before, after.due_at) == (site.now + 10 * MINUTE, site.now)


def test_what_the_clock_jumped_is_taken_back_too() -> None:
    site = row()
    operation = replace(site.schedule(Kind.RESTART, "web-0"), clock_jumped=DAY)
    site.state.operations[operation.id] = operation
    site.wait(DAY + 5 * MINUTE)
    after = set_right(site, operation, behind=DAY)
    assert (after.not_before, after.clock_jumped) == (operation.not_before, timedelta(0))


@pytest.mark.parametrize("behind", [DAY, MINUTE])
def test_what_was_over_stays_over(behind: timedelta) -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(20 * MINUTE)
    after = set_right(site, operation, behind=behind)
    assert after.not_before == min(operation.not_before, site.now)


def test_what_had_started_has_not_started_in_the_future() -> None:
    site = row()
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    after = set_right(site, failure, behind=DAY)
    assert (after.started_at, after.due_at) == (site.now, site.now)


def test_what_is_planned_is_judged_anew() -> None:
    site = row()
    site.set_policy("group:web", windows=parse_all(["daily 22:00-04:00 UTC"]))
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    after = set_right(site, operation, behind=HOUR)
    assert (after.status, after.due_at) == (Status.PLANNED, site.now)


def test_what_has_ended_stays_as_it_is() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    ended = replace(operation, status=Status.CANCELED, ended_at=site.now, due_at=None)
    site.state.operations[operation.id] = ended
    assert set_right(site, ended, behind=DAY) == ended


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


@pytest.mark.parametrize(
    ("heard", "lost", "listens"),
    [
        (DAY - SECOND, timedelta(0), True),
        (DAY, timedelta(0), False),
        (2 * DAY, DAY + SECOND, True),
        (2 * DAY, DAY, False),
        (DAY, -HOUR, False),
        (HOUR, 2 * HOUR, True),
        (None, DAY, False),
    ],
)
def test_an_edge_that_is_lost_is_not_a_scope_that_is_silent(
    heard: timedelta | None, lost: timedelta, listens: bool
) -> None:
    last_heard = None if heard is None else NOW - heard
    scope = Scope(key="vm:db", kind=ScopeKind.STANDALONE, tag="", last_heard=last_heard, unheard_since=NOW - lost)
    assert lifecycle.is_listening(scope, NOW, Timing()) is listens
    assert lifecycle.would_wake(scope, NOW, Timing()) is (heard is None or heard >= DAY)


def test_a_scope_whose_edge_is_lost_is_waited_for_and_a_poll_is_told() -> None:
    site = row(listening=Listening.AUTO)
    site.hear("group:web")
    site.wait(HOUR)
    site.lose("b")
    site.wait(2 * DAY)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    assert not site.event(operation).approved
    site.hear("group:web")
    assert site.actions(scope="group:web")[-1] == "scope.listening"
    site.find("b")
    assert lifecycle.is_listening(site.scope("group:web"), site.now, site.timing)


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
