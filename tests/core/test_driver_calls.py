"""From Started to the end: tasks, answers, retries, claims."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.builders import CLAIM, DAY, MINUTE, SECOND, Site, failure, is_nothing, row, success

from forenotice.core import driver_calls, errors, membership
from forenotice.core.driver_calls import UNSAID, Finished, NotYet, Task
from forenotice.core.fleet import Listening, Policy
from forenotice.core.lifecycle import would_wake
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import LONGEST_PAUSE, Retries, Timing
from forenotice.core.windows import parse_all


def alone(*, hosts: str = "ab", timing: Timing | None = None) -> Site:
    """`db` and `www` on host a; nobody objects to anything."""
    site = Site(timing=timing)
    site.add_hosts(hosts)
    site.add_vm("db", "a", policy=Policy())
    site.add_vm("www", "a", policy=Policy())
    return site


def test_the_driver_is_told_everything_it_needs() -> None:
    site = alone()
    for name in "ab":
        with site.transaction(hosts=[name]) as draft:
            membership.set_host(draft, replace(draft.host(name), labels={"rack": name}, address=f"10.0.0.{name}"))
    site.set_policy("vm:www", shutdown_timeout=5 * MINUTE)
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    tasks = site.tick()
    assert [tasks[0].shutdown_seconds(name) for name in ("db", "www")] == [60, 300]
    assert tasks == [
        Task(
            operation=operation.id,
            kind=Kind.LIVE_MIGRATION,
            host="a",
            vms=("db", "www"),
            targets={"db": "b", "www": "b"},
            attempt=1,
            started_at=site.now,
            vm_ids={name: site.vm(name).vm_id for name in ("db", "www")},
            events={event.resources[0]: event.id for event in site.events(operation)},
            labels={"rack": "a"},
            address="10.0.0.a",
            target_addresses={"db": "10.0.0.b", "www": "10.0.0.b"},
            duration=5,
            shutdown_timeouts={"db": MINUTE, "www": 5 * MINUTE},
        )
    ]
    assert site.operation(operation).claimed_by == "p"
    assert site.operation(operation).claimed_until == site.now + CLAIM


def test_no_second_task_while_the_first_is_believed_under_way() -> None:
    site = alone()
    site.schedule(Kind.RESTART, "db")
    assert len(site.tick()) == 1
    site.wait(CLAIM - SECOND)
    assert site.tick(process="q") == []
    site.wait(SECOND)
    (task,) = site.tick(process="q")
    assert task.attempt == 1


def test_the_same_is_asked_for_again_after_a_crash() -> None:
    site = alone()
    operation = site.schedule(Kind.REDEPLOY, "db")
    (first,) = site.tick()
    site.wait(CLAIM)
    (second,) = site.tick(process="q")
    assert second == first
    # The one that was believed dead answers too late.
    assert is_nothing(site.report(operation.id, success(first), process="p"))
    site.report(operation.id, success(second), process="q")
    assert site.operation(operation).done == ("db",)


def test_an_answer_after_the_end_changes_nothing() -> None:
    site = alone()
    operation = site.schedule(Kind.RESTART, "db")
    (task,) = site.tick()
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert is_nothing(site.fail(task))
    assert site.operation(operation).status is Status.FAILED


@pytest.mark.parametrize(
    ("after", "listed"), [(timedelta(0), True), (2 * SECOND - timedelta(microseconds=1), True), (2 * SECOND, False)]
)
def test_started_stays_listed_for_two_seconds(after: timedelta, listed: bool) -> None:
    site = alone()
    operation = site.schedule(Kind.RESTART, "db")
    (task,) = site.tick()
    site.wait(after)
    site.succeed(task)
    site.tick()
    assert [event.operation for event in site.listed("vm:db")] == [operation.id] * listed
    site.run(2 * SECOND)
    assert site.operation(operation).status is Status.COMPLETED
    assert site.event(operation).ended_at is not None


def test_two_seconds_count_from_the_commit() -> None:
    site = alone()
    operation = site.schedule(Kind.RESTART, "db")
    (task,) = site.tick()
    site.succeed(task)
    site.wait(2 * SECOND)
    with site.transaction(operations=[operation.id], allowance=SECOND) as draft:
        driver_calls.advance(draft, draft.operation(operation.id), "p", site.now)
    assert site.operation(operation).status is Status.STARTED
    assert site.operation(operation).due_at == site.now + SECOND


def test_two_seconds_whatever_the_speed() -> None:
    site = Site(speed=1000)
    site.add_host("a")
    site.add_vm("db", "a", policy=Policy())
    operation = site.schedule(Kind.RESTART, "db")
    site.run(2 * SECOND - timedelta(microseconds=1))
    assert site.operation(operation).status is Status.STARTED
    site.run(timedelta(microseconds=1))
    assert site.operation(operation).status is Status.COMPLETED


def test_a_driver_that_fails_is_asked_again_with_growing_pauses_then_it_has_failed() -> None:
    site = alone()
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    (task,) = site.tick()
    for attempt, pause in ((1, 2 * SECOND), (2, 4 * SECOND)):
        assert task.attempt == attempt
        site.report(operation.id, Finished(done=task.vms[:0], failures={"db": "no answer", "www": "no answer"}))
        assert site.operation(operation).due_at == site.now + pause
        assert {event.status for event in site.events(operation)} == {Status.STARTED}
        site.wait(pause)
        (task,) = site.tick()
    assert task.attempt == Retries().tries == 3
    site.report(operation.id, Finished(done=("www",), failures={"db": "gone"}))
    site.tick()
    ended = site.operation(operation)
    assert (ended.status, ended.done, ended.failures) == (Status.FAILED, ("www",), {"db": "gone"})
    assert {event.status for event in site.events(operation)} == {Status.FAILED}
    assert site.listed("vm:db") == []
    results = {entry.scope: entry.data["results"] for entry in site.journal if entry.action == "event.failed"}
    assert results == {"vm:db": {"db": "gone"}, "vm:www": {"www": "done"}}
    assert site.journal[-1].data["results"] == {"db": "gone", "www": "done"}


def test_only_what_is_left_is_tried_again() -> None:
    site = alone()
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    (task,) = site.tick()
    site.report(operation.id, Finished(done=("db",), failures={"www": "no answer"}))
    site.wait(2 * SECOND)
    (task,) = site.tick()
    assert (task.vms, task.attempt) == (("www",), 2)
    site.succeed(task)
    site.tick()
    assert site.operation(operation).status is Status.COMPLETED
    assert site.operation(operation).failures == {}
    assert site.actions(operation=operation.id).count("driver.failed") == 1


def moved(site: Site, kind: Kind, name: str) -> Operation:
    operation = site.schedule(kind, name)
    site.run(3 * SECOND)
    return site.operation(operation)


@pytest.mark.parametrize("kind", [Kind.LIVE_MIGRATION, Kind.HARDWARE_FAILURE])
def test_vms_are_on_their_targets_once_moved(kind: Kind) -> None:
    site = alone(hosts="abc")
    operation = moved(site, kind, "a")
    assert operation.status is Status.COMPLETED
    assert {site.vm(name).host for name in ("db", "www")} == {"b", "c"}
    assert site.actions(vm="db")[-1] == "vm.moved"


def test_a_failure_without_a_target_stays_started_until_there_is_one() -> None:
    site = alone(hosts="a")
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.tick() == []
    assert (site.operation(operation).held, site.operation(operation).due_at) == (True, site.now + MINUTE)
    site.run(10 * MINUTE)
    assert {event.status for event in site.events(operation)} == {Status.STARTED}
    site.add_host("b")
    assert site.operation(operation).due_at == site.now
    site.run(3 * SECOND)
    assert site.operation(operation).status is Status.COMPLETED
    assert {site.vm(name).host for name in ("db", "www")} == {"b"}


@settings(deadline=None)
@given(tries=st.integers(1, 12), first=st.integers(0, 3600))
def test_a_policy_says_how_often_and_with_which_pauses(tries: int, first: int) -> None:
    site = alone(timing=Timing(speed=600, retries=Retries(tries=tries, first_pause=first * SECOND)))
    operation = site.schedule(Kind.RESTART, "db")
    pauses = []
    for attempt in range(1, tries + 1):
        (task,) = site.tick()
        assert task.attempt == attempt
        assert (f"try {attempt} of {tries}" in site.explain(site.event(operation)).sentence) is (attempt > 1)
        site.fail(task)
        pauses.append((site.operation(operation).due_at or site.now) - site.now)
        site.wait(pauses[-1])
    assert pauses == [min(first * SECOND * 2**n, LONGEST_PAUSE) for n in range(tries - 1)] + [timedelta(0)]
    site.wait(2 * SECOND)
    assert site.tick() == []
    assert site.operation(operation).status is Status.FAILED


def test_what_is_done_stays_done_when_the_rest_takes_longer() -> None:
    site = alone()
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.tick()
    site.report(operation.id, NotYet(again_at=site.now + SECOND, done=("db",)))
    assert (site.operation(operation).attempt, site.vm("db").host) == (0, "b")
    site.wait(SECOND)
    (task,) = site.tick()
    assert (task.vms, task.attempt) == (("www",), 1)


def test_a_driver_may_wait_for_as_long_as_it_takes_and_says_why_once() -> None:
    site = alone()
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    reason = "host a does not answer, and the driver has no fence: fence it"
    waiting = {"db": reason, "www": reason}
    for number in range(50):
        (task,) = site.tick()
        assert (task.attempt, task.waiting) == (1, waiting if number else {})
        site.report(operation.id, NotYet(again_at=site.now + DAY, waiting=waiting))
        assert (site.operation(operation).status, site.operation(operation).waiting) == (Status.STARTED, waiting)
        site.wait(DAY)
    assert site.actions(operation=operation.id).count("driver.waiting") == 1
    # It goes on for one of them, then has nothing more to wait for.
    site.tick()
    site.report(operation.id, NotYet(again_at=site.now, done=("db",), waiting=waiting))
    assert (site.operation(operation).waiting, site.journal[-3].data["waiting"]) == ({"www": reason}, {"www": reason})
    site.tick()
    site.report(operation.id, NotYet(again_at=site.now))
    assert (site.operation(operation).waiting, site.operation(operation).attempt) == ({}, 0)
    assert site.actions(operation=operation.id).count("driver.waiting") == 2
    for _ in range(Retries().tries):
        (task,) = site.tick()
        site.fail(task)
        site.wait(5 * SECOND)
    site.tick()
    assert site.operation(operation).status is Status.FAILED


def test_a_driver_that_waited_has_nothing_to_wait_for_once_it_is_over() -> None:
    site = alone(hosts="abc")
    operation = site.schedule(Kind.REDEPLOY, "db")
    (task,) = site.tick()
    waits = NotYet(again_at=site.now + MINUTE, waiting={"db": "host b does not answer", "www": "not of this one"})
    site.report(operation.id, waits)
    assert site.operation(operation).waiting == {"db": "host b does not answer"}
    # What was said of a target does not hold for the next.
    site.schedule(Kind.HARDWARE_FAILURE, task.targets["db"])
    assert (site.operation(operation).status, site.operation(operation).waiting) == (Status.STARTED, {})
    site.tick()
    site.report(operation.id, replace(waits, again_at=site.now + MINUTE))
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert (site.operation(operation).status, site.operation(operation).waiting) == (Status.FAILED, {})


def test_what_became_of_a_try_counts_also_when_nobody_claims_it_any_more() -> None:
    site = alone()
    operation = site.schedule(Kind.RESTART, "db")
    (task,) = site.tick()
    for attempt, counts in ((2, False), (1, True), (1, False)):
        draft = site.look(operations=[operation.id], targets=True)
        driver_calls.record_result(draft, draft.operation(operation.id), attempt, failure(task))
        assert is_nothing(site.keep(draft)) is not counts
    assert (site.operation(operation).attempt, site.operation(operation).claimed_by) == (1, None)


def test_the_journal_has_what_each_call_came_to() -> None:
    site = alone()
    operation = site.schedule(Kind.RESTART, "db")
    site.tick()
    site.report(operation.id, Finished(failures={"db": "exit code 3"}, calls=({"vms": ["db"], "exit_code": 3},)))
    assert site.journal[-1].data["calls"] == [{"vms": ["db"], "exit_code": 3}]


def test_only_what_says_all_of_the_present_try_is_about_it() -> None:
    site = alone()
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    both = Finished(done=("db",), failures={"www": "no"})
    assert not driver_calls.concerns(site.operation(operation), 1, both)
    site.tick()
    started = site.operation(operation)
    assert driver_calls.concerns(started, 1, both)
    assert not driver_calls.concerns(started, 2, both)
    assert not driver_calls.concerns(started, 1, Finished(done=("db",), failures={}))
    assert not driver_calls.concerns(started, 1, Finished(done=("db", "www", "x"), failures={}))


def exhaust(site: Site, operation_id: str) -> None:
    for _ in range(Retries().tries):
        (task,) = site.tick()
        assert task.operation == operation_id
        site.report(operation_id, failure(task))
        site.wait(MINUTE)


def test_a_vm_without_a_host_is_not_given_up_when_others_fail() -> None:
    site = row(hosts="abc")
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    exhaust(site, operation.id)
    assert site.tick() == []
    held = site.operation(operation)
    assert (held.status, held.held) == (Status.STARTED, True)
    assert "no host can take web-0" in site.explain(site.events(operation)[0]).sentence
    site.add_host("d")
    (task,) = site.tick()
    assert (task.vms, task.attempt) == (("db", "web-0"), 1)
    site.succeed(task)
    site.run(5 * SECOND)
    assert site.operation(operation).status is Status.COMPLETED


def test_a_host_that_fails_waves_away_what_is_arriving() -> None:
    site = row(hosts="abcde")
    site.add_vm("db", "a")
    redeploy = site.schedule(Kind.REDEPLOY, "db")
    site.approve("vm:db", site.event(redeploy).id)
    (task,) = site.tick()
    target = task.targets["db"]
    site.schedule(Kind.HARDWARE_FAILURE, target)
    late = site.report(redeploy.id, success(task))
    assert is_nothing(late)
    assert "db" not in site.operation(redeploy).targets
    site.run(10 * SECOND)
    assert site.operation(redeploy).status is Status.COMPLETED
    assert site.vm("db").host not in ("a", target)


def test_an_answer_about_the_old_target_is_not_taken_for_one_about_the_new() -> None:
    site = row(hosts="abcde")
    site.add_vm("db", "a")
    redeploy = site.schedule(Kind.REDEPLOY, "db")
    site.approve("vm:db", site.event(redeploy).id)
    (first,) = site.tick()
    site.schedule(Kind.HARDWARE_FAILURE, first.targets["db"])
    second = next(task for task in site.tick() if task.operation == redeploy.id)
    assert second.targets != first.targets
    assert is_nothing(site.report(redeploy.id, success(first), attempt=first.attempt))
    assert "db (host d has failed)" in site.explain(site.event(redeploy)).sentence
    site.report(redeploy.id, success(second), attempt=second.attempt)
    assert site.vm("db").host == second.targets["db"]


def test_a_host_that_fails_does_not_disturb_a_move_that_has_only_passed_by() -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_vm("db", "a")
    site.add_vm("www", "a")
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.tick()
    site.report(operation.id, Finished(done=("db",), failures={"www": "slow"}))
    site.wait(2 * SECOND)
    (again,) = site.tick()
    assert (again.vms, dict(again.targets), site.vm("db").host) == (("www",), {"www": "c"}, "b")
    site.schedule(Kind.HARDWARE_FAILURE, "b")
    assert site.operation(operation).claimed_by == "p"
    assert not is_nothing(site.report(operation.id, success(again), attempt=again.attempt))


def test_a_deletion_that_nobody_is_told_of_follows_its_vm() -> None:
    site = row()
    site.set_policy("group:web", auto_approve_redeploy=True)
    site.schedule(Kind.REDEPLOY, "web-0")
    deletion = site.schedule(Kind.DELETION, "web-0")
    restart = site.schedule(Kind.RESTART, "web-0")
    assert "this no longer names it" in site.explain(site.event(restart)).sentence
    site.run(MINUTE)
    assert site.operation(deletion).status is Status.COMPLETED
    assert site.operation(restart).status is Status.CANCELED
    assert "web-0" not in site.state.vms


def test_a_limit_counts_deletions_that_nobody_is_told_of() -> None:
    site = row()
    site.set_policy("group:web", max_user_operations=1)
    deletion = site.schedule(Kind.DELETION, "web-1")
    with pytest.raises(errors.ConflictError, match="allows 1 at a time") as conflict:
        site.schedule(Kind.RESTART, "web-0")
    assert conflict.value.facts["operations"] == [deletion.id]


def test_a_vm_that_has_left_its_scope_approves_nothing_there() -> None:
    site = row()
    event = site.event(site.schedule(Kind.RESTART, "web-1"))
    site.set_vm("web-0", group=None)
    for who in ("web-0", "gone"):
        with pytest.raises(errors.RefusedError, match="has just left"):
            site.approve("group:web", event.id, by=who)
    assert not site.state.events[event.id].approved


def test_an_operator_approves_once_and_nothing_that_was_cancelled() -> None:
    site = row()
    event = site.event(site.schedule(Kind.RESTART, "web-0")).id
    site.approve_as_operator(event)
    site.run(10 * SECOND)
    assert is_nothing(site.approve_as_operator(event))
    canceled = site.schedule(Kind.RESTART, "web-0")
    site.cancel(canceled.id)
    with pytest.raises(errors.ConflictError, match="is over: Canceled"):
        site.approve_as_operator(site.event(canceled).id)


def test_a_vm_that_the_driver_does_not_mention_has_failed() -> None:
    site = row()
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    (task,) = site.tick()
    site.report(operation.id, Finished(failures={}))
    assert site.operation(operation).failures == {"web-0": UNSAID}
    assert task.vms == ("web-0",)


def test_a_cordoned_host_is_not_cordoned_again() -> None:
    site = row()
    site.cordon("a")
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert [entry.action for entry in site.journal].count("host.cordoned") == 1


def test_ids_are_unique_whatever_their_case() -> None:
    site = row()
    site.add_vm("db", "a", vm_id="8a506c35-679a-4f78-9d76-c16dbe65ee6f")
    with pytest.raises(errors.ConflictError, match="belongs to db"):
        site.add_vm("www", "a", vm_id="8A506C35-679A-4F78-9D76-C16DBE65EE6F")


@pytest.mark.parametrize("same", ["10.0.0.4", "::ffff:10.0.0.4", "::ffff:a00:4"])
def test_an_address_is_known_however_it_is_written(same: str) -> None:
    site = row()
    assert site.add_vm("db", "a", addresses=(same,)).addresses == ("10.0.0.4",)


def test_who_would_wake() -> None:
    site = row(listening=Listening.AUTO)
    scope = site.scope("group:web")
    assert would_wake(scope, site.now, site.timing)
    site.hear("group:web")
    assert not would_wake(site.scope("group:web"), site.now, site.timing)
    site.set_policy("group:web", listening=Listening.NEVER)
    assert not would_wake(site.scope("group:web"), site.now, site.timing)


def test_a_change_notes_what_differs() -> None:
    site = row()
    vm = site.vm("web-0")
    site.set_vm("web-0", addresses=("10.0.0.4",), spot=vm.spot, host=vm.host)
    assert site.journal[-1].data == {"fields": ["addresses"]}
    assert site.vm("web-0") == replace(vm, addresses=("10.0.0.4",))


# A host whose own maintenance is announced, and whom no other host can take


def pair(hosts: str = "ab") -> Site:
    """`web-0` on a and `web-1` on b; of their group one may be down at a time."""
    site = Site()
    site.add_hosts(hosts)
    site.add_group("web", max_unavailable="1")
    site.add_vm("web-0", "a", group="web")
    site.add_vm("web-1", "b", group="web")
    return site


@pytest.mark.parametrize("kind", [Kind.HOST_UPDATE, Kind.HOST_REBOOT])
def test_announced_maintenance_makes_way_for_those_of_a_failed_host(kind: Kind) -> None:
    """It would wait for the failure to end, and the failure for it."""
    site = pair()
    maintenance = site.schedule(kind, "b")
    failed = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.run(5 * SECOND)
    assert site.operation(failed).status is Status.COMPLETED
    assert site.vm("web-0").host == "b"
    canceled = site.operation(maintenance)
    assert canceled.status is Status.CANCELED
    assert canceled.failures == {"web-1": f"host b has to take VMs of operation {failed.id}, which no other host can"}
    assert site.listed("group:web") == []


def test_announced_maintenance_makes_way_for_nothing_that_can_still_wait() -> None:
    site = pair()
    site.add_vm("db", "a")
    site.schedule(Kind.HOST_UPDATE, "b")
    with pytest.raises(errors.ConflictError, match="no host can take db"):
        site.schedule(Kind.REDEPLOY, "db")


def test_one_host_makes_way_for_all_who_fit_there() -> None:
    site = Site()
    site.add_hosts("abcd")
    for host in "abcd":
        site.add_vm(f"on-{host}", host)
    updates = [site.schedule(Kind.HOST_UPDATE, host) for host in "cd"]
    for host in "ab":
        site.cordon(host)
        site.schedule(Kind.HARDWARE_FAILURE, host)
    site.run(5 * SECOND)
    assert [site.vm(f"on-{host}").host for host in "ab"] == ["c", "c"]
    assert [site.operation(each).status for each in updates] == [Status.CANCELED, Status.SCHEDULED]


@pytest.mark.parametrize("why", ["started", "cordoned"])
def test_a_host_whose_maintenance_has_started_takes_nobody_and_neither_does_a_cordoned_one(why: str) -> None:
    site = pair()
    maintenance = site.schedule(Kind.HOST_UPDATE, "b")
    if why == "cordoned":
        site.cordon("b")
    else:
        site.approve_all(maintenance)
        (task,) = site.tick()
        site.report(task.operation, NotYet(again_at=site.now + MINUTE))
    failed = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.run(30 * SECOND)
    assert (site.operation(failed).targets, site.operation(maintenance).status.live) == ({}, True)
    site.cordon("b", False)
    site.run(5 * MINUTE)
    assert (site.operation(failed).status, site.vm("web-0").host) == (Status.COMPLETED, "b")


def test_nobody_is_moved_to_a_host_whose_maintenance_was_announced_in_the_same_look() -> None:
    site = Site()
    site.add_hosts("ab")
    site.add_vm("db", "a")
    site.add_vm("old", "b")
    site.set_policy("vm:old", windows=parse_all(["daily 22:00-23:00 UTC"]))
    maintenance = site.schedule(Kind.HOST_UPDATE, "b")
    migration = site.schedule(Kind.LIVE_MIGRATION, "a", notice=DAY)
    assert maintenance.due_at is not None
    site.now = maintenance.due_at
    site.approve_all(migration)
    site.tick()
    assert site.operation(maintenance).status is Status.SCHEDULED
    assert site.operation(migration).status is Status.SCHEDULED
    site.run(DAY)
    assert [site.operation(each).status for each in (maintenance, migration)] == [Status.COMPLETED, Status.COMPLETED]


def test_a_host_fails_while_some_of_its_vms_have_left() -> None:
    site = Site()
    site.add_hosts("ab")
    for name in ("db", "www"):
        site.add_vm(name, "a", policy=Policy())
    migration = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.tick()
    site.report(migration.id, Finished(done=("db",), failures={"www": "slow"}))
    failed = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.operation(migration).status is Status.FAILED
    assert failed.vms == ("www",)
