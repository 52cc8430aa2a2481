"""When an operation starts, and when it is looked at again if it does not."""

from tests.core.builders import DAY, MINUTE, SECOND, Site, row

from forenotice.core import lifecycle
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind, Status


def test_a_start_shows_in_every_scope_at_once() -> None:
    site = row()
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.approve_all(operation)
    before = {key: site.scope(key).incarnation for key in ("group:web", "vm:db")}
    site.tick()
    assert {event.status for event in site.events(operation)} == {Status.STARTED}
    assert {key: site.scope(key).incarnation - 1 for key in before} == before
    assert site.operation(operation).started_at == site.now
    assert site.actions(operation=operation.id).count("event.started") == 2


def test_a_target_is_chosen_at_the_start() -> None:
    site = row()
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    assert operation.targets == {}
    site.approve_all(operation)
    site.tick()
    assert site.operation(operation).targets == {"web-0": "d"}


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


def test_what_was_held_and_now_only_waits_is_noted() -> None:
    site = row(hosts="abc")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a", notice=DAY)
    with site.transaction(operations=[operation.id], targets=True) as draft:
        lifecycle.start_or_hold(draft, draft.operation(operation.id), site.expiry_from)
    site.add_host("d")
    assert site.operation(operation).due_at == site.now
    site.tick()
    assert (site.operation(operation).due_at, site.operation(operation).held) == (operation.not_before, False)
    assert site.actions(operation=operation.id)[-1] == "operation.waiting"


def test_what_is_due_starts_by_not_before_then_by_age() -> None:
    site = row()
    later = site.schedule(Kind.HOST_UPDATE, "a", notice=20 * MINUTE)
    first = site.schedule(Kind.HOST_UPDATE, "b", notice=15 * MINUTE)
    twin = site.schedule(Kind.HOST_UPDATE, "c", notice=15 * MINUTE)
    site.wait(30 * MINUTE)
    site.run(MINUTE)
    started = [entry.operation for entry in site.journal if entry.action == "operation.started"]
    assert started == [first.id, twin.id, later.id]


def test_starting_is_idempotent_over_ticks() -> None:
    site = Site()
    site.add_host("a")
    site.add_vm("db", "a")
    operation = site.schedule(Kind.RESTART, "db")
    site.approve_all(operation)
    (task,) = site.tick()
    before = site.operation(operation)
    assert site.tick() == []
    assert site.operation(operation) == before
    assert task.operation == operation.id
