"""How operations end, and what a VM that leaves its host takes out of others."""

import pytest
from tests.core.builders import ALWAYS, HOUR, MINUTE, SECOND, Site, row, success

from forenotice.core import errors, lifecycle
from forenotice.core.driver_calls import Finished
from forenotice.core.fleet import Policy, ScopeKind
from forenotice.core.operations import Kind, Operation, Status


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


def test_cancelling_cancels_the_whole_operation() -> None:
    site = shared()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.cancel(operation.id)
    assert site.operation(operation).status is Status.CANCELED
    assert {event.status for event in site.events(operation)} == {Status.CANCELED}
    assert {event.ended_at for event in site.events(operation)} == {site.now}
    assert site.listed("group:pool") == []
    assert site.actions(operation=operation.id)[-4:] == ["event.canceled"] * 3 + ["operation.canceled"]


def test_only_what_is_scheduled_can_be_cancelled() -> None:
    site = shared()
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    with pytest.raises(errors.ConflictError, match="is Started: only what is Planned or Scheduled can be cancelled"):
        site.cancel(operation.id)
    site.run(3 * SECOND)
    with pytest.raises(errors.ConflictError, match="is Completed"):
        site.cancel(operation.id)


def test_what_ended_wakes_what_was_held_because_of_it() -> None:
    site = row()
    first, second = site.schedule(Kind.HOST_UPDATE, "a"), site.schedule(Kind.HOST_UPDATE, "b")
    for operation in (first, second):
        site.approve_all(operation)
    (task,) = site.tick()
    assert site.operation(second).held
    site.wait(2 * SECOND)
    site.tick({task.operation: success(task)})
    assert site.operation(first).status is Status.COMPLETED
    assert site.operation(second).due_at == site.now


def test_what_waits_for_a_vm_on_its_new_host_is_woken_too() -> None:
    site = shared()
    migration = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.approve_all(migration)
    (task,) = site.tick()
    site.succeed(task)
    restart = site.schedule(Kind.RESTART, "db")
    site.approve_all(restart)
    site.tick()
    assert site.operation(restart).held
    site.wait(2 * SECOND)
    site.tick()
    assert site.operation(migration).status is Status.COMPLETED
    assert site.operation(restart).due_at == site.now


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


def test_a_removal_that_fails_leaves_the_vm() -> None:
    site = shared()
    operation = site.schedule(Kind.EVICTION, "batch")
    site.approve_all(operation)
    for _ in range(3):
        (task,) = site.tick()
        site.fail(task)
        site.wait(10 * SECOND)
    site.tick()
    assert site.operation(operation).status is Status.FAILED
    assert "batch" in site.state.vms


def test_the_scope_of_a_standalone_vm_goes_with_it_and_a_groups_stays() -> None:
    site = shared()
    site.schedule(Kind.DELETION, "db")
    carry_out(site, Kind.DELETION, "pool_0")
    assert "vm:db" not in site.state.scopes
    assert "group:pool" in site.state.scopes


@pytest.mark.parametrize(
    ("kind", "name", "scope"),
    [(Kind.EVICTION, "batch", "vm:batch"), (Kind.DELETION, "db", "vm:db"), (Kind.REDEPLOY, "db", "vm:db")],
)
def test_a_vm_that_leaves_is_dropped_from_what_is_scheduled_on_its_host(kind: Kind, name: str, scope: str) -> None:
    site = shared()
    update = site.schedule(Kind.HOST_UPDATE, "a")
    restart = site.schedule(Kind.RESTART, name)
    carry_out(site, kind, name)
    left = {event.scope: event.status for event in site.events(update)}
    assert left.pop(scope) is Status.CANCELED
    assert set(left.values()) == {Status.SCHEDULED}
    assert name not in site.operation(update).vms
    assert (site.operation(update).status, site.operation(restart).status) == (Status.SCHEDULED, Status.CANCELED)
    assert site.event(restart).status is Status.CANCELED


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


def test_what_is_started_keeps_naming_a_vm_that_left() -> None:
    site = shared()
    migration = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.approve_all(migration)
    (task,) = site.tick()
    site.report(migration.id, Finished(done=("db",), failures=dict.fromkeys(("batch", "pool_0", "pool_1"), "later")))
    assert site.vm("db").host == "b"
    assert "db" in site.operation(migration).vms
    assert [event.status for event in site.listed("vm:db")] == [Status.STARTED]
    assert task.attempt == 1


def test_nobody_goes_where_maintenance_is_announced() -> None:
    site = shared()
    site.add_vm("old", "b", policy=ALWAYS)
    site.schedule(Kind.HOST_UPDATE, "b")
    with pytest.raises(errors.ConflictError, match="no host can take db"):
        site.schedule(Kind.REDEPLOY, "db")


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
