"""Scopes that nobody speaks for, and what a first poll changes."""

from tests.service.rig import OPERATOR, Rig

from forenotice.core.fleet import Listening
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.service import fleet, queries, upkeep
from forenotice.store.database import Store
from forenotice.views.fleet import PolicyChange


def listen_by_polling(rig: Rig, key: str) -> None:
    fleet.set_policy(rig.service, OPERATOR, key, PolicyChange(listening=Listening.AUTO))


def test_a_first_poll_takes_back_what_silence_approved(rig: Rig) -> None:
    for key in ("vm:db", "group:web", "group:pool"):
        listen_by_polling(rig, key)
    (operation,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    assert {event["approved_by"] for event in operation["events"]} == {"silence"}
    rig.guests.heard({"vm:db": rig.clock.now()})
    rig.tick()
    (event,) = (event for event in operation["events"] if event["scope"] == "vm:db")
    assert rig.event(event["id"])["status"] == "Scheduled"
    assert "approval by db" in queries.explain_event(rig.service, event["id"])["sentence"]
    rig.approve("db", "vm:db", event["id"])
    rig.tick()
    assert rig.event(event["id"])["status"] == "Started"


def test_our_own_downtime_is_nobodys_silence(store: Store) -> None:
    rig = Rig(store).settle_demo()
    listen_by_polling(rig, "vm:db")
    rig.guests.heard({"vm:db": rig.clock.now()})
    upkeep.keep_up(rig.service)
    rig.clock.advance(hours=30)
    again = Rig(store, clock=rig.clock)
    upkeep.resume(again.service, alone=True)
    assert queries.vm(again.service, "db")["listening"]
    again.clock.advance(hours=24)
    assert not queries.vm(again.service, "db")["listening"]


def test_a_first_poll_counts_also_for_a_vm_that_was_there_before(rig: Rig) -> None:
    rig.guests.heard({"vm:db": rig.clock.now()})
    fleet.remove_vm(rig.service, OPERATOR, "db")
    fleet.add_vm(rig.service, OPERATOR, VmSpec(name="db", host="host-b"))
    (operation,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    (event,) = (event for event in operation["events"] if event["scope"] == "vm:db")
    assert event["implied"]
    rig.guests.heard({"vm:db": rig.clock.now()})
    assert rig.event(event["id"])["approved_at"] is None


def test_a_machine_that_slept_was_not_told_anything(rig: Rig) -> None:
    listen_by_polling(rig, "vm:db")
    upkeep.keep_up(rig.service)
    rig.guests.heard({"vm:db": rig.clock.now()})
    (operation,) = rig.schedule(Kind.RESTART, "web-0")
    rig.clock.advance(hours=25)
    upkeep.keep_up(rig.service)
    assert queries.vm(rig.service, "db")["listening"]
    rig.tick()
    assert queries.operation(rig.service, operation["id"])["status"] == "Scheduled"
    rig.run(35)
    assert queries.operation(rig.service, operation["id"])["status"] == "Started"
