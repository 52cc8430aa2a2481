"""From a request to events: who is told what, how far ahead, and what is born Started."""

import itertools
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.core.builders import ALWAYS, DAY, HOUR, MINUTE, NOW, SECOND, Site, row

from forenotice.core import announcements, errors, explanations, lifecycle
from forenotice.core.draft import NO_LIMITS, Draft, UserLimits, World
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Host, Listening, Policy, Scope, ScopeKind, Vm, natural_key
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import Timing
from forenotice.core.windows import parse_all

SILENT = Policy(listening=Listening.NEVER)


def crowd(**policy: Any) -> Site:
    """Several scopes on host a: two of `web`, one of `pool`, a standalone `db` and a spot `batch`; b is spare."""
    site = Site()
    site.add_hosts("ab")
    site.add_group("web", **policy)
    site.add_group("pool", ScopeKind.PLACEMENT_GROUP, terminate_notice=7 * MINUTE, **policy)
    for name, group in (("web-0", "web"), ("web-1", "web"), ("pool_0", "pool"), ("pool_1", "pool")):
        site.add_vm(name, "a", group=group, update_domain=1)
    site.add_vm("db", "a")
    site.add_vm("batch", "a", spot=True)
    return site


# Who is told what


def test_resources_stand_in_the_order_people_count_wherever_they_are_told() -> None:
    site = Site()
    site.add_hosts("a")
    site.add_group("ss", ScopeKind.PLACEMENT_GROUP)
    for number in (10, 2, 1):
        site.add_vm(f"ss_{number}", "a", group="ss")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    event = site.event(operation)
    assert operation.vms == event.resources == ("ss_1", "ss_2", "ss_10")
    assert "by ss (ss_1, ss_2 and ss_10)," in site.explain(event).sentence
    (told,) = [entry for entry in site.journal if entry.action == "event.scheduled"]
    assert told.data["resources"] == ["ss_1", "ss_2", "ss_10"]


def test_an_operation_remembers_who_asked_and_why() -> None:
    site = crowd()
    with site.transaction(by="ann", vms=["db"]) as draft:
        made = announcements.schedule(draft, announcements.OperationSpec(kind=Kind.RESTART, name="db", reason="kernel"))
    assert (made.by, made.reason) == ("ann", "kernel")
    assert site.actions(operation=made.id) == ["operation.scheduled", "event.scheduled"]


def test_a_host_without_vms_has_nobody_to_tell() -> None:
    with pytest.raises(errors.ConflictError, match="host b has no VMs"):
        crowd().schedule(Kind.HOST_UPDATE, "b")


# Notice


@pytest.mark.parametrize(
    ("kind", "name", "notice"),
    [
        (Kind.RESTART, "db", 15 * MINUTE),
        (Kind.REDEPLOY, "db", 10 * MINUTE),
        (Kind.EVICTION, "batch", 30 * SECOND),
        (Kind.DELETION, "pool_0", 7 * MINUTE),
        (Kind.HOST_UPDATE, "a", 15 * MINUTE),
        (Kind.HOST_REBOOT, "a", 15 * MINUTE),
        (Kind.LIVE_MIGRATION, "a", 15 * MINUTE),
        (Kind.DEGRADED_HARDWARE, "a", 7 * DAY),
    ],
)
def test_notice_by_kind(kind: Kind, name: str, notice: timedelta) -> None:
    operation = crowd().schedule(kind, name)
    assert operation.not_before == NOW + notice
    assert operation.due_at == operation.not_before


def test_notice_counts_from_the_commit_and_is_rounded_up() -> None:
    site = crowd()
    site.wait(timedelta(microseconds=1))
    operation = site.schedule(Kind.RESTART, "db", allowance=SECOND)
    assert operation.not_before == NOW + 15 * MINUTE + 2 * SECOND


def test_speed_divides_the_notice() -> None:
    site = Site(speed=60)
    site.add_hosts("ab")
    site.add_vm("db", "a")
    assert site.schedule(Kind.RESTART, "db").not_before == NOW + 15 * SECOND
    assert site.schedule(Kind.DEGRADED_HARDWARE, "a").not_before == NOW + 7 * DAY / 60


@pytest.mark.parametrize(
    ("kind", "name", "notice", "said"),
    [
        (Kind.RESTART, "db", 15 * MINUTE - SECOND, "restart needs at least 15 minutes of notice, not 14.9833"),
        (Kind.DEGRADED_HARDWARE, "a", MINUTE, "degraded-hardware needs at least 10 minutes"),
        (Kind.EVICTION, "batch", -SECOND, "eviction needs at least 0.5 minutes of notice, not -0.01"),
        (Kind.DELETION, "pool_0", 15 * MINUTE, "the notice of a deletion cannot be chosen"),
        (Kind.HARDWARE_FAILURE, "a", MINUTE, "the notice of a hardware-failure cannot be chosen"),
        (Kind.HOST_UPDATE, "a", timedelta.max, "beyond the calendar"),
    ],
)
def test_notice_that_is_refused(kind: Kind, name: str, notice: timedelta, said: str) -> None:
    site = crowd()
    with pytest.raises(errors.RefusedError, match=said):
        site.schedule(kind, name, notice=notice)
    assert not site.live()


# How long a host update freezes the VMs


@pytest.mark.parametrize(("asked", "told"), [(None, 9), (1, 1), (600, 600)])
def test_guests_and_the_driver_are_told_how_long_a_freeze_lasts(asked: int | None, told: int) -> None:
    site = crowd()
    operation = site.schedule(Kind.HOST_UPDATE, "a", duration=asked)
    assert {event.duration for event in site.events(operation)} == {told}
    site.approve_all(operation)
    (task,) = site.tick()
    assert task.duration == told


@pytest.mark.parametrize(
    ("kind", "name", "duration", "said"),
    [
        (Kind.HOST_UPDATE, "a", 0, "the duration must be from 1 to 600 seconds"),
        (Kind.HOST_UPDATE, "a", 601, "the duration must be from 1 to 600 seconds"),
        (Kind.LIVE_MIGRATION, "a", 2, "the duration of a live-migration cannot be chosen: leave it out"),
        (Kind.RESTART, "db", 2, "the duration of a restart cannot be chosen: leave it out"),
    ],
)
def test_a_duration_that_is_refused(kind: Kind, name: str, duration: int, said: str) -> None:
    site = crowd()
    with pytest.raises(errors.RefusedError, match=said):
        site.schedule(kind, name, duration=duration)
    assert not site.live()


# The same again


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.REDEPLOY, Kind.EVICTION, Kind.DELETION])
def test_the_same_kind_again_is_a_conflict_that_names_it(kind: Kind) -> None:
    site = crowd()
    site.add_vm("pool_2", "a", group="pool", spot=True, update_domain=1)
    name = "pool_2" if kind is Kind.EVICTION else "pool_0"
    first = site.schedule(kind, name)
    with pytest.raises(errors.ConflictError, match=first.id) as conflict:
        site.schedule(kind, name)
    assert conflict.value.facts["operation"] == first.id
    assert conflict.value.facts["status"] is Status.SCHEDULED


def test_the_same_kind_is_accepted_once_the_first_has_started_and_waits() -> None:
    site = crowd(auto_approve_restart=True)
    first = site.schedule(Kind.RESTART, "web-0")
    second = site.schedule(Kind.RESTART, "web-0")
    assert (first.status, second.status, second.held) == (Status.STARTED, Status.SCHEDULED, True)
    with pytest.raises(errors.ConflictError, match=second.id):
        site.schedule(Kind.RESTART, "web-0")


def test_the_same_host_operation_is_accepted_once_the_first_has_started() -> None:
    site = row()
    first = site.start(Kind.HOST_UPDATE, "a")
    second = site.schedule(Kind.HOST_UPDATE, "a")
    assert (site.operation(first).status, second.status) == (Status.STARTED, Status.SCHEDULED)


# Limits of users


def test_users_operations_in_a_scope_can_be_limited() -> None:
    site = crowd(max_user_operations=2)
    first = site.schedule(Kind.RESTART, "web-0")
    second = site.schedule(Kind.REDEPLOY, "web-0")
    with pytest.raises(errors.ConflictError, match="web has 2 users' operations under way and allows 2") as conflict:
        site.schedule(Kind.RESTART, "web-1")
    assert conflict.value.facts["operations"] == sorted([first.id, second.id])
    site.schedule(Kind.RESTART, "pool_0")
    site.schedule(Kind.HOST_UPDATE, "a")
    site.cancel(first.id)
    site.schedule(Kind.RESTART, "web-1")


def test_users_operations_in_the_fleet_can_be_limited() -> None:
    site = crowd()
    site.limits = UserLimits(fleet=2)
    first = site.schedule(Kind.RESTART, "web-0")
    with pytest.raises(errors.ConflictError) as conflict:
        site.schedule(Kind.REDEPLOY, "pool_0", "db")
    assert conflict.value.message == (
        "the fleet allows 2 users' operations at a time: wait for one to end, or ask for fewer"
    )
    assert conflict.value.facts["limit"] == 2
    assert [each.id for each in site.live()] == [first.id]
    site.schedule(Kind.DELETION, "pool_0")
    with pytest.raises(errors.ConflictError, match=f"a restart that is Scheduled already: operation {first.id}"):
        site.schedule(Kind.RESTART, "web-0")
    site.schedule(Kind.HOST_UPDATE, "a")
    site.schedule(Kind.EVICTION, "batch")
    with pytest.raises(errors.ConflictError, match="the fleet allows 2"):
        site.schedule(Kind.RESTART, "db", by="tenant:a")
    site.approve_all(first)
    site.run(10 * SECOND)
    site.schedule(Kind.RESTART, "db", by="tenant:a")


def test_operations_of_each_tenant_can_be_limited() -> None:
    site = crowd()
    site.limits = UserLimits(tenant=2)
    first = site.schedule(Kind.RESTART, "web-0", "web-1", by="tenant:a")
    with pytest.raises(errors.ConflictError) as conflict:
        site.schedule(Kind.RESTART, "pool_0", by="tenant:a")
    assert conflict.value.message == (
        "tenant:a may have 2 operations at a time: wait for one to end, cancel one, or ask for fewer"
    )
    with pytest.raises(errors.ConflictError, match="tenant:b may have 2"):
        site.schedule(Kind.RESTART, "pool_0", "pool_1", "db", by="tenant:b")
    site.schedule(Kind.RESTART, "pool_0", by="tenant:b")
    site.schedule(Kind.RESTART, "pool_1", "db", "batch", by="operator:ann")
    site.cancel(first.id)
    site.schedule(Kind.REDEPLOY, "web-0", by="tenant:a")


# Automatic approval and silence


@pytest.mark.parametrize(("kind", "name"), [(Kind.HOST_UPDATE, "a"), (Kind.DELETION, "pool_0")])
def test_policy_approves_nothing_else(kind: Kind, name: str) -> None:
    site = crowd(auto_approve_restart=True, auto_approve_redeploy=True)
    operation = site.schedule(kind, name)
    assert operation.status is Status.SCHEDULED
    assert not any(event.approved for event in site.events(operation))


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.REDEPLOY, Kind.DELETION])
def test_a_users_action_that_nobody_could_object_to_is_born_started(kind: Kind) -> None:
    site = crowd(policy=Policy())
    event = site.event(site.schedule(kind, "pool_0"))
    assert (event.status, event.approved_by, event.implied) == (Status.STARTED, "silence", True)


# Deletion and eviction


@pytest.mark.parametrize("name", ["web-0", "db", "batch", "pool_9"])
def test_other_deletions_are_carried_out_at_once_without_an_event(name: str) -> None:
    site = crowd()
    site.add_vm("pool_9", "a", group="pool", spot=True, update_domain=1)
    operation = site.schedule(Kind.DELETION, name)
    assert (operation.status, site.events(operation)) == (Status.STARTED, [])
    site.run(3 * SECOND)
    assert name not in site.state.vms


def test_only_spot_vms_are_evicted() -> None:
    site = crowd()
    assert site.event(site.schedule(Kind.EVICTION, "batch")).type == "Preempt"
    with pytest.raises(errors.ConflictError, match="db is not a spot VM"):
        site.schedule(Kind.EVICTION, "db")


# Hardware


def test_degraded_hardware_cordons_its_host() -> None:
    site = crowd()
    operation = site.schedule(Kind.DEGRADED_HARDWARE, "a")
    assert site.state.hosts["a"].cordoned
    assert "host.cordoned" in site.actions(operation=operation.id)


def test_a_hardware_failure_lets_be_what_had_been_carried_out() -> None:
    site = crowd(auto_approve_redeploy=True)
    redeploy = site.schedule(Kind.REDEPLOY, "web-0")
    (task,) = site.tick()
    site.succeed(task)
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.operation(redeploy).status is Status.COMPLETED
    assert "web-0" not in failure.vms


def test_a_hardware_failure_cancels_once_what_a_removal_would_cancel_too() -> None:
    site = crowd()
    site.schedule(Kind.DELETION, "db")
    restart = site.schedule(Kind.RESTART, "db")
    (task,) = site.tick()
    site.succeed(task)
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert "db" not in site.state.vms
    assert "db" not in failure.vms
    assert site.actions(operation=restart.id).count("operation.canceled") == 1


def test_a_second_hardware_failure_of_a_host_is_a_conflict_until_the_first_has_ended() -> None:
    site = crowd()
    first = site.schedule(Kind.HARDWARE_FAILURE, "a")
    with pytest.raises(errors.ConflictError, match=f"is Started already: operation {first.id}"):
        site.schedule(Kind.HARDWARE_FAILURE, "a")


# Many at once


def many(vms: int, policy: Policy) -> Draft:
    """A group with two VMs on each host and, for moves, as many empty hosts."""
    hosts = {
        f"{noun}-{number}": Host(name=f"{noun}-{number}") for noun in ("host", "spare") for number in range(vms // 2)
    }
    key = "group:web"
    placed = {f"vm-{n}": Vm(name=f"vm-{n}", vm_id=f"{n}", host=f"host-{n // 2}", scope=key) for n in range(vms)}
    scope = Scope(key=key, kind=ScopeKind.PLACEMENT_GROUP, tag="tag", policy=policy)
    world = World(hosts=hosts, vms=placed, scopes={key: scope}, occupancy=dict.fromkeys(hosts, 2))
    ids = itertools.count()
    return Draft(world, now=NOW, timing=Timing(), new_id=lambda: str(next(ids)))


def effort(kind: Kind, vms: int, policy: Policy) -> int:
    """How many functions are called to schedule all of a group, which is the same however busy the machine is."""
    draft, calls = many(vms, policy), 0
    natural_key.cache_clear()

    def count(_frame: object, event: str, _of: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for name in list(draft.world.vms):
            announcements.schedule(draft, announcements.OperationSpec(kind=kind, name=name))
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.REDEPLOY, Kind.DELETION])
@pytest.mark.parametrize(
    "policy",
    [
        ALWAYS,
        SILENT,
        Policy(listening=Listening.NEVER, terminate_notice=5 * MINUTE),
        Policy(listening=Listening.ALWAYS, max_user_operations=1000),
    ],
    ids=["listening", "silent", "told-of-deletions", "limited"],
)
def test_scheduling_twice_as_many_takes_twice_as_long(kind: Kind, policy: Policy) -> None:
    assert effort(kind, 400, policy) < 2.2 * effort(kind, 200, policy)


def test_planned_maintenance_that_no_budget_allows_is_refused() -> None:
    site = row()
    site.add_vm("web-3", "a", group="web")
    site.set_policy("group:web", min_available=3)
    with pytest.raises(errors.ConflictError, match="the budget of group web can never be met: 2 of its 4 VMs are on"):
        site.schedule(Kind.HOST_UPDATE, "a")
    assert site.schedule(Kind.HOST_UPDATE, "b")
    site.set_policy("group:web", min_available=4)
    with pytest.raises(errors.ConflictError) as refused:
        site.schedule(Kind.HOST_UPDATE, "c")
    assert refused.value.message == (
        "the budget of group web can never be met: 1 of its 4 VMs is on host c, but min_available 4 allows 0 down at "
        "once: change it"
    )
    assert site.schedule(Kind.RESTART, "web-0")
    assert site.schedule(Kind.HARDWARE_FAILURE, "a")


@pytest.mark.parametrize(
    ("limits", "limited"), [(NO_LIMITS, False), (UserLimits(fleet=1), True), (UserLimits(tenant=1), True)]
)
def test_whether_users_are_limited(limits: UserLimits, limited: bool) -> None:
    assert limits.any == limited


NIGHT = parse_all(["daily 22:00-04:00 UTC"])
LATE = parse_all(["daily 23:00-23:30 UTC"])
NOON = parse_all(["daily 11:00-12:10 UTC"])
OPENS = NOW.replace(hour=22)
TOLD = OPENS - 16 * MINUTE
"""A quarter of an hour of notice, and a minute lest a late look miss the window."""


def night() -> Site:
    site = row()
    site.set_policy("group:web", windows=NIGHT)
    return site


def look_at(site: Site, moment: datetime) -> None:
    site.now = moment
    site.tick()


def explain(site: Site, operation: Operation) -> Explanation:
    draft = site.look(operations=[operation.id, *site.moving_to([operation.host])], targets=True)
    return explanations.explain_operation(draft, site.operation(operation), site.expiry_from)


def test_a_planned_update_keeps_its_duration() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a", duration=2)
    look_at(site, TOLD)
    assert site.event(operation).duration == 2


def test_guests_are_told_when_the_opening_minus_the_notice_is_reached() -> None:
    site = night()
    before = site.scope("group:web").incarnation
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    assert (operation.status, operation.due_at, operation.not_before) == (Status.PLANNED, TOLD, OPENS)
    assert site.events(operation) == []
    look_at(site, TOLD - SECOND)
    assert site.operation(operation).status is Status.PLANNED
    assert site.scope("group:web").incarnation == before
    look_at(site, TOLD)
    event = site.event(operation)
    assert (event.status, event.created_at, event.not_before) == (Status.SCHEDULED, TOLD, OPENS)
    assert site.scope("group:web").incarnation == before + 1
    assert (site.operation(operation).created_at, site.operation(operation).due_at) == (NOW, OPENS)
    assert site.actions(operation=operation.id) == ["operation.planned", "operation.scheduled", "event.scheduled"]
    planned = next(entry for entry in site.journal if entry.action == "operation.planned")
    assert (planned.data["announce_at"], planned.data["not_before"], planned.by) == (TOLD, OPENS, "op")
    site.approve_all(operation)
    site.run(17 * MINUTE)
    assert site.operation(operation).status is Status.COMPLETED


def test_a_users_own_action_is_not_put_off() -> None:
    assert night().schedule(Kind.RESTART, "web-0").status is Status.SCHEDULED


def test_it_is_told_before_all_windows_are_open_together() -> None:
    site = night()
    site.add_vm("db", "a")
    site.set_policy("vm:db", windows=LATE)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    assert operation.not_before == OPENS + HOUR
    said = explain(site, operation)
    assert said.sentence == (
        "It is planned; guests are told at 2026-03-01 22:44:00 UTC, because the windows of "
        "db (daily 23:00-23:30 UTC) and web (daily 22:00-04:00 UTC) are open together from 2026-03-01 23:00:00 UTC."
    )
    assert (said.since, said.until) == (NOW, OPENS + HOUR)
    assert said.waiting_for == tuple(
        {"kind": "announcement", "until": TOLD + HOUR, "opens_at": OPENS + HOUR, "scope": scope}
        for scope in ("vm:db", "group:web")
    )


def test_it_says_when_guests_are_told_and_why() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    assert explain(site, operation).sentence == (
        "It is planned; guests are told at 2026-03-01 21:44:00 UTC, because the window of web "
        "(daily 22:00-04:00 UTC) opens at 2026-03-01 22:00:00 UTC."
    )
    site.now = TOLD
    assert explain(site, operation).sentence == "Nothing is in the way: guests are told now."


def test_the_earliest_start_is_the_first_opening_after_guests_are_told() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a", notice=3 * DAY)
    assert operation.due_at == TOLD + 15 * MINUTE
    draft = site.look(operations=[operation.id])
    assert explanations.start_at_the_earliest(draft, operation, NOW) == OPENS
    assert operation.not_before == OPENS + 3 * DAY


def test_the_same_again_is_a_conflict_that_names_it() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    with pytest.raises(errors.ConflictError, match="a has a host-update that is Planned already") as refusal:
        site.schedule(Kind.HOST_UPDATE, "a")
    assert refusal.value.facts["operation"] == operation.id
    assert site.schedule(Kind.HOST_REBOOT, "a").status is Status.PLANNED


def test_windows_that_never_meet_are_refused() -> None:
    site = night()
    site.add_vm("db", "a")
    site.set_policy("vm:db", windows=NOON)
    with pytest.raises(errors.ConflictError, match="the windows of web and db are never open together"):
        site.schedule(Kind.HOST_UPDATE, "a")


def test_a_window_that_is_changed_changes_when_it_is_told() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", windows=LATE)
    site.tick()
    assert (site.operation(operation).due_at, site.operation(operation).not_before) == (TOLD + HOUR, OPENS + HOUR)
    site.set_policy("group:web", auto_approve_restart=True)
    site.tick()
    assert site.actions(operation=operation.id) == ["operation.planned", "operation.planned"]
    site.run(DAY)
    assert site.operation(operation).started_at == OPENS + HOUR


def test_windows_of_those_who_come_and_go_count() -> None:
    site = night()
    site.add_vm("db", "b")
    site.set_policy("vm:db", windows=LATE)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_vm("db", host="a")
    site.tick()
    assert site.operation(operation).due_at == TOLD + HOUR
    site.set_vm("db", group="web")
    site.tick()
    assert site.operation(operation).due_at == TOLD
    site.remove_vm("web-0")
    site.remove_vm("db")
    site.tick()
    assert site.operation(operation).status is Status.CANCELED
    assert site.actions(operation=operation.id)[-1] == "operation.canceled"


def test_a_vm_that_is_moved_away_takes_no_part_and_does_not_take_it_along() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.add_vm("stays", "a")
    redeploy = site.schedule(Kind.REDEPLOY, "web-0")
    site.approve_all(redeploy)
    site.run(MINUTE)
    assert site.vm("web-0").host == "d"
    assert (site.operation(operation).host, site.operation(operation).vms) == ("a", ("stays",))
    # Nobody of the rest has a window.
    assert site.operation(operation).status is Status.SCHEDULED
    alone = site.schedule(Kind.HOST_UPDATE, "d")
    site.add_host("e")
    site.approve_all(site.schedule(Kind.REDEPLOY, "web-0"))
    site.run(MINUTE)
    assert site.vm("web-0").host == "e"
    assert (site.operation(alone).host, site.operation(alone).status) == ("d", Status.CANCELED)


def test_guests_are_not_told_while_somebody_is_on_the_way_to_the_host() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.add_host("e")
    for host in "bcde":
        site.cordon(host)
    site.add_vm("mover", "e")
    site.now = TOLD - MINUTE
    move = site.schedule(Kind.REDEPLOY, "mover")
    site.approve_all(move)
    (task,) = site.tick()
    assert task.targets == {"mover": "a"}
    look_at(site, TOLD)
    assert site.operation(operation).status is Status.PLANNED
    assert site.operation(operation).due_at == TOLD + MINUTE
    said = explain(site, operation)
    assert said.sentence == f"It waits until operation {move.id} on its host has ended."
    assert said.until is None
    site.wait(10 * SECOND)
    site.succeed(task)
    site.tick()
    assert sorted(event.resources for event in site.events(operation)) == [("mover",), ("web-0",)]
    assert site.event(move).status is Status.COMPLETED


def test_a_budget_that_can_never_be_met_keeps_guests_from_being_told() -> None:
    site = night()
    site.add_vm("web-3", "a", group="web")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", max_unavailable="1")
    look_at(site, TOLD)
    assert (site.operation(operation).status, site.operation(operation).held) == (Status.PLANNED, True)
    assert explain(site, operation).sentence.startswith("The budget can never be met: max_unavailable 1 of web allows")
    site.set_policy("group:web", max_unavailable="2")
    site.tick()
    assert (site.operation(operation).status, site.operation(operation).held) == (Status.SCHEDULED, False)


def test_windows_that_no_longer_meet_are_said() -> None:
    site = night()
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("vm:db", windows=NOON)
    site.tick()
    assert (site.operation(operation).status, site.operation(operation).not_before) == (Status.PLANNED, OPENS)
    assert explain(site, operation).sentence == (
        "The windows of db (daily 11:00-12:10 UTC) and web (daily 22:00-04:00 UTC) have no hours in common: "
        "change one of them."
    )


def test_it_keeps_nobody_away_and_takes_no_wave() -> None:
    site = night()
    site.schedule(Kind.HOST_REBOOT, "a")
    site.add_vm("db", "a")
    site.add_vm("standing", "b")
    redeploy = site.schedule(Kind.REDEPLOY, "standing")
    site.approve_all(redeploy)
    site.run(MINUTE)
    # Who goes to a host with maintenance planned is disturbed twice: others come first.
    assert site.vm("standing").host == "d"


def test_a_late_commit_puts_off_what_it_announced() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    look_at(site, TOLD)
    site.wait(90 * SECOND)
    with site.transaction(operations=[operation.id]) as draft:
        lifecycle.restore_notice(draft, draft.operation(operation.id), TOLD)
    assert site.event(operation).not_before == OPENS + 90 * SECOND


def test_a_hardware_failure_cancels_it() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.operation(operation).status is Status.CANCELED
    assert site.operation(operation).failures == {"web-0": "host a has failed"}
