"""The states of hosts: all that their guests may be told and nothing else, and none is forgotten when it changes."""

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import asdict, replace
from tests.service.rig import Rig

from forenotice.centre import host_states
from forenotice.cluster.messages import Fence, HostState
from forenotice.core import errors
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.service import housekeeping, tick
from forenotice.views.fleet import FactsChange

HOSTS = ("host-a", "host-b", "host-c", "host-d")


def states(rig: Rig) -> dict[str, HostState]:
    with rig.service.store.read() as reader:
        return {state.host: state for state in host_states.read(reader, HOSTS, rig.clock.now(), 1.0)}


def content(state: HostState) -> dict[str, object]:
    """What edges tell guests, and whom they recognise. When a scope was last heard they need not know to the second.

    A VM that is still arriving is told to come again, whatever else is known of it and its scope.
    """
    scopes: list[object] = []
    for scope in state.scopes:
        here = tuple(member for member in scope.members if not member.arriving)
        scopes.append([member.name for member in scope.members if member.arriving])
        scopes += [replace(scope, last_heard=None, members=here)] if here else []
    kept = {name: value for name, value in asdict(state).items() if name not in ("epoch", "position", "at")}
    return kept | {"scopes": scopes}


def test_a_host_gets_its_own_vms_with_the_documents_of_their_scopes(rig: Rig) -> None:
    (made,) = rig.schedule(Kind.HOST_UPDATE, "host-b")
    found = states(rig)["host-b"]
    assert {member.name for scope in found.scopes for member in scope.members} == {"web-1", "pool_2", "pool_3", "db"}
    assert {event.id for scope in found.scopes if scope.document for event in scope.document.events} == {
        event.id for event in made.events
    }
    told = {scope.key: scope.document for scope in states(rig)["host-a"].scopes}
    assert {event.operation for document in told.values() if document for event in document.events} == {made.id}
    assert states(rig)["host-d"].scopes == ()


def test_a_state_tells_where_the_journal_is(rig: Rig) -> None:
    rig.schedule(Kind.RESTART, "db")
    found = states(rig)["host-b"]
    with rig.service.store.read() as reader:
        assert (found.fence.position, found.at) == reader.journal.last()
    epoch = housekeeping.begin_epoch(rig.service)
    assert states(rig)["host-b"].fence > Fence(0, found.position + 1000)
    assert states(rig)["host-b"].epoch == epoch


def test_who_approved_is_not_told(rig: Rig) -> None:
    made = rig.schedule(Kind.HOST_UPDATE, "host-b")
    rig.approve_all(*made)
    events = [event for scope in states(rig)["host-b"].scopes if scope.document for event in scope.document.events]
    assert events
    assert {(event.approved, event.approved_by) for event in events} == {(True, None)}


def test_what_has_just_ended_can_be_approved_for_an_hour(rig: Rig) -> None:
    (made,) = rig.schedule(Kind.RESTART, "db")
    rig.cancel(made)
    (ended,) = states(rig)["host-b"].ended
    assert (ended.id, ended.scope) == (made.events[0].id, made.events[0].scope)
    assert states(rig)["host-a"].ended == ()
    rig.clock.advance(minutes=61)
    assert states(rig)["host-b"].ended == ()


@pytest.mark.parametrize("seed", range(6))
def test_a_host_whose_state_has_changed_is_concerned(rig: Rig, seed: int) -> None:
    """The journal is the outbox: whatever happens, its entries name every host whose guests see something else."""
    rig.add_host("host-e")
    chance = random.Random(seed)
    vms = ["web-0", "web-1", "web-2", "pool_0", "pool_2", "pool_4", "db", "batch"]

    def anything() -> Callable[[], object]:
        vm, host = chance.choice(vms), chance.choice(HOSTS)
        live = rig.live_events()
        event = chance.choice(live) if live else None
        choices: list[Callable[[], object]] = [
            lambda: rig.schedule(Kind.HOST_UPDATE, host),
            lambda: rig.schedule(Kind.HARDWARE_FAILURE, host),
            lambda: rig.schedule(Kind.LIVE_MIGRATION, host),
            lambda: rig.schedule(Kind.RESTART, vm),
            lambda: rig.schedule(Kind.REDEPLOY, vm),
            lambda: rig.schedule(Kind.EVICTION, "batch"),
            lambda: rig.schedule(Kind.DELETION, "pool_4"),
            lambda: rig.set_vm(vm, host=chance.choice([*HOSTS, "host-e"])),
            lambda: rig.set_vm(vm, size=2.0),
            lambda: rig.set_vm(vm, facts=FactsChange(zone=str(chance.randint(1, 9)))),
            lambda: rig.set_vm("db", group=chance.choice(["web", None])),
            lambda: rig.set_policy("group:web", listening=chance.choice(list(Listening))),
            lambda: rig.set_host(host, cordoned=chance.choice([True, False])),
            lambda: rig.remove_vm(vm),
            lambda: rig.add_vm("extra", host, addresses=["127.1.0.99"]),
            lambda: rig.guests.heard({f"vm:{vm}": rig.clock.now(), "group:web": rig.clock.now()}),
            lambda: rig.clock.advance(minutes=chance.choice([1, 20, 2000])),
            lambda: housekeeping.begin_epoch(rig.service),
            rig.tick,
            rig.tick,
        ]
        if event is not None:
            choices += [
                lambda: rig.approve(event.resources[0], event.scope, event.id),
                lambda: rig.cancel(rig.operation(type("Known", (), {"id": event.operation}))),
            ]
        return chance.choice(choices)

    changes = 0
    for _ in range(80):
        before = states(rig)
        act = anything()
        try:
            act()
        except errors.ForenoticeError:
            continue
        after = states(rig)
        with rig.service.store.read() as reader:
            page = reader.journal.page(after=before["host-a"].position, limit=10_000)
            concerned = host_states.concerned(reader, [entry for _, entry in page])
        for host in HOSTS:
            # An event that ended an hour ago disappears without an entry; edges know its time themselves.
            same_moment = [e for e in before[host].ended if rig.clock.now() - e.ended_at <= timedelta(hours=1)]
            if content(after[host]) != content(before[host]) | {"ended": tuple(same_moment)}:
                changes += 1
                assert concerned is None or host in concerned, [entry.action for _, entry in page]
    assert changes > 15


def test_what_was_published_and_is_not_there_was_lost(rig: Rig) -> None:
    rig.schedule(Kind.RESTART, "db")
    with rig.service.store.read() as reader:
        fence, at = host_states.head(reader)
        assert not host_states.has_lost(reader, fence, at)
        assert not host_states.has_lost(reader, Fence(fence.epoch, fence.position - 1), reader.journal.page()[-2][1].at)
        assert host_states.has_lost(reader, Fence(fence.epoch, fence.position + 1), at)
        assert host_states.has_lost(reader, fence, at + timedelta(microseconds=1))
        assert host_states.has_lost(reader, Fence(fence.epoch + 1, 0), at)
    housekeeping.begin_epoch(rig.service)
    with rig.service.store.read() as reader:
        assert not host_states.has_lost(reader, Fence(fence.epoch, fence.position + 100), at)


def test_a_vm_on_its_way_is_recognised_where_it_arrives(rig: Rig) -> None:
    (made,) = rig.schedule(Kind.REDEPLOY, "db")
    rig.approve_all(made)
    tasks = tick.tick(rig.service).tasks
    target = rig.operation(made).targets["db"]
    (scope,) = [each for each in states(rig)[target].scopes if each.key == "vm:db"]
    assert [(member.name, member.arriving) for member in scope.members] == [("db", True)]
    assert "db" in states(rig)[target].started
    assert "vm:db" in {each.key for each in states(rig)["host-b"].scopes}
    rig.clock.advance(minutes=5)
    tick.tick(rig.service, [(task, rig.driver.carry_out(task, rig.clock.now())) for task in tasks])
    (scope,) = [each for each in states(rig)[target].scopes if each.key == "vm:db"]
    assert [(member.name, member.arriving) for member in scope.members] == [("db", False)]
    assert "vm:db" not in {each.key for each in states(rig)["host-b"].scopes}
