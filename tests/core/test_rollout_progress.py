"""A rollout under way: waves, batches, pauses, gates, failures, and what stands in its way."""

from dataclasses import replace
from typing import Any

import pytest
from tests.core.builders import DAY, HOUR, MINUTE, NOTICE, NOW, SECOND, UPDATE, Site, row

from forenotice.core import errors, rollout_progress
from forenotice.core.driver_calls import Finished, NotYet
from forenotice.core.operations import Kind, Status
from forenotice.core.rollout_progress import GATE_AGAIN, GATE_LEASE, GateCheck
from forenotice.core.rollouts import (
    BEFORE_THE_FIRST,
    Options,
    Rollout,
    RolloutHost,
    RolloutHostStatus,
    RolloutStatus,
)
from forenotice.core.windows import parse_all


def statuses(site: Site, rollout: Rollout) -> dict[str, str]:
    return {host.host: host.status.value for host in site.hosts_of(rollout)}


def under_way(site: Site, rollout: Rollout) -> str:
    return "".join(host for host, status in statuses(site, rollout).items() if status == "Under way")


def approve(site: Site) -> None:
    for event in [event for event in site.state.events.values() if event.status.live]:
        site.approve_as_operator(event.id)


def fail_all(site: Site, why: str = "no power") -> None:
    """Every try of what is under way fails."""
    for _ in range(site.timing.retries.tries):
        for task in site.tick():
            site.fail(task, why)
        site.wait(5 * SECOND)
    site.tick()


def pair(*, batch: int = 1, **options: Any) -> tuple[Site, Rollout]:
    """Two hosts that share nobody."""
    site = Site()
    site.add_hosts("ab")
    site.add_vm("one", "a")
    site.add_vm("two", "b")
    return site, site.begin(options=Options(batch=batch, **options))


# Waves


def test_events_are_made_only_when_their_wave_has_come() -> None:
    site = row()
    rollout = site.begin()
    assert (rollout.wave, rollout.by, rollout.due_at) == (BEFORE_THE_FIRST, "op", NOW)
    assert not site.live()
    site.roll()
    assert statuses(site, rollout) == {"a": "Under way", "d": "Skipped"} | dict.fromkeys("bc", "Waiting")
    assert [event.resources for event in site.listed("group:web")] == [("web-0",)]
    operation = site.on("a")
    assert (operation.rollout, operation.not_before) == (rollout.id, NOW + NOTICE)
    site.carry_on(takes=UPDATE)
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED
    assert statuses(site, rollout) == {"a": "Done", "b": "Done", "c": "Done", "d": "Skipped"}
    assert site.rollout_host(rollout, "d").why == "it has no VMs, so no guest has to be told"
    carried_out = ["operation.scheduled", "operation.started", "driver.finished", "operation.completed"]
    assert site.actions(rollout=rollout.id) == [
        *["rollout.started", "rollout.host_skipped"],
        *["rollout.wave_began", *carried_out],
        *["rollout.wave_began", *carried_out],
        *["rollout.wave_began", *carried_out],
        "rollout.completed",
    ]


def test_hosts_that_share_nobody_go_together_as_the_batch_allows() -> None:
    for batch, together in ((1, "a"), (2, "ab"), (3, "ab")):
        site, rollout = pair(batch=batch)
        site.roll()
        assert under_way(site, rollout) == together


def test_degraded_hardware_is_waited_for_only_while_it_is_out() -> None:
    site = row()
    degraded = site.schedule(Kind.DEGRADED_HARDWARE, "b")
    rollout = site.begin(hosts="a,c")
    site.roll()
    assert under_way(site, rollout) == "a"
    approve(site)
    site.tick()
    assert {site.operation(degraded).status, site.on("a").status} == {Status.STARTED, Status.SCHEDULED}
    site.carry_on(takes=UPDATE)
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED


def test_a_hardware_failure_is_waited_for() -> None:
    site = row(hosts="abc")
    site.schedule(Kind.HARDWARE_FAILURE, "b")
    rollout = site.begin(hosts="a,b")
    site.settle_now()
    assert under_way(site, rollout) == ""
    site.add_host("d")
    site.wait(2 * SECOND)
    site.settle_now()
    assert under_way(site, rollout) == "a"


def test_hosts_are_taken_as_they_are_when_their_wave_comes() -> None:
    site = row(hosts="abcde")
    site.add_vm("db", "d")
    site.add_vm("queue", "e")
    rollout = site.begin()
    site.roll()
    assert under_way(site, rollout) == "a"
    site.remove_vm("db")
    site.remove_host("d")
    site.add_vm("web-4", "e", group="web", update_domain=0)
    site.carry_on(takes=UPDATE)
    assert site.rollout_host(rollout, "d").why == "it is no longer in the fleet"
    assert statuses(site, rollout) == dict.fromkeys("abce", "Done") | {"d": "Skipped"}


def test_nobody_is_moved_to_a_host_in_maintenance_and_that_is_not_begun_while_somebody_arrives() -> None:
    site = row(hosts="abc")
    site.add_vm("db", "a")
    site.add_vm("queue", "c")
    site.remove_vm("web-2")
    site.schedule(Kind.HOST_REBOOT, "c")
    moving = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.approve_all(moving)
    site.tick()
    assert site.operation(moving).status is Status.SCHEDULED
    assert "No host can take web-0" in site.explain_operation(moving).sentence
    site.cancel(site.on("c").id)
    site.tick()
    assert site.operation(moving).targets["web-0"] == "c"
    with pytest.raises(errors.ConflictError, match=r"is moving .* to host c: let it end first"):
        site.schedule(Kind.HOST_REBOOT, "c")
    rollout = site.begin(hosts="c")
    site.roll()
    assert under_way(site, rollout) == ""
    site.carry_on(takes=UPDATE)
    assert site.rollout_host(rollout, "c").status is RolloutHostStatus.DONE


def test_a_host_that_fails_before_its_maintenance_has_failed() -> None:
    site = row()
    rollout = site.begin()
    site.roll()
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.settle_now()
    assert site.rollout_host(rollout, "a").status is RolloutHostStatus.FAILED
    assert site.rollout(rollout).why == "1 of its hosts failed, the last one a: web-0: host a has failed"


def test_what_failed_is_not_passed_over_at_the_end() -> None:
    site = row(hosts="abcde")
    site.add_vm("db", "d")
    rollout = site.begin(hosts="d", options=Options(max_failures=2))
    site.roll()
    site.schedule(Kind.HARDWARE_FAILURE, "d")
    site.settle_now()
    assert site.rollout(rollout).status is RolloutStatus.PAUSED
    assert site.rollout(rollout).why == "all hosts are done except 1 that failed: resume it, with or without those"
    site.resume(rollout)
    site.settle_now()
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED


def test_an_update_domain_that_has_come_to_a_host_is_kept_apart() -> None:
    site = row()
    site.add_vm("db", "d")
    rollout = site.begin(options=Options(batch=4))
    site.add_vm("web-3", "d", group="web", update_domain=3)
    site.roll()
    assert under_way(site, rollout) == "a"
    site.carry_on(takes=UPDATE)
    assert statuses(site, rollout) == dict.fromkeys("abcd", "Done")


# Pauses and gates


def test_a_gate_is_asked_until_it_is_green() -> None:
    site, rollout = pair(gate="probe")
    (ask,) = site.roll()
    assert ask == GateCheck(rollout=rollout.id, wave=0, gate="probe")
    assert site.rollout(rollout).due_at == NOW + GATE_LEASE
    assert not site.roll()
    site.wait(GATE_LEASE)
    assert site.roll() == [ask]
    for _ in range(2):
        site.hear_gate(ask, green=False, said="2 alarms")
    assert site.rollout(rollout).due_at == site.now + GATE_AGAIN
    site.wait(GATE_AGAIN)
    assert site.roll() == [ask]
    site.hear_gate(ask, green=True)
    assert not site.roll()
    assert under_way(site, rollout) == "a"
    assert site.actions(rollout=rollout.id)[:4] == [
        "rollout.started",
        "rollout.gate_red",
        "rollout.gate_green",
        "rollout.wave_began",
    ]


def test_what_a_gate_says_too_late_says_nothing() -> None:
    site, rollout = pair(gate="probe")
    (ask,) = site.roll()
    site.hear_gate(GateCheck(rollout=rollout.id, wave=1, gate="probe"))
    assert site.rollout(rollout).gate_result is None
    site.hear_gate(ask)
    site.roll()
    opened = site.rollout(rollout)
    site.hear_gate(ask, green=False)
    assert site.rollout(rollout) == opened
    site.hear_gate(GateCheck(rollout="pruned", wave=0, gate="probe"))


def test_a_gate_heard_during_a_pause_is_asked_again_after_it() -> None:
    site, rollout = pair(gate="probe")
    (ask,) = site.roll()
    site.pause(rollout)
    site.hear_gate(ask)
    assert (site.rollout(rollout).gate_result is None, site.rollout(rollout).due_at) == (False, None)
    site.resume(rollout)
    assert site.roll() == [ask]


# Failures, pause, resume, cancel


def test_it_pauses_after_so_many_failures() -> None:
    site, rollout = pair(batch=2)
    site.roll()
    approve(site)
    fail_all(site)
    site.roll()
    known = site.rollout(rollout)
    assert (known.status, known.failures) == (RolloutStatus.PAUSED, 2)
    assert known.why == "1 of its hosts failed, the last one a: one: no power"
    assert site.rollout_host(rollout, "b") == RolloutHost(
        rollout=rollout.id,
        host="b",
        wave=0,
        status=RolloutHostStatus.FAILED,
        operation=site.rollout_host(rollout, "b").operation,
        why="two: no power",
        update_domains=(0,),
    )
    assert site.roll() == []
    site.resume(rollout, retry=True)
    assert site.rollout(rollout).failures == 0
    site.carry_on(takes=UPDATE)
    assert statuses(site, rollout) == {"a": "Done", "b": "Done"}


def test_what_the_driver_waits_for_holds_its_rollout_and_a_failure_pauses_it() -> None:
    """As a driver of real machines has it: a host that must be fenced, then two domains for one VM."""
    site, rollout = pair()
    site.add_vm("other", "a")
    site.roll()
    approve(site)
    (task,) = site.tick()
    site.report(task.operation, NotYet(again_at=site.now + HOUR, waiting={"one": "host a does not answer"}))
    site.roll()
    assert site.rollout(rollout).status is RolloutStatus.RUNNING
    assert "the driver waits: host a does not answer (one)" in site.explain_rollout(rollout).sentence.lower()
    site.wait(HOUR)
    for attempt in range(site.timing.retries.tries):
        done = ("other",) if attempt == 0 else ()
        for task in site.tick():
            site.report(task.operation, Finished(done=done, failures={"one": "host a has two domains for it"}))
        site.wait(5 * SECOND)
    site.tick()
    site.roll()
    known = site.rollout(rollout)
    assert (known.status, statuses(site, rollout)) == (RolloutStatus.PAUSED, {"a": "Failed", "b": "Waiting"})
    assert known.why == "1 of its hosts failed, the last one a: one: host a has two domains for it"


POWER = "no power in the rack " * 14


@pytest.mark.parametrize(
    ("vms", "reason", "told"),
    [
        (12, POWER, f"vm-0, vm-1, vm-2, vm-3, vm-4, vm-5 and 6 more: {POWER}"),
        (6, "no {}", "vm-0: no vm-0; vm-1: no vm-1; vm-2: no vm-2; and 3 more reasons"),
    ],
)
def test_a_reason_of_failures_is_told_once_and_of_many_the_first(vms: int, reason: str, told: str) -> None:
    site = Site()
    site.add_hosts("a")
    for number in range(vms):
        site.add_vm(f"vm-{number}", "a")
    rollout = site.begin(hosts="a")
    site.roll()
    approve(site)
    for _ in range(site.timing.retries.tries):
        for task in site.tick():
            site.report(task.operation, Finished(failures={vm: reason.format(vm) for vm in task.vms}))
        site.wait(5 * SECOND)
    site.tick()
    site.roll()
    assert site.rollout_host(rollout, "a").why == told
    assert site.rollout(rollout).why == f"1 of its hosts failed, the last one a: {told}"


def test_it_goes_on_while_few_fail() -> None:
    site, rollout = pair(max_failures=2)
    site.roll()
    approve(site)
    fail_all(site)
    site.roll()
    assert (site.rollout(rollout).status, site.rollout(rollout).failures) == (RolloutStatus.RUNNING, 1)
    assert statuses(site, rollout) == {"a": "Failed", "b": "Under way"}


def test_what_fails_under_a_pause_or_with_the_hardware_is_written_down() -> None:
    site, rollout = pair(batch=2)
    site.add_host("c")
    site.roll()
    approve(site)
    site.tick()
    site.pause(rollout)
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.roll()
    assert site.rollout_host(rollout, "a").why == "its operation failed"
    assert site.rollout(rollout).why == "paused by op"


def test_a_paused_rollout_starts_nothing_and_what_has_started_ends() -> None:
    site, rollout = pair(batch=2)
    site.roll()
    site.approve_all(site.on("a"))
    site.tick()
    site.pause(rollout, "paused by op: alarms")
    site.approve_all(site.on("b"))
    site.carry_on(until=NOW + HOUR, takes=UPDATE)
    assert statuses(site, rollout) == {"a": "Done", "b": "Under way"}
    assert (site.on("b").status, site.on("b").held) == (Status.SCHEDULED, True)
    site.resume(rollout)
    assert site.on("b").due_at == site.now
    site.tick()
    assert site.on("b").status is Status.STARTED
    site.carry_on(takes=UPDATE)
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED


def test_resuming_leaves_alone_what_waits_for_approval() -> None:
    site, rollout = pair()
    site.roll()
    site.pause(rollout)
    site.resume(rollout)
    assert site.on("a").due_at == NOW + NOTICE


def test_cancelling_cancels_what_is_only_scheduled() -> None:
    site, rollout = pair(batch=2)
    site.roll()
    site.approve_all(site.on("a"))
    site.tick()
    site.cancel_rollout(rollout)
    assert site.rollout(rollout).status is RolloutStatus.CANCELING
    assert [operation.host for operation in site.live()] == ["a"]
    site.roll()
    assert site.rollout(rollout).status is RolloutStatus.CANCELING
    site.carry_on(takes=UPDATE)
    assert (site.rollout(rollout).status, site.rollout(rollout).due_at) == (RolloutStatus.CANCELED, None)
    assert statuses(site, rollout) == {"a": "Done", "b": "Skipped"}


def test_a_gate_that_answers_a_cancelled_rollout() -> None:
    site, rollout = pair(gate="probe")
    (ask,) = site.roll()
    site.cancel_rollout(rollout)
    due = site.rollout(rollout).due_at
    site.hear_gate(ask, green=False)
    assert site.rollout(rollout).due_at == due
    site.roll()
    assert site.rollout(rollout).status is RolloutStatus.CANCELED


@pytest.mark.parametrize(
    ("status", "pause", "resume", "cancel"),
    [
        (RolloutStatus.RUNNING, True, False, True),
        (RolloutStatus.PAUSED, False, True, True),
        (RolloutStatus.CANCELING, False, False, False),
        (RolloutStatus.CANCELED, False, False, False),
        (RolloutStatus.COMPLETED, False, False, False),
    ],
)
def test_commands_fit_the_status(status: RolloutStatus, pause: bool, resume: bool, cancel: bool) -> None:
    for command, allowed, said in (
        (
            lambda draft, known: rollout_progress.pause(draft, known, "why"),
            pause,
            "only a running rollout can be paused",
        ),
        (rollout_progress.resume, resume, "only a paused rollout can be resumed"),
        (rollout_progress.cancel, cancel, "only one that is running or paused can be cancelled"),
    ):
        site, rollout = pair()
        draft = site.look(rollouts=[rollout.id])
        known = Rollout(**{name: getattr(rollout, name) for name in Rollout.__slots__} | {"status": status})
        draft.put_rollout(known)
        if allowed:
            command(draft, known)
        else:
            with pytest.raises(errors.ConflictError) as refused:
                command(draft, known)
            assert refused.value.message == f"rollout {rollout.id} is {status}: {said}"
            assert refused.value.facts == {"rollout": rollout.id, "status": status}


# Budgets and windows


def budgeted(**policy: Any) -> Site:
    """Four VMs of one update domain, on a host each."""
    site = Site()
    site.add_hosts("abcd")
    site.add_group("web", **policy)
    for host in "abcd":
        site.add_vm(f"web-{host}", host, group="web")
    return site


def test_a_budget_holds_back_what_a_batch_would_take() -> None:
    site = budgeted(max_unavailable="50%")
    rollout = site.begin(options=Options(batch=4))
    site.roll()
    assert under_way(site, rollout) == "ab"
    site.carry_on(takes=UPDATE)
    assert statuses(site, rollout) == dict.fromkeys("abcd", "Done")


def test_users_own_actions_count_while_they_are_out() -> None:
    site = budgeted(min_available=2)
    site.start(Kind.RESTART, "web-d")
    rollout = site.begin(options=Options(batch=4))
    site.roll()
    assert under_way(site, rollout) == "a"


def test_a_budget_that_has_become_impossible_pauses_the_rollout() -> None:
    site = budgeted(max_unavailable="2")
    site.add_vm("web-e", "b", group="web")
    rollout = site.begin()
    site.roll()
    site.set_policy("group:web", max_unavailable="1")
    site.carry_on(until=NOW + HOUR, takes=UPDATE)
    assert statuses(site, rollout) == {"a": "Done", "b": "Waiting", "c": "Waiting", "d": "Waiting"}
    assert site.rollout(rollout).status is RolloutStatus.PAUSED
    assert site.rollout(rollout).why == (
        "the budget of group web can never be met: 2 of its 5 VMs are on host b and go together, "
        "but max_unavailable 1 allows 1 down at once: change it, or spread the group"
    )
    site.set_policy("group:web", max_unavailable="50%")
    site.resume(rollout)
    site.carry_on(takes=UPDATE)
    assert statuses(site, rollout) == dict.fromkeys("abcd", "Done")


def test_a_budget_lowered_under_an_announced_operation_holds_it_until_it_is_changed() -> None:
    site = budgeted(max_unavailable="2")
    site.add_vm("web-e", "a", group="web")
    rollout = site.begin()
    site.roll()
    site.set_policy("group:web", max_unavailable="1")
    site.wait(NOTICE)
    site.settle_now()
    assert (site.on("a").status, site.on("a").held) == (Status.SCHEDULED, True)
    site.set_policy("group:web", max_unavailable=None)
    assert site.on("a").due_at == site.now
    site.carry_on(takes=UPDATE)
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED


NIGHT = parse_all(["daily 22:00-04:00 UTC"])


def test_a_host_is_taken_when_the_opening_minus_the_notice_is_reached() -> None:
    site = row()
    rollout = site.begin(options=Options(windows=NIGHT))
    site.roll()
    assert site.rollout(rollout).due_at == NOW.replace(hour=21, minute=44)
    site.carry_on(until=NOW.replace(hour=21, minute=43))
    assert (site.live(), site.listed("group:web")) == ([], [])
    assert site.rollout(rollout).opened_at is None
    site.carry_on(until=NOW.replace(hour=21, minute=44))
    assert [event.created_at for event in site.listed("group:web")] == [NOW.replace(hour=21, minute=44)]
    site.carry_on()
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED
    assert all(o.started_at and o.started_at - o.created_at <= 16 * MINUTE for o in site.state.operations.values())


def late_and_soon() -> Site:
    """A VM with a window on a, one without on b."""
    site = Site()
    site.add_hosts("ab")
    site.add_vm("late", "a")
    site.add_vm("soon", "b")
    site.set_policy("vm:late", windows=NIGHT)
    return site


def test_a_host_that_its_window_puts_off_lets_others_go_first() -> None:
    site = late_and_soon()
    rollout = site.begin()
    site.carry_on(until=NOW + HOUR)
    assert [(o.host, o.status) for o in site.state.operations.values()] == [("b", Status.COMPLETED)]
    site.carry_on(until=NOW.replace(hour=21, minute=43))
    site.now = NOW.replace(hour=21, minute=43, second=30)
    site.step_of(rollout.id)
    assert site.rollout(rollout).due_at == NOW.replace(hour=21, minute=44)
    site.carry_on()
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED


def test_a_gate_is_asked_when_the_window_of_the_first_host_is_near() -> None:
    site = row()
    site.set_policy("group:web", windows=NIGHT)
    rollout = site.begin(hosts="a", options=Options(gate="shop"))
    assert site.roll() == []
    assert site.rollout(rollout).opened_at is None
    assert site.explain_rollout(rollout).sentence == (
        "a waits: it is planned; guests are told at 2026-03-01 21:44:00 UTC, because the window of web "
        "(daily 22:00-04:00 UTC) opens at 2026-03-01 22:00:00 UTC."
    )
    site.now = NOW.replace(hour=21, minute=44)
    (ask,) = site.roll()
    assert site.explain_rollout(rollout).sentence == "Wave 1 waits for its gate shop: it is being asked."
    site.now = NOW.replace(hour=3, minute=50) + DAY
    site.hear_gate(ask)
    assert (site.roll(), site.live()) == ([], [])
    site.now = NOW.replace(hour=21, minute=44) + DAY
    # What it said in another night says nothing.
    assert site.roll() == [ask]
    assert site.rollout(rollout).gate_result is None
    site.hear_gate(ask)
    site.roll()
    assert under_way(site, rollout) == "a"


def test_a_host_without_a_window_opens_the_wave_of_others_that_have_one() -> None:
    site = late_and_soon()
    rollout = site.begin(options=Options(gate="shop"))
    (ask,) = site.roll()
    site.hear_gate(ask)
    site.roll()
    assert under_way(site, rollout) == "b"


def test_a_rollout_waits_for_the_same_that_is_planned_for_its_host() -> None:
    site = row()
    site.set_policy("group:web", windows=NIGHT)
    planned = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", windows=())
    with site.transaction(operations=[planned.id]) as draft:
        draft.put_operation(replace(planned, due_at=NOW + HOUR))
    plan = site.plan(hosts="a")
    assert [host.announced_at for host in plan.planned_hosts] == [planned.not_before + UPDATE]
    rollout = site.begin(hosts="a")
    site.roll()
    assert site.explain_rollout(rollout).sentence == (
        f"a waits: it waits until operation {planned.id} on its host has ended."
    )
    other = site.begin(Kind.HOST_REBOOT, hosts="a")
    site.roll()
    assert site.rollout_host(other, "a").status is RolloutHostStatus.UNDER_WAY
