"""What a window puts off, on both databases: operators see it, guests are told when its opening is near."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.service.rig import OPERATOR, START, ManualClock, Rig, moment

from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.core.roles import EVERYTHING, access
from forenotice.service import housekeeping, maintenance, overview, queries
from forenotice.service.calls import Call

TOLD = datetime(2026, 1, 5, 21, 44, tzinfo=UTC)
TENANT = access("tenant", "web")


def windows(rig: Rig, *hours: str, key: str = "group:web") -> None:
    rig.set_policy(key, windows=list(hours))


def look_at(rig: Rig, moment: datetime) -> None:
    wait_until(rig, moment)
    rig.tick()


def wait_until(rig: Rig, moment: datetime) -> None:
    rig.clock.advance(seconds=(moment - rig.clock.now()).total_seconds())


def state(rig: Rig, operation: Any) -> Any:
    return rig.operation(operation)


@pytest.fixture
def night(rig: Rig) -> Rig:
    windows(rig, "daily 22:00-04:00 UTC")
    rig.published.incarnations.clear()
    return rig


def test_guests_see_it_when_the_opening_minus_its_notice_is_reached(night: Rig) -> None:
    (operation,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    assert (operation.status, operation.events) == ("Planned", [])
    assert (operation.announce_at, operation.not_before) == (moment("21:44:00"), moment("22:00:00"))
    explained = queries.explain_operation(night.service, operation.id)
    assert explained.sentence == (
        "It is planned; guests are told at 2026-01-05 21:44:00 UTC, because the window of web "
        "(daily 22:00-04:00 UTC) opens at 2026-01-05 22:00:00 UTC."
    )
    assert queries.operations(night.service, status="Planned").items == [state(night, operation)]
    look_at(night, TOLD - timedelta(seconds=1))
    assert night.published.incarnations == {}
    assert queries.events(night.service).items == []
    look_at(night, TOLD)
    assert {scope: len(seen) for scope, seen in night.published.incarnations.items()} == {
        "group:web": 1,
        "group:pool": 1,
        "vm:db": 1,
    }
    announced = state(night, operation)
    assert (announced.status, announced.announce_at, len(announced.events)) == ("Scheduled", None, 3)
    assert queries.explain_operation(night.service, operation.id).since == moment("21:44:00")
    assert {event.not_before for event in announced.events} == {moment("22:00:00")}
    assert night.actions(operation=operation.id, action="operation.") == ["operation.planned", "operation.scheduled"]
    night.approve_all(announced)
    night.tick()
    assert state(night, operation).status == "Scheduled"
    look_at(night, datetime(2026, 1, 5, 22, 0, tzinfo=UTC))
    assert state(night, operation).status == "Started"


def test_another_process_announces_what_one_that_died_had_planned(night: Rig) -> None:
    (operation,) = night.schedule(Kind.HOST_UPDATE, "host-b", notice=timedelta(hours=1))
    other = Rig(night.service.store, clock=ManualClock(TOLD - timedelta(minutes=46)))
    housekeeping.resume(other.service, alone=False)
    other.tick()
    assert state(other, operation).status == "Planned"
    look_at(other, TOLD - timedelta(minutes=45))
    assert state(other, operation).status == "Scheduled"
    look_at(night, TOLD - timedelta(minutes=45))
    assert len(state(night, operation).events) == 3


def test_a_window_that_is_changed_or_taken_away_is_heeded_at_once(night: Rig) -> None:
    (operation,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    windows(night, "daily 23:00-04:00 UTC")
    night.tick()
    assert state(night, operation).announce_at == moment("22:44:00")
    windows(night, key="vm:db")
    windows(night)
    night.tick()
    assert state(night, operation).status == "Scheduled"


def test_nobody_knows_when_while_windows_have_no_hours_in_common(night: Rig) -> None:
    (operation,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    windows(night, "daily 12:00-13:00 UTC", key="vm:db")
    night.tick()
    held = state(night, operation)
    assert (held.status, held.announce_at, held.not_before) == ("Planned", None, None)
    explained = queries.explain_operation(night.service, operation.id)
    assert (explained.until, explained.sentence) == (
        None,
        "The windows of db (daily 12:00-13:00 UTC) and web (daily 22:00-04:00 UTC) have no hours in common: "
        "change one of them.",
    )
    windows(night, "daily 23:00-00:00 UTC", key="vm:db")
    night.tick()
    again = state(night, operation)
    assert (again.announce_at, again.not_before) == (moment("22:44:00"), moment("23:00:00"))


def test_who_comes_before_is_told_and_who_leaves_is_not(night: Rig) -> None:
    (operation,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    night.add_vm("new", "host-b")
    night.set_vm("db", host="host-c")
    assert state(night, operation).vms == ["new", "pool_2", "pool_3", "web-1"]
    look_at(night, TOLD)
    assert {event.scope for event in state(night, operation).events} == {"group:web", "group:pool", "vm:new"}


def test_it_can_be_cancelled_and_is_by_a_failure(night: Rig) -> None:
    (update,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    with pytest.raises(errors.ConflictError, match="a host-update that is Planned already"):
        night.schedule(Kind.HOST_UPDATE, "host-b")
    night.cancel(update)
    (reboot,) = night.schedule(Kind.HOST_REBOOT, "host-b")
    night.schedule(Kind.HARDWARE_FAILURE, "host-b")
    assert [state(night, each).status for each in (update, reboot)] == ["Canceled", "Canceled"]
    assert set(night.published.incarnations) == {"group:web", "group:pool", "vm:db"}


def test_a_vm_on_the_way_there_is_waited_for(night: Rig) -> None:
    (update,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    for host in ("host-a", "host-c", "host-d"):
        night.set_host(host, cordoned=True)
    wait_until(night, TOLD - timedelta(seconds=1))
    (move,) = night.schedule(Kind.REDEPLOY, "batch")
    maintenance.approve(night.service, OPERATOR, move.events[0].id)
    night.tick()
    assert state(night, move).targets == {"batch": "host-b"}
    look_at(night, TOLD)
    assert queries.explain_operation(night.service, update.id).sentence == (
        f"It waits until operation {move.id} on its host has ended."
    )
    night.run(120, step=5)
    assert "batch" in state(night, update).vms
    assert (state(night, update).status, state(night, move).status) == ("Scheduled", "Completed")


def test_operators_see_it_beside_what_is_live_and_tenants_do_not(night: Rig) -> None:
    (operation,) = night.schedule(Kind.HOST_UPDATE, "host-b")
    (shown,) = overview.planned(night.service, EVERYTHING).items
    assert (shown.id, shown.why.until) == (operation.id, operation.not_before)
    assert overview.planned(night.service, EVERYTHING, host="host-a").items == []
    assert len(overview.planned(night.service, EVERYTHING, host="host-b").items) == 1
    assert overview.planned(night.service, TENANT).items == []
    with pytest.raises(errors.NotFoundError):
        queries.operation(night.service, operation.id, TENANT.scopes)
    tenant = Call(actor="tenant:web", access=TENANT)
    with pytest.raises(errors.NotFoundError):
        maintenance.cancel_operation(night.service, tenant, operation.id)
    assert night.clock.now() == START
