"""From Started to the end: tasks, answers, retries, claims."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.builders import CLAIM, MINUTE, SECOND, Site, failure, is_nothing, row, success

from forenotice.core import driver_calls, membership
from forenotice.core.driver_calls import Finished, NotYet, Task
from forenotice.core.fleet import Policy
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import LONGEST_PAUSE, Retries, Timing


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
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    assert site.tick() == [
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


def test_an_answer_counts_once() -> None:
    site = alone()
    operation = site.schedule(Kind.REDEPLOY, "db")
    (task,) = site.tick()
    assert not is_nothing(site.succeed(task))
    assert is_nothing(site.succeed(task))
    assert site.actions(operation=operation.id).count("driver.finished") == 1


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


def test_a_vm_that_was_not_moved_stays() -> None:
    site = alone(hosts="ab")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.tick()
    site.report(operation.id, Finished(done=("db",), failures={"www": "no memory"}))
    assert (site.vm("db").host, site.vm("www").host) == ("b", "a")


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.HOST_UPDATE])
def test_what_does_not_move_stays(kind: Kind) -> None:
    site = alone()
    operation = moved(site, kind, "a" if kind.traits.of_host else "db")
    assert operation.status is Status.COMPLETED
    assert site.vm("db").host == "a"


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


def test_a_failure_moves_those_that_have_a_target_and_waits_for_the_others() -> None:
    site = row(hosts="abc")
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    (task,) = site.tick()
    assert (task.vms, dict(task.targets)) == (("db",), {"db": "b"})
    site.succeed(task)
    assert site.tick() == []
    assert site.operation(operation).held
    site.add_host("d")
    (task,) = site.tick()
    assert (task.vms, dict(task.targets)) == (("web-0",), {"web-0": "d"})
    assert not site.operation(operation).held
    site.succeed(task)
    site.run(3 * SECOND)
    assert site.operation(operation).status is Status.COMPLETED


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
