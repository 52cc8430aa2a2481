"""Notice is time that has really passed, whatever becomes of the clock."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.service.rig import OPERATOR, START, ManualClock, Rig, moment
from tests.test_clock import Machine

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.service import history, housekeeping, queries, sessions, tick, tokens
from forenotice.service.calls import Call
from forenotice.service.service import Telemetry
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.store.opener import open_store

ADMIN = Call(actor="offline", reason="the battery was empty")


class Jumps(Telemetry):
    def __init__(self) -> None:
        self.counted = 0

    def clock_jump(self) -> None:
        self.counted += 1


@pytest.fixture
def machine() -> Machine:
    return Machine()


def started(store: Store, machine: Machine) -> Rig:
    """As a process starts."""
    rig = Rig(store, clock=machine.clock())
    housekeeping.require_sane_clock(rig.service)
    housekeeping.resume(rig.service, alone=True)
    return rig.settle_demo()


def accept(store: Store, machine: Machine) -> Any:
    return housekeeping.accept_clock(Rig(store, clock=machine.clock()).service, ADMIN)


@pytest.fixture
def rig(sqlite_store: Store, machine: Machine) -> Rig:
    rig = started(sqlite_store, machine)
    machine.live(minutes=1)
    return rig


def restart(rig: Rig, vm: str = "db") -> Any:
    [operation] = rig.schedule(Kind.RESTART, vm)
    return operation.events[0]


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


def starts_within(rig: Rig, machine: Machine, event: Any, within: float, **after: float) -> bool:
    """Whether it is still Scheduled so long after, and Started a few seconds later."""
    live(rig, machine, **after)
    before = status(rig, event)
    live(rig, machine, seconds=within)
    return (before, status(rig, event)) == ("Scheduled", "Started")


def test_a_jump_ahead_is_no_notice(rig: Rig, machine: Machine) -> None:
    telemetry = rig.service.telemetry = Jumps()
    event = restart(rig)
    live(rig, machine, minutes=1)
    machine.set(hours=1)
    assert status(rig, event) == "Scheduled"
    assert telemetry.counted == 1
    explained = rig.explain(event.id)
    assert "The clock jumped ahead since it was announced" in explained.sentence
    assert explained.until == moment("13:16:01")
    assert starts_within(rig, machine, event, 15, minutes=13, seconds=50)
    [entry] = rig.entries(action="clock.jumped")
    assert entry.data == {"seconds": 3600}
    assert telemetry.counted == 1


def test_after_a_jump_approvals_count_and_new_events_have_their_own_notice(rig: Rig, machine: Machine) -> None:
    approved = restart(rig)
    machine.set(hours=1)
    # A command that is refused does not swallow the jump.
    with pytest.raises(errors.NotFoundError):
        rig.schedule(Kind.RESTART, "unknown")
    assert status(rig, approved) == "Scheduled"
    announced = restart(rig, "web-0")
    assert rig.approve("db", "vm:db", approved.id) is None
    assert status(rig, approved) == "Started"
    assert starts_within(rig, machine, announced, 15, minutes=14, seconds=50)


def test_what_was_over_before_a_jump_waits_for_guests_to_look(rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    for _ in range(48):
        machine.live(seconds=20)
        housekeeping.run(rig.service)
    machine.set(hours=1)
    assert status(rig, event) == "Scheduled"
    assert starts_within(rig, machine, event, 2, seconds=29)


def test_a_jump_is_not_silence_and_is_accounted_for_though_nothing_is_due(rig: Rig, machine: Machine) -> None:
    rig.set_policy("vm:db", listening=Listening.AUTO)
    rig.guests.heard({"vm:db": rig.clock.now()})
    assert not rig.service.clock_has_jumped
    machine.set(hours=25)
    assert not tick.tick(rig.service).tasks
    assert rig.service.clock_has_jumped
    housekeeping.run(rig.service)
    assert not rig.service.clock_has_jumped
    assert rig.vm("db").listening
    assert not restart(rig).implied


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
    assert "The clock is 86400 s behind the journal" in rig.explain(waits.id).sentence


def test_a_clock_that_was_set_right_is_accepted(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    rig.set_policy("vm:db", listening=Listening.AUTO)
    before = restart(rig, "web-0")
    live(rig, machine, minutes=5)
    machine.set(days=1)
    ahead, approved = restart(rig, "web-1"), restart(rig, "web-2")
    live(rig, machine, minutes=4)
    rig.guests.heard({"vm:db": rig.clock.now()})
    assert rig.approve("web-2", "group:web", approved.id) is None
    assert status(rig, approved) == "Started"
    machine.set(days=-1)
    with pytest.raises(errors.UnsoundError, match="forenotice clock accept"):
        started(sqlite_store, machine)

    accept(sqlite_store, machine)
    again = started(sqlite_store, machine)
    assert again.clock.now() == machine.wall
    [entry] = again.entries(action="clock.accepted")
    assert (entry.by, entry.reason) == ("offline", "the battery was empty")
    with pytest.raises(errors.ConflictError, match="nothing to accept"):
        housekeeping.accept_clock(again.service, ADMIN)
    assert housekeeping.problems(again.service) == []
    assert again.vm("db").listening
    assert again.vm("db").last_heard <= machine.wall

    assert again.event(before.id).not_before == moment("12:16:01")
    live(again, machine, minutes=5, seconds=50)
    assert (status(again, before), status(again, approved)) == ("Scheduled", "Completed")
    live(again, machine, seconds=20)
    assert (status(again, before), status(again, ahead)) == ("Started", "Scheduled")
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
    accepted = accept(sqlite_store, machine)
    assert accepted.journal - accepted.now == timedelta(minutes=10)
    again = started(sqlite_store, machine)
    assert again.clock.now() == machine.wall
    assert starts_within(again, machine, event, 10, minutes=1, seconds=55)


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


def test_an_accepted_clock_still_hides_the_former_bearer_of_a_name(sqlite_store: Store, machine: Machine) -> None:
    def token(rig: Rig, name: str) -> str:
        machine.live(seconds=2)
        made = tokens.create(rig.service, OPERATOR, name=name, role="tenant", scopes="vm:db")
        machine.live(seconds=2)
        return str(made.token)

    def seen(rig: Rig, secret: str) -> set[str]:
        """Events that this token is shown, in the list and in the history."""
        scopes = tokens.authenticate(rig.service, secret).access.scopes
        listed = {each.id for each in queries.events(rig.service, live=None, seen=scopes).items}
        assert listed == {each.event for each in history.page(rig.service, JournalFilter(seen=scopes)).items} - {None}
        return listed

    rig = started(sqlite_store, machine)
    machine.set(days=1)
    old = token(rig, "old")
    [former] = rig.schedule(Kind.RESTART, "db")
    machine.live(seconds=2)
    rig.cancel(former)
    rig.remove_vm("db")
    between = token(rig, "between")
    rig.add_vm("db", "host-b")
    machine.live(seconds=2)
    mine = restart(rig)
    rotated = token(rig, "rotated")
    [known] = [each for each in tokens.list_all(rig.service).items if each.name == "rotated"]
    tokens.rotate(rig.service, OPERATOR, known.id)
    session, _ = sessions.begin(rig.service, between, "")
    machine.set(days=-1)

    accept(sqlite_store, machine)
    again = started(sqlite_store, machine)
    new = token(again, "new")
    later = restart(again)
    assert seen(again, old) == set()
    for secret in (between, rotated, new):
        assert seen(again, secret) == {mine.id, later.id}
    with pytest.raises(errors.UnauthorizedError, match="sign in again"):
        sessions.resume(again.service, session)
    assert all(each.created_at <= machine.wall for each in tokens.list_all(again.service).items)
    machine.live(hours=1)
    with pytest.raises(errors.UnauthorizedError, match="rotated"):
        tokens.authenticate(again.service, rotated)


def test_a_jump_while_no_process_serves_is_no_notice_either(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    live(rig, machine, minutes=1)
    machine.live(seconds=10)
    machine.set(hours=1)
    again = started(sqlite_store, machine)
    assert status(again, event) == "Scheduled"
    assert starts_within(again, machine, event, 30, minutes=13, seconds=30)


def test_a_stop_is_no_jump(sqlite_store: Store, rig: Rig, machine: Machine) -> None:
    event = restart(rig)
    housekeeping.run(rig.service)
    machine.live(hours=1)
    again = started(sqlite_store, machine)
    assert rig.actions(action="clock.jumped") == []
    assert status(again, event) == "Scheduled"
    live(again, machine, seconds=31)
    assert status(again, event) == "Started"


@pytest.mark.both_databases
def test_a_clock_far_behind_the_journal_is_refused(store: Store) -> None:
    housekeeping.require_sane_clock(Rig(store).service)  # An empty journal has no time.
    Rig(store).settle_demo()
    housekeeping.require_sane_clock(Rig(store).service)
    with pytest.raises(errors.UnsoundError, match="correct the clock"):
        housekeeping.require_sane_clock(Rig(store, clock=ManualClock(START - timedelta(minutes=6))).service)
    a_little = Rig(store, clock=ManualClock(START - timedelta(minutes=4)))
    housekeeping.require_sane_clock(a_little.service)
    assert a_little.clock.now() == START


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
        found[0].settle_demo()
        yield found


def test_servers_use_the_clock_of_their_database_and_account_for_its_jump_once(servers: list[Rig]) -> None:
    one, two = servers
    for rig in servers:
        assert abs(rig.clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
        assert rig.clock.behind < timedelta(seconds=5)
        housekeeping.run(rig.service)
        assert abs(rig.service.expiry_from - datetime.now(UTC)) < timedelta(minutes=1), "the grace is by that clock"
    event = restart(one)
    assert status(two, event) == "Scheduled"
    assert two.actions(action="clock.jumped") == []
    before = one.explain(event.id).until
    for rig in servers:
        # As if the database had stood an hour earlier at the last look.
        boot, monotonic, wall = rig.clock.mark().split()
        rig.clock.go_on_from(f"{boot} {monotonic} {datetime.fromisoformat(wall) - timedelta(hours=1):%FT%T.%f%z}")
        housekeeping.run(rig.service)
    assert one.actions(action="clock.jumped") == ["clock.jumped"]
    assert abs(two.explain(event.id).until - before - timedelta(hours=1)) < timedelta(seconds=2)


def test_the_clock_of_a_database_is_accepted(servers: list[Rig]) -> None:
    one, two = servers
    one.clock.not_below(one.clock.now() + timedelta(days=1))
    event = restart(one)
    again = Rig(two.service.store, clock=SystemClock())
    with pytest.raises(errors.UnsoundError, match="forenotice clock accept"):
        housekeeping.require_sane_clock(again.service)
    accepted = housekeeping.accept_clock(Rig(two.service.store, clock=SystemClock()).service, ADMIN)
    assert accepted.operations == 1
    again = Rig(two.service.store, clock=SystemClock())
    housekeeping.require_sane_clock(again.service)
    found = again.event(event.id)
    assert timedelta(minutes=14) < found.not_before - datetime.now(UTC) < timedelta(minutes=16)
    assert timedelta(0) <= datetime.now(UTC) - found.created_at < timedelta(minutes=1)
