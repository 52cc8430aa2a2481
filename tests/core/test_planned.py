"""Planned maintenance that a window puts off: operators see it at once, guests when its opening is near."""

from datetime import datetime

import pytest
from tests.core.builders import DAY, HOUR, MINUTE, NOW, SECOND, Site, row

from forenotice.core import errors, explanations, lifecycle, windows
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.windows import parse_all

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


def test_a_hardware_failure_cancels_it() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.operation(operation).status is Status.CANCELED
    assert site.operation(operation).failures == {"web-0": "host a has failed"}


def test_a_window_that_is_taken_away_lets_it_be_told_now() -> None:
    site = night()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.wait(HOUR)
    site.set_policy("group:web", windows=())
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED
    assert site.event(operation).not_before == NOW + HOUR + 15 * MINUTE


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


def test_a_slot_needs_windows_that_meet() -> None:
    draft = row().look()
    assert windows.slot(draft, [NIGHT, NOON], HOUR) is None
    slot = windows.slot(draft, [NIGHT], HOUR)
    assert slot is not None
    assert (slot.announce_at, slot.not_before) == (OPENS - HOUR - MINUTE, OPENS)
