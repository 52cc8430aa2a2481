"""Notice is time that has really passed, whatever becomes of the clock."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.service.rig import OPERATOR, Rig
from tests.test_clock import Machine

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.fleet import Listening
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.service import fleet, history, housekeeping, maintenance, queries, sessions, tick, tokens
from forenotice.service.calls import Call
from forenotice.service.service import Telemetry
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.views.fleet import PolicyChange

ADMIN = Call(actor="offline", reason="the battery was empty")


class Jumps(Telemetry):
    def __init__(self) -> None:
        self.counted = 0

    def clock_jump(self) -> None:
        self.counted += 1


@pytest.fixture
def machine() -> Machine:
    return Machine()


def started(store: Store, machine: Machine, *, speed: float = 1) -> Rig:
    """As a process starts."""
    rig = Rig(store, clock=machine.clock(), speed=speed)
    housekeeping.require_sane_clock(rig.service)
    housekeeping.resume(rig.service, alone=True)
    return rig.settle_demo()


@pytest.fixture
def rig(sqlite_store: Store, machine: Machine) -> Rig:
    rig = started(sqlite_store, machine)
    machine.live(minutes=1)
    return rig


def restart(rig: Rig, vm: str = "db") -> Any:
    [operation] = rig.schedule(Kind.RESTART, vm)
    event: Any = operation.events[0]
    return event


def status(rig: Rig, event: Any) -> str:
    rig.tick()
    return str(rig.event(event.id).status)


def live(rig: Rig, machine: Machine, **duration: float) -> None:
    """The service runs meanwhile."""
    left = timedelta(**duration)
    while left > timedelta(0):
        step = min(left, housekeeping.INTERVAL)
        machine.live(seconds=step.total_seconds())
        rig.tick()
        housekeeping.run(rig.service)
        left -= step


def starts_within(rig: Rig, machine: Machine, event: dict[str, Any], seconds: float, after: timedelta) -> bool:
    """Whether it is still Scheduled so long after, and Started a few seconds later."""
    live(rig, machine, seconds=after.total_seconds())
    before = status(rig, event)
    live(rig, machine, seconds=seconds)
    return (before, status(rig, event)) == ("Scheduled", "Started")


def test_a_jump_ahead_is_no_notice(rig: Rig, machine: Machine) -> None:
    telemetry = rig.service.telemetry = Jumps()
    event = restart(rig)
    live(rig, machine, minutes=1)
    machine.set(hours=1)
    assert status(rig, event) == "Scheduled"
    assert telemetry.counted == 1
    said = queries.explain_event(rig.service, event.id)
    assert "The clock jumped ahead since it was announced" in said.sentence
    assert said.until == datetime.fromisoformat("2026-01-05T13:16:01Z")
    assert starts_within(rig, machine, event, 15, after=timedelta(minutes=13, seconds=50))
    [entry] = history.page(rig.service, action="clock.jumped").items
    assert entry.data == {"seconds": 3600}
    assert telemetry.counted == 1


def test_after_a_jump_an_approval_counts_as_ever(rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    machine.set(hours=1)
    assert status(rig, event) == "Scheduled"
    assert rig.approve("db", "vm:db", event.id) is None
    assert status(rig, event) == "Started"


def test_what_is_announced_after_a_jump_has_its_own_notice(rig: Rig, machine: Machine) -> None:
    machine.set(hours=1)
    event = restart(rig)
    assert starts_within(rig, machine, event, 15, after=timedelta(minutes=14, seconds=50))


def test_what_was_over_before_a_jump_waits_for_guests_to_look(rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    for _ in range(48):
        machine.live(seconds=20)
        housekeeping.run(rig.service)
    machine.set(hours=1)
    assert status(rig, event) == "Scheduled"
    assert starts_within(rig, machine, event, 2, after=timedelta(seconds=29))


def test_a_refused_command_does_not_swallow_a_jump(rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    machine.set(hours=1)
    with pytest.raises(errors.NotFoundError):
        rig.schedule(Kind.RESTART, "nobody")
    assert status(rig, event) == "Scheduled"


def test_a_jump_is_nobody_s_silence(rig: Rig, machine: Machine) -> None:
    fleet.set_policy(rig.service, OPERATOR, "vm:db", PolicyChange(listening=Listening.AUTO))
    rig.guests.heard({"vm:db": rig.clock.now()})
    machine.set(hours=25)
    event = restart(rig)
    assert queries.vm(rig.service, "db").listening
    assert not event.implied


def test_a_jump_is_accounted_for_at_once_though_nothing_is_due(rig: Rig, machine: Machine) -> None:
    assert not rig.service.clock_has_jumped
    machine.set(hours=1)
    assert not tick.tick(rig.service).tasks
    assert rig.service.clock_has_jumped
    housekeeping.run(rig.service)
    assert not rig.service.clock_has_jumped


def test_ahead_and_back_again_time_goes_on(rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    machine.set(days=1)
    live(rig, machine, seconds=20)
    machine.set(days=-1)
    assert rig.approve("db", "vm:db", event.id) is None
    live(rig, machine, minutes=10)
    assert status(rig, event) == "Completed"
    [trouble] = housekeeping.problems(rig.service)
    assert trouble.startswith("the clock is 86400 s behind the journal")
    waits = restart(rig, "web-0")
    assert "The clock is 86400 s behind the journal" in queries.explain_event(rig.service, waits.id).sentence


def test_a_clock_that_was_set_right_is_accepted(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    fleet.set_policy(rig.service, OPERATOR, "vm:db", PolicyChange(listening=Listening.AUTO))
    before = restart(rig, "web-0")
    live(rig, machine, minutes=5)
    machine.set(days=1)
    ahead = restart(rig, "web-1")
    approved = restart(rig, "web-2")
    live(rig, machine, minutes=4)
    rig.guests.heard({"vm:db": rig.clock.now()})
    assert rig.approve("web-2", "group:web", approved.id) is None
    assert status(rig, approved) == "Started"
    machine.set(days=-1)
    with pytest.raises(errors.UnsoundError, match="forenotice clock accept"):
        started(sqlite_store, machine)

    housekeeping.accept_clock(Rig(sqlite_store, clock=machine.clock()).service, ADMIN)
    again = started(sqlite_store, machine)
    assert again.clock.now() == machine.wall
    [entry] = history.page(again.service, action="clock.accepted").items
    assert (entry.by, entry.reason) == ("offline", "the battery was empty")
    with pytest.raises(errors.ConflictError, match="nothing to accept"):
        housekeeping.accept_clock(again.service, ADMIN)
    assert housekeeping.problems(again.service) == []
    vm = queries.vm(again.service, "db")
    assert vm.listening
    assert vm.last_heard is not None
    assert vm.last_heard <= machine.wall

    assert again.event(before.id).not_before == datetime.fromisoformat("2026-01-05T12:16:01Z")
    live(again, machine, minutes=5, seconds=50)
    assert status(again, before) == "Scheduled"
    assert status(again, approved) == "Completed"
    live(again, machine, seconds=20)
    assert status(again, before) == "Started"
    assert status(again, ahead) == "Scheduled"
    live(again, machine, minutes=5)
    assert status(again, ahead) == "Started"


def test_a_clock_that_was_wrong_for_long_is_accepted_too(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    """Nothing was journalled for so long that the clock is behind the process alone, and not behind its journal."""
    event = restart(rig)
    machine.set(minutes=10)
    live(rig, machine, minutes=1)
    machine.set(minutes=-10)
    live(rig, machine, minutes=12)
    with pytest.raises(errors.UnsoundError, match="forenotice clock accept"):
        started(sqlite_store, machine)
    accepted = housekeeping.accept_clock(Rig(sqlite_store, clock=machine.clock()).service, ADMIN)
    assert accepted.journal - accepted.now == timedelta(minutes=10)
    again = started(sqlite_store, machine)
    assert again.clock.now() == machine.wall
    assert starts_within(again, machine, event, 10, after=timedelta(minutes=1, seconds=55))


def test_a_clock_that_is_behind_keeps_the_grace(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    live(rig, machine, minutes=14, seconds=50)
    machine.live(seconds=10)
    machine.set(minutes=-4)
    again = started(sqlite_store, machine)
    machine.live(seconds=25)
    assert status(again, event) == "Scheduled"
    machine.live(seconds=10)
    assert status(again, event) == "Started"


def test_an_accepted_clock_keeps_whoever_bore_a_name_from_its_successor(sqlite_store: Store, machine: Machine) -> None:
    def token(rig: Rig, name: str) -> str:
        machine.live(seconds=2)
        made = tokens.create(rig.service, OPERATOR, name=name, role="tenant", scopes="vm:db")
        machine.live(seconds=2)
        return str(made.token)

    def seen(rig: Rig, secret: str) -> set[str]:
        """Events that somebody with this token is shown, in the list and in the history."""
        scopes = tokens.authenticate(rig.service, secret).access.scopes
        listed = {each.id for each in queries.events(rig.service, live=None, seen=scopes).items}
        told = {each.event for each in history.page(rig.service, seen=scopes).items} - {None}
        assert listed == told
        return listed

    rig = started(sqlite_store, machine)
    machine.set(days=1)
    old = token(rig, "old")
    former = restart(rig)
    machine.live(seconds=2)
    maintenance.cancel_operation(rig.service, OPERATOR, former.operation)
    fleet.remove_vm(rig.service, OPERATOR, "db")
    between = token(rig, "between")
    fleet.add_vm(rig.service, OPERATOR, VmSpec(name="db", host="host-b"))
    machine.live(seconds=2)
    mine = restart(rig)
    rotated = token(rig, "rotated")
    [known] = [each for each in tokens.list_all(rig.service).items if each.name == "rotated"]
    tokens.rotate(rig.service, OPERATOR, known.id)
    session, _ = sessions.begin(rig.service, between, "")
    machine.set(days=-1)

    housekeeping.accept_clock(Rig(sqlite_store, clock=machine.clock()).service, ADMIN)
    again = started(sqlite_store, machine)
    new = token(again, "new")
    later = restart(again)
    assert seen(again, old) == set()
    for secret in (between, rotated, new):
        assert seen(again, secret) == {mine.id, later.id}
    with pytest.raises(errors.UnauthorizedError, match="sign in again"):
        sessions.resume(again.service, session)
    for each in tokens.list_all(again.service).items:
        assert each.created_at <= machine.wall
    machine.live(hours=1)
    with pytest.raises(errors.UnauthorizedError, match="rotated"):
        tokens.authenticate(again.service, rotated)


def test_a_jump_while_nobody_serves_is_no_notice_either(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    live(rig, machine, minutes=1)
    machine.live(seconds=10)
    machine.set(hours=1)
    again = started(sqlite_store, machine)
    assert status(again, event) == "Scheduled"
    assert starts_within(again, machine, event, 30, after=timedelta(minutes=13, seconds=30))


def test_a_stop_is_no_jump(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    housekeeping.run(rig.service)
    machine.live(hours=1)
    again = started(sqlite_store, machine)
    assert rig.actions(action="clock.jumped") == []
    assert status(again, event) == "Scheduled"
    live(again, machine, seconds=31)
    assert status(again, event) == "Started"


@pytest.fixture
def servers(migrated_postgres_url: str) -> Iterator[list[Rig]]:
    """Two servers on one database, on machines whose clocks are half an hour apart."""
    with ExitStack() as opened:
        found = []
        for minutes in (-15, 15):
            store = open_store(migrated_postgres_url, migrate=False)
            opened.callback(store.close)

            def wall(off: timedelta = timedelta(minutes=minutes)) -> datetime:
                return datetime.now(UTC) + off

            rig = Rig(store, clock=SystemClock(wall=wall))
            housekeeping.require_sane_clock(rig.service)
            housekeeping.resume(rig.service, alone=False)
            found.append(rig)
        yield found


def test_servers_go_by_the_clock_of_their_database(servers: list[Rig]) -> None:
    one, two = servers
    one.settle_demo()
    for rig in servers:
        assert abs(rig.clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
        assert rig.clock.behind < timedelta(seconds=5)
        housekeeping.run(rig.service)
        assert abs(rig.service.expiry_from - datetime.now(UTC)) < timedelta(minutes=1), "the grace is by that clock"
    event = restart(one)
    assert status(two, event) == "Scheduled"
    assert two.actions(action="clock.jumped") == []


def test_servers_account_for_a_jump_of_their_database_once(servers: list[Rig]) -> None:
    one, two = servers
    one.settle_demo()
    event = restart(one)
    before = queries.explain_event(one.service, event.id).until

    def jump(rig: Rig) -> None:
        # As if the database had stood an hour earlier when it was last asked.
        rig.clock.go_on_from(_earlier(rig.clock.mark()))
        housekeeping.run(rig.service)

    for rig in servers:
        jump(rig)
    assert one.actions(action="clock.jumped") == ["clock.jumped"]
    after = queries.explain_event(two.service, event.id).until
    assert after is not None
    assert before is not None
    assert abs(after - before - timedelta(hours=1)) < timedelta(seconds=2)


def test_the_clock_of_a_database_is_accepted(servers: list[Rig]) -> None:
    one, two = servers
    one.clock.not_below(one.clock.now() + timedelta(days=1))
    event = restart(one.settle_demo())
    again = Rig(two.service.store, clock=SystemClock())
    with pytest.raises(errors.UnsoundError, match="forenotice clock accept"):
        housekeeping.require_sane_clock(again.service)
    accepted = housekeeping.accept_clock(Rig(two.service.store, clock=SystemClock()).service, ADMIN)
    assert accepted.operations == 1
    again = Rig(two.service.store, clock=SystemClock())
    housekeeping.require_sane_clock(again.service)
    found = again.event(event.id)
    left = found.not_before - datetime.now(UTC)
    assert timedelta(minutes=14) < left < timedelta(minutes=16)
    assert timedelta(0) <= datetime.now(UTC) - found.created_at < timedelta(minutes=1)


def _earlier(mark: str) -> str:
    boot, monotonic, moment = mark.split()
    return f"{boot} {monotonic} {(datetime.fromisoformat(moment) - timedelta(hours=1)).isoformat()}"
