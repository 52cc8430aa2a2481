"""What guests behind an edge cause: only for VMs of that edge's host, and never in the future."""

from dataclasses import replace
from datetime import timedelta

from tests.service.rig import Rig

from forenotice.cluster.messages import Heard
from forenotice.core.fleet import Listening
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Kind


def approval(rig: Rig, vm: str) -> StartRequests:
    (made,) = rig.schedule(Kind.RESTART, vm)
    return StartRequests(vm=vm, scope=made.events[0].scope, event_ids=(made.events[0].id,))


def is_approved(rig: Rig, sent: StartRequests) -> bool:
    return rig.event(sent.event_ids[0]).approved_at is not None


def test_an_edge_approves_for_vms_of_its_own_host_only(rig: Rig) -> None:
    sent = approval(rig, "db")
    assert rig.guests.refusal("host-a", sent) is not None
    (refusal,) = rig.guests.approve_at_edges([("host-a", sent)])
    assert refusal is not None
    assert not is_approved(rig, sent)
    assert rig.guests.refusal("host-b", sent) is None
    assert not is_approved(rig, sent)
    assert rig.guests.approve_at_edges([("host-b", sent)]) == [None]
    assert is_approved(rig, sent)


def test_an_edge_cannot_find_out_which_vms_other_hosts_have(rig: Rig) -> None:
    sent = approval(rig, "db")
    refusals = [
        rig.guests.refusal("host-a", StartRequests(vm=vm, scope=sent.scope, event_ids=sent.event_ids))
        for vm in ("db", "web-1", "nobody")
    ]
    assert len({refusal and refusal.message for refusal in refusals}) == 1


def test_each_approval_of_a_batch_stands_for_itself_and_twice_is_once(rig: Rig) -> None:
    first, second = approval(rig, "db"), approval(rig, "batch")
    outcomes = rig.guests.approve_at_edges([("host-b", first), ("host-b", second), ("host-b", first)])
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert rig.actions(event=first.event_ids[0]).count("event.approved") == 1


def test_a_vm_that_has_just_moved_approved_where_it_was(rig: Rig) -> None:
    """The edge has answered 200 before the VM left."""
    rig.set_vm("web-0", host="host-d")
    sent = approval(rig, "web-0")
    assert rig.guests.refusal("host-a", sent) is None
    assert rig.guests.refusal("host-b", sent) is not None
    rig.clock.advance(hours=2)
    assert rig.guests.refusal("host-a", sent) is not None


def test_a_vm_that_has_moved_since_its_edge_took_an_approval_has_approved(rig: Rig) -> None:
    """The edge has answered 200; NATS kept the approval while this service could not reach it."""
    sent = replace(approval(rig, "web-1"), vm="web-0", at=rig.clock.now())
    rig.set_vm("web-0", host="host-d")
    rig.clock.advance(hours=2)
    assert rig.guests.approve_at_edges([("host-a", sent)]) == [None]
    assert is_approved(rig, sent)


def test_an_edge_is_heard_for_scopes_on_its_host_and_not_ahead_of_time(rig: Rig) -> None:
    for key in ("group:web", "group:pool"):
        rig.set_policy(key, listening=Listening.AUTO)
    now = rig.clock.now()
    rig.guests.heard_at_edges(
        [
            ("host-d", Heard(scopes={"group:web": now})),
            ("host-a", Heard(scopes={"group:pool": now + timedelta(days=1), "nowhere": now})),
            ("host-b", Heard(scopes={"group:pool": now - timedelta(hours=1)})),
        ]
    )
    with rig.service.store.read() as reader:
        heard = {key: scope.last_heard for key, scope in reader.scopes.named(["group:web", "group:pool"]).items()}
    assert heard == {"group:web": None, "group:pool": now}


def test_what_had_just_ended_when_an_edge_took_it_is_no_reason_to_refuse_the_rest_later(rig: Rig) -> None:
    """The edge has answered 200, and the service was away meanwhile."""
    ended = approval(rig, "db")
    rig.cancel(rig.schedule(Kind.REDEPLOY, "db")[0])
    (over,) = [entry.event for entry in rig.entries(action="event.canceled")]
    rig.clock.advance(minutes=5)
    live = ended.event_ids[0]
    taken = StartRequests(vm="db", scope=ended.scope, event_ids=(over, live), at=rig.clock.now())
    rig.clock.advance(hours=2)
    rig.set_host("host-b", cordoned=False)
    assert rig.guests.approve_at_edges([("host-b", taken)]) == [None]
    later = StartRequests(vm="db", scope=ended.scope, event_ids=(over,))
    assert rig.guests.refusal("host-b", later) is not None
