"""From a request over the approval to the end, as operators and guests see it, and what a window puts off."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.service.rig import OPERATOR, START, ManualClock, Rig, moment

from forenotice.core import errors
from forenotice.core.driver_calls import Finished, Outcome, Task
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind, Status
from forenotice.core.roles import EVERYTHING, access
from forenotice.service import housekeeping, maintenance, overview, queries
from forenotice.service.calls import Call
from forenotice.store.database import Store

pytestmark = pytest.mark.both_databases


def test_a_restart_is_told_approved_and_carried_out(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.RESTART, "web-0", reason="new kernel")
    (event,) = operation.events
    assert (event.type, event.source, event.status) == ("Reboot", "User", "Scheduled")
    assert timedelta(minutes=15) <= event.not_before - START <= timedelta(minutes=15, seconds=2)
    explained = rig.explain(event.id)
    assert "approval by web (web-0)" in explained.sentence
    assert explained.until == event.not_before

    assert rig.approve("web-1", "group:web", event.id.lower()) is None
    rig.tick()
    assert rig.published.latest["group:web"].events[0].status is Status.STARTED
    rig.run(20)
    assert rig.published.latest["group:web"].events == ()
    assert rig.published.incarnations["group:web"] == [2, 3, 4]
    assert rig.event(event.id).status == "Completed"
    assert rig.actions(event=event.id) == ["event.scheduled", "event.approved", "event.started", "event.completed"]


def test_a_host_update_waits_for_every_scope(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    by_scope = {event.scope: event.id for event in operation.events}
    assert set(by_scope) == {"group:web", "group:pool", "vm:db"}
    rig.approve("web-1", "group:web", by_scope["group:web"])
    rig.approve("db", "vm:db", by_scope["vm:db"])
    rig.tick()
    assert "pool (pool_2 and pool_3)" in rig.explain(by_scope["group:web"]).sentence
    rig.approve("pool_2", "group:pool", by_scope["group:pool"])
    rig.tick()
    assert {rig.event(event).status for event in by_scope.values()} == {"Started"}


def test_a_guest_approves_for_its_own_scope_and_until_some_time_after_the_end(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    event = operation.events[0].id
    refusal = rig.approve("db", "vm:db", event)
    unknown = rig.approve("db", "vm:db", "00000000-0000-4000-8000-000000000000")
    assert isinstance(refusal, errors.RefusedError)
    assert str(refusal) == str(unknown)
    assert rig.event(event).approved_at is None
    rig.approve("web-0", "group:web", event)
    rig.run(20)
    assert rig.approve("web-0", "group:web", event) is None
    rig.clock.advance(hours=2)
    assert rig.approve("web-0", "group:web", event) is not None


def test_a_failed_host_is_left_at_once(rig: Rig) -> None:
    (restart,) = rig.schedule(Kind.RESTART, "web-2")
    (failure,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-c")
    assert {event.status for event in failure.events} == {"Started"}
    assert rig.operation(restart).status == "Canceled"
    rig.run(40)
    assert {rig.vm(name).host for name in ("web-2", "pool_4")} == {"host-d"}
    host = queries.host(rig.service, "host-c")
    assert (host.cordoned, host.vms, host.used) == (True, 0, 0)


def test_a_failure_without_room_stays_started_until_there_is_some(rig: Rig) -> None:
    rig.set_host("host-d", cordoned=True)
    (failure,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    web = next(event.id for event in failure.events if event.scope == "group:web")
    rig.run(40)
    assert "no host can take pool_0, pool_1 and web-0" in rig.explain(web).sentence
    rig.set_host("host-d", cordoned=False)
    rig.run(40)
    assert rig.event(web).status == "Completed"
    assert rig.vm("web-0").host == "host-d"


def test_announced_maintenance_makes_way_for_those_of_a_failed_host(rig: Rig) -> None:
    rig.set_host("host-d", cordoned=True)
    updates = rig.schedule(Kind.HOST_UPDATE, "host-a", "host-b")
    rig.schedule(Kind.HARDWARE_FAILURE, "host-c")
    rig.run(40)
    assert rig.vm("batch").host == "host-a"
    assert [rig.operation(each).status for each in updates] == ["Canceled", "Scheduled"]


def test_a_deletion_removes_the_vm_and_its_document(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.DELETION, "db")
    assert operation.events == []
    rig.run(8)
    with pytest.raises(errors.NotFoundError):
        rig.vm("db")
    assert rig.published.by_key["vm:db"].document is None


def test_cancelling_one_event_cancels_the_operation(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.HOST_UPDATE, "host-a")
    canceled = maintenance.cancel_event(rig.service, OPERATOR, operation.events[0].id)
    assert {event.status for event in canceled.events} == {"Canceled"}
    with pytest.raises(errors.ConflictError, match="only what is Planned or Scheduled"):
        maintenance.cancel_operation(rig.service, OPERATOR, operation.id)
    with pytest.raises(errors.ConflictError, match="is over"):
        maintenance.approve(rig.service, OPERATOR, operation.events[0].id)


def test_nothing_of_a_batch_is_scheduled_when_one_is_refused(rig: Rig) -> None:
    with pytest.raises(errors.NotFoundError):
        rig.schedule(Kind.HOST_UPDATE, "host-a", "no-such-host")
    with pytest.raises(errors.RefusedError):
        rig.schedule(Kind.HOST_UPDATE, "host-a", "host-a")
    assert queries.operations(rig.service).items == []


class Failing:
    """Fails some VMs, always or until a given try."""

    def __init__(self, vm: str, until: int) -> None:
        self.vm, self.until = vm, until

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        failed = {self.vm: "out of order"} if self.vm in task.vms and task.attempt < self.until else {}
        return Finished(done=tuple(vm for vm in task.vms if vm not in failed), failures=failed)

    def stop(self) -> None: ...


def test_after_the_last_try_it_has_failed(store: Store) -> None:
    rig = Rig(store, driver=Failing("pool_0", until=99)).settle_demo()
    (operation,) = rig.schedule(Kind.HARDWARE_FAILURE, "host-a")
    rig.run(20)
    ended = rig.operation(operation)
    assert (ended.status, ended.failures) == ("Failed", {"pool_0": "out of order"})
    (entry,) = rig.entries(action="operation.failed")
    assert entry.data["results"] == {"pool_0": "out of order", "pool_1": "done", "web-0": "done"}
    assert rig.vm("pool_1").host == "host-d"
    assert rig.vm("pool_0").host == "host-a"


def test_a_first_poll_takes_back_what_silence_approved(rig: Rig) -> None:
    for key in ("vm:db", "group:web", "group:pool"):
        rig.set_policy(key, listening=Listening.AUTO)
    (operation,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    assert {event.approved_by for event in operation.events} == {"silence"}
    rig.guests.heard({"vm:db": rig.clock.now()})
    rig.tick()
    (event,) = (event for event in operation.events if event.scope == "vm:db")
    assert rig.event(event.id).status == "Scheduled"
    assert "approval by db" in rig.explain(event.id).sentence
    rig.approve("db", "vm:db", event.id)
    rig.tick()
    assert rig.event(event.id).status == "Started"


def test_a_first_poll_counts_also_for_a_vm_that_was_there_before(rig: Rig) -> None:
    rig.guests.heard({"vm:db": rig.clock.now()})
    rig.remove_vm("db")
    rig.add_vm("db", "host-b")
    (operation,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    (event,) = (event for event in operation.events if event.scope == "vm:db")
    assert event.implied
    rig.guests.heard({"vm:db": rig.clock.now()})
    assert rig.event(event.id).approved_at is None


def test_downtime_is_not_silence_of_guests(rig: Rig) -> None:
    """Neither while no process served, nor while the machine slept; and after that guests get time to poll."""
    rig.set_policy("vm:db", listening=Listening.AUTO)
    rig.guests.heard({"vm:db": rig.clock.now()})
    housekeeping.run(rig.service)
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    rig.clock.advance(hours=25)
    housekeeping.run(rig.service)
    assert rig.vm("db").listening
    rig.tick()
    assert rig.operation(operation).status == "Scheduled"
    rig.run(35)
    assert rig.operation(operation).status == "Started"
    rig.clock.advance(hours=30)
    again = Rig(rig.service.store, clock=rig.clock)
    housekeeping.resume(again.service, alone=True)
    assert again.vm("db").listening
    again.clock.advance(hours=24)
    assert not again.vm("db").listening


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
