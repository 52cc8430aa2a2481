"""What stands in the way of a start, one rule after the other."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.core.builders import DAY, HOUR, MINUTE, SECOND, Site, row

from forenotice.core.blockers import Blocker, BlockerKind, start_blockers
from forenotice.core.fleet import Policy, ScopeKind
from forenotice.core.operations import Kind, Operation, Status


def in_the_way(site: Site, operation: Operation) -> list[Blocker]:
    draft = site.look(operations=[operation.id], targets=True)
    return start_blockers(draft, draft.operation(operation.id), site.expiry_from)


def kinds(site: Site, operation: Operation) -> list[BlockerKind]:
    return [blocker.kind for blocker in in_the_way(site, operation)]


def pool(*, notice: timedelta = 5 * MINUTE) -> Site:
    site = Site()
    site.add_hosts("ab")
    site.add_group("pool", ScopeKind.PLACEMENT_GROUP, terminate_notice=notice)
    for number in range(3):
        site.add_vm(f"pool_{number}", "a", group="pool")
    return site


# Consent


@pytest.mark.parametrize("jump", [5 * MINUTE, HOUR])
def test_a_jump_of_the_clock_is_no_notice(jump: timedelta) -> None:
    site = row()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.state.operations[operation.id] = jumped = replace(operation, clock_jumped=jump)
    site.wait(jump + 15 * MINUTE - timedelta(microseconds=1))
    kinds = [blocker.kind for blocker in in_the_way(site, jumped)]
    assert kinds == [BlockerKind.APPROVAL, BlockerKind.CLOCK]
    site.tick()
    assert site.operation(operation).due_at == jumped.expires_at
    site.wait(timedelta(microseconds=1))
    assert in_the_way(site, jumped) == []


def test_what_was_not_approved_starts_when_the_start_up_is_over() -> None:
    site = row()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.wait(15 * MINUTE)
    site.expiry_from = site.now + 30 * SECOND
    site.run(30 * SECOND - timedelta(microseconds=1))
    assert site.operation(operation).status is Status.SCHEDULED
    site.run(timedelta(microseconds=1))
    assert site.operation(operation).status is Status.STARTED


# Edges


def unseen() -> tuple[Site, Operation]:
    """Past NotBefore, with an edge on a, which does not have the event."""
    site = row()
    site.shown["a"] = site.now
    site.wait(SECOND)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.wait(15 * MINUTE)
    return site, operation


def test_what_its_edge_has_not_shown_does_not_start_by_expiry() -> None:
    site, operation = unseen()
    bound = operation.not_before + 15 * MINUTE
    assert in_the_way(site, operation) == [Blocker(kind=BlockerKind.EDGE, until=bound, host="a")]
    site.tick()
    assert (site.operation(operation).held, site.operation(operation).due_at) == (True, site.now + MINUTE)
    assert site.journal[-1].data == {"because": [BlockerKind.EDGE]}
    site.beat("a", operation.created_at)
    site.tick()
    assert site.operation(operation).status is Status.STARTED


@pytest.mark.parametrize("shown", [None, timedelta(microseconds=1), DAY])
def test_an_edge_is_waited_for_no_longer_than_the_operator_says(shown: timedelta | None) -> None:
    site, operation = unseen()
    site.shown["a"] = None if shown is None else operation.created_at - shown
    site.run(operation.not_before + 15 * MINUTE - site.now - timedelta(microseconds=1))
    assert kinds(site, operation) == [BlockerKind.EDGE]
    site.run(timedelta(microseconds=1))
    assert site.operation(operation).status is Status.STARTED


def test_an_edge_is_waited_for_by_unapproved_operations_of_its_host_alone() -> None:
    site, operation = unseen()
    elsewhere = site.schedule(Kind.HOST_UPDATE, "b")
    site.wait(15 * MINUTE)
    assert kinds(site, elsewhere) == []
    again = site.schedule(Kind.HOST_REBOOT, "a")
    site.wait(15 * MINUTE)
    assert kinds(site, again) == [BlockerKind.EDGE]
    site.approve_all(again)
    assert kinds(site, again) == []
    assert kinds(site, operation) == []


def test_an_edge_and_a_start_up_are_both_waited_for() -> None:
    site, operation = unseen()
    site.expiry_from = site.now + 30 * SECOND
    assert kinds(site, operation) == [BlockerKind.START_UP, BlockerKind.EDGE]


# Earlier deletions


def test_an_approved_deletion_waits_for_unapproved_ones_of_its_group_that_come_no_later() -> None:
    site = pool()
    earlier = site.schedule(Kind.DELETION, "pool_0")
    site.wait(MINUTE)
    mine, twin = site.schedule(Kind.DELETION, "pool_1"), site.schedule(Kind.DELETION, "pool_2")
    site.approve_all(mine)
    assert in_the_way(site, mine) == [
        Blocker(
            kind=BlockerKind.EARLIER_DELETION,
            until=other.not_before,
            scope="group:pool",
            event=site.event(other).id,
            operation=other.id,
        )
        for other in (earlier, twin)
    ]


def test_a_deletion_does_not_wait_for_later_ones() -> None:
    site = pool()
    mine = site.schedule(Kind.DELETION, "pool_0")
    site.wait(MINUTE)
    site.schedule(Kind.DELETION, "pool_1")
    site.approve_all(mine)
    assert in_the_way(site, mine) == []


def test_a_deletion_goes_on_once_the_earlier_is_approved() -> None:
    site = pool()
    earlier, mine = site.schedule(Kind.DELETION, "pool_0"), site.schedule(Kind.DELETION, "pool_1")
    site.approve_all(mine)
    site.tick()
    assert site.operation(mine).held
    site.approve_all(earlier)
    site.tick()
    assert {site.operation(each).status for each in (mine, earlier)} == {Status.STARTED}


def test_a_deletion_goes_on_once_the_time_of_the_earlier_has_passed() -> None:
    site = pool()
    earlier = site.schedule(Kind.DELETION, "pool_0")
    site.wait(MINUTE)
    mine = site.schedule(Kind.DELETION, "pool_1")
    site.approve_all(mine)
    site.expiry_from = site.now + DAY
    site.run(4 * MINUTE - SECOND)
    assert site.operation(mine).status is Status.SCHEDULED
    site.run(SECOND)
    assert site.operation(mine).status is Status.STARTED
    assert site.operation(earlier).status is Status.SCHEDULED


# Update domains


@pytest.mark.parametrize("out", [Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.LIVE_MIGRATION, Kind.DEGRADED_HARDWARE])
@pytest.mark.parametrize("mine", [Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.LIVE_MIGRATION, Kind.DEGRADED_HARDWARE])
def test_planned_maintenance_takes_one_update_domain_at_a_time(out: Kind, mine: Kind) -> None:
    site = row(hosts="abcde")
    other = site.start(out, "a")
    operation = site.schedule(mine, "b")
    site.approve_all(operation)
    assert in_the_way(site, operation) == [
        Blocker(kind=BlockerKind.UPDATE_DOMAIN, scope="group:web", event=site.event(other).id, operation=other.id)
    ]
    site.run(MINUTE)
    assert site.operation(other).status is Status.COMPLETED
    assert site.operation(operation).status is not Status.SCHEDULED


def test_a_hardware_failure_holds_other_update_domains_back_and_is_not_held_back() -> None:
    site = row(hosts="abcde")
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    operation = site.schedule(Kind.HOST_UPDATE, "b")
    site.approve_all(operation)
    assert kinds(site, operation) == [BlockerKind.UPDATE_DOMAIN]
    assert site.schedule(Kind.HARDWARE_FAILURE, "c").status is Status.STARTED
    assert kinds(site, operation) == [BlockerKind.UPDATE_DOMAIN] * 2


def test_the_same_update_domain_elsewhere_is_not_in_the_way() -> None:
    site = row()
    site.add_vm("web-3", "d", group="web", update_domain=0, fault_domain=3)
    site.start(Kind.HOST_UPDATE, "a")
    operation = site.schedule(Kind.HOST_UPDATE, "d")
    site.approve_all(operation)
    assert in_the_way(site, operation) == []


def test_what_is_only_scheduled_is_not_in_the_way() -> None:
    site = row()
    site.schedule(Kind.HOST_UPDATE, "a")
    operation = site.schedule(Kind.HOST_UPDATE, "b")
    site.approve_all(operation)
    assert in_the_way(site, operation) == []


# Busy VMs


# Targets


def test_what_stays_where_it_is_needs_no_target() -> None:
    site = Site()
    site.add_host("a")
    site.add_vm("db", "a", policy=Policy())
    assert in_the_way(site, site.schedule(Kind.HOST_UPDATE, "a")) == []


# Budgets and windows


def test_a_budget_counts_each_vm_that_is_out_once() -> None:
    site = row()
    site.set_policy("group:web", max_unavailable="1")
    restart = site.start(Kind.RESTART, "web-0")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.approve_all(operation)
    assert kinds(site, operation) == [BlockerKind.VM_BUSY]
    other = site.schedule(Kind.HOST_UPDATE, "b")
    site.approve_all(other)
    assert in_the_way(site, other) == [
        Blocker(kind=BlockerKind.BUDGET, scope="group:web", event=site.event(restart).id, operation=restart.id)
    ]


def test_nothing_starts_by_expiry_alone_just_after_start_up() -> None:
    site = row()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.wait(15 * MINUTE)
    site.expiry_from = site.now + 30 * SECOND
    assert in_the_way(site, operation) == [Blocker(kind=BlockerKind.START_UP, until=site.expiry_from)]
    site.approve_all(operation)
    assert in_the_way(site, operation) == []
