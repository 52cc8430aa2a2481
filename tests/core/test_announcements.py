"""From a request to events: who is told what, how far ahead, and what is born Started."""

import itertools
import sys
from datetime import timedelta
from typing import Any

import pytest
from tests.core.builders import ALWAYS, DAY, MINUTE, NOW, SECOND, Site, row

from forenotice.core import announcements, errors
from forenotice.core.draft import NO_LIMITS, Draft, UserLimits, World
from forenotice.core.driver_calls import NotYet
from forenotice.core.fleet import Host, Listening, Policy, Scope, ScopeKind, Vm, natural_key
from forenotice.core.operations import Kind, Status
from forenotice.core.timing import Timing

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


def test_vms_of_a_scope_on_other_hosts_are_not_in_resources() -> None:
    site = row()
    assert site.event(site.schedule(Kind.HOST_UPDATE, "b")).resources == ("web-1",)


def test_an_operation_remembers_who_asked_and_why() -> None:
    site = crowd()
    with site.transaction(by="ann", vms=["db"]) as draft:
        made = announcements.schedule(draft, announcements.OperationSpec(kind=Kind.RESTART, name="db", reason="kernel"))
    assert (made.by, made.reason) == ("ann", "kernel")
    assert site.actions(operation=made.id) == ["operation.scheduled", "event.scheduled"]


@pytest.mark.parametrize(("kind", "name"), [(Kind.HOST_UPDATE, "z"), (Kind.RESTART, "z")])
def test_what_does_not_exist_is_not_found(kind: Kind, name: str) -> None:
    with pytest.raises(errors.NotFoundError, match="'z'"):
        crowd().schedule(kind, name)


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


def test_a_host_operation_waits_for_every_listening_scope() -> None:
    site = crowd(policy=SILENT)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    assert {event.scope for event in site.events(operation) if not event.approved} == {"vm:db", "vm:batch"}
    assert operation.due_at == operation.not_before


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


def test_a_redeploy_without_a_target_is_refused_at_once() -> None:
    site = crowd()
    site.cordon("b")
    with pytest.raises(errors.ConflictError, match="no host can take db: add or uncordon one"):
        site.schedule(Kind.REDEPLOY, "db")
    assert not site.live()


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


def test_a_failed_host_does_not_stop_what_another_host_has_sent_to_it() -> None:
    site = crowd()
    migration = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.approve_all(migration)
    (task,) = site.tick()
    site.report(task.operation, NotYet(again_at=site.now + MINUTE))
    site.add_vm("other", "b", policy=ALWAYS)
    failure = site.schedule(Kind.HARDWARE_FAILURE, "b")
    assert failure.vms == ("other",)
    assert site.operation(migration).status is Status.STARTED


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
