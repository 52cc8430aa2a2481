"""A simulation: what is announced lives by the rules of core."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from forenotice.core import errors
from forenotice.core.documents import Document
from forenotice.core.fleet import Listening
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Event, Kind, Operation, Status
from forenotice.core.timing import Timing
from forenotice.emulator.simulation import KEY, Announcement, Simulation
from forenotice.publication import Publication

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


class Published:
    def __init__(self) -> None:
        self.shown: list[Document] = []
        self.vms: list[tuple[str, ...]] = []

    def documents(self, documents: Sequence[Document]) -> None:
        self.shown += documents

    def scopes(self, scopes: Sequence[Publication]) -> None:
        self.vms += [tuple(vm.name for vm in each.members) for each in scopes]

    def everything(self, scopes: Sequence[Publication]) -> None:
        raise AssertionError


def simulation(*, speed: float = 1, listens: Listening = Listening.ALWAYS) -> Simulation:
    return Simulation(now=NOW, timing=Timing(speed=speed), listens=listens)


def announce(there: Simulation, kind: Kind = Kind.RESTART, *names: str, at: datetime = NOW, **details: object) -> Event:
    return there.announce(Announcement(kind=kind, resources=names or ("web-0",), **details), at)  # type: ignore[arg-type]


def approve(there: Simulation, event: Event, at: datetime, vm: str = "web-0") -> errors.ForenoticeError | None:
    (result,) = there.approve_as_guests([StartRequests(vm=vm, scope=KEY, event_ids=(event.id,))], at)
    return result


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.HARDWARE_FAILURE])
def test_an_event_waits_for_its_time_starts_and_goes(kind: Kind) -> None:
    there = simulation()
    event = announce(there, kind, notice=7 * MINUTE, takes=3 * MINUTE)
    assert (event.status, event.not_before) == (Status.SCHEDULED, NOW + 7 * MINUTE)
    there.tick(NOW + 7 * MINUTE - SECOND)
    assert there.event(event.id).status is Status.SCHEDULED
    there.tick(NOW + 7 * MINUTE)
    assert there.event(event.id).status is Status.STARTED
    there.tick(NOW + 10 * MINUTE - SECOND)
    assert there.event(event.id).status is Status.STARTED
    there.tick(NOW + 10 * MINUTE)
    assert there.event(event.id).status is Status.COMPLETED
    assert (there.live, there.due) == ([], None)
    assert [vm.name for vm in there.vms] == ["web-0"]


def test_speed_divides_durations() -> None:
    there = simulation(speed=60)
    event = announce(there, notice=15 * MINUTE, takes=10 * MINUTE)
    assert event.not_before == NOW + 15 * SECOND
    there.tick(NOW + 25 * SECOND)
    assert there.event(event.id).ended_at == NOW + 25 * SECOND
    # Started is shown for two seconds whatever the speed.
    there = simulation(speed=1000)
    event = announce(there, notice=0 * SECOND, takes=MINUTE)
    there.tick(NOW + 2 * SECOND - timedelta(microseconds=1))
    assert there.event(event.id).status is Status.STARTED
    there.tick(NOW + 2 * SECOND)
    assert there.event(event.id).status is Status.COMPLETED


def test_an_approval_of_something_else_is_refused() -> None:
    there = simulation()
    event = announce(there)
    results = there.approve_as_guests(
        [
            StartRequests(vm="web-0", scope=KEY, event_ids=(event.id, "00000000-0000-4000-8000-000000000000")),
            StartRequests(vm="web-0", scope=KEY, event_ids=(event.id.lower(),)),
        ],
        NOW,
    )
    assert [result is None for result in results] == [False, True]


def test_an_event_names_vms_of_one_update_domain() -> None:
    there = simulation()
    there.add_vm("web-1", NOW, update_domain=1)
    there.add_vm("web-0", NOW)
    with pytest.raises(errors.RefusedError, match="different update domains"):
        announce(there, Kind.HOST_UPDATE, "web-0", "web-1")
    with pytest.raises(errors.ConflictError, match="update domain 1, not 0"):
        there.add_vm("web-1", NOW)
    with pytest.raises(errors.RefusedError, match="at least one VM"):
        there.announce(Announcement(kind=Kind.RESTART, resources=()), NOW)


def test_a_vm_that_joins_is_placed_beside_those_it_is_named_with() -> None:
    there = simulation()
    there.add_vm("web-1", NOW, update_domain=1)
    with pytest.raises(errors.RefusedError, match="not a VM name"):
        announce(there, Kind.RESTART, "new", "x y")
    assert [vm.name for vm in there.vms] == ["web-1"]
    assert announce(there, Kind.HOST_UPDATE, "new", "web-1").resources == ("new", "web-1")
    assert {vm.name: vm.update_domain for vm in there.vms} == {"web-1": 1, "new": 1}


def test_one_update_domain_is_out_at_a_time() -> None:
    there = simulation()
    for number in range(3):
        there.add_vm(f"web-{number}", NOW, update_domain=number)
    events = [announce(there, Kind.HOST_UPDATE, f"web-{number}", takes=10 * MINUTE) for number in range(3)]
    for event in events:
        there.approve(event.id, "operator", NOW)
    assert sorted(there.event(event.id).status for event in events) == ["Scheduled", "Scheduled", "Started"]
    there.tick(NOW + 10 * MINUTE)
    assert sorted(there.event(event.id).status for event in events) == ["Completed", "Scheduled", "Started"]
    there.tick(NOW + 30 * MINUTE)
    ended = [there.event(event.id).ended_at for event in events]
    assert sorted(end for end in ended if end) == [NOW + 10 * MINUTE, NOW + 20 * MINUTE, NOW + 30 * MINUTE]


def test_events_are_listed_and_started_in_the_order_of_announcement() -> None:
    there = simulation()
    events = [announce(there, Kind.RESTART, f"web-{number}") for number in range(10)]
    assert [event.id for event in there.live] == [event.id for event in events]
    for _ in range(5):
        there = simulation()
        events = [announce(there, kind, notice=MINUTE, takes=MINUTE) for kind in (Kind.RESTART, Kind.HOST_UPDATE)]
        there.tick(NOW + MINUTE)
        assert [there.event(event.id).status for event in events] == [Status.STARTED, Status.SCHEDULED]
    there = simulation()
    events = [announce(there, notice=MINUTE, takes=5 * SECOND) for _ in range(20)]
    there.tick(NOW + HOUR)
    ended = [there.event(event.id).ended_at for event in events]
    assert ended == [NOW + MINUTE + 5 * SECOND * number for number in range(1, 21)]


def test_moves_never_want_for_a_host() -> None:
    there = simulation()
    there.add_vm("web-0", NOW)
    there.add_vm("web-1", NOW, update_domain=1)
    at = NOW
    for _ in range(5):
        for name in ("web-0", "web-1"):
            event = announce(there, Kind.REDEPLOY, name, at=at, notice=SECOND, takes=SECOND)
            at += 10 * SECOND
            there.tick(at)
            assert there.event(event.id).status is Status.COMPLETED


def test_silence_approves_and_the_first_call_takes_that_back() -> None:
    there = simulation(listens=Listening.AUTO)
    quiet = announce(there, Kind.HOST_UPDATE)
    assert there.event(quiet.id).status is Status.STARTED
    there = simulation(listens=Listening.AUTO)
    there.add_vm("web-0", NOW)
    planned = announce(there, Kind.DEGRADED_HARDWARE, notice=HOUR)
    assert planned.implied
    there.record_poll(NOW + MINUTE, NOW + MINUTE)
    assert not there.event(planned.id).approved
    there.tick(NOW + 30 * MINUTE)
    assert there.event(planned.id).status is Status.SCHEDULED


def test_what_happens_between_two_looks_is_shown_once_and_noted_in_full() -> None:
    published = Published()
    there = Simulation(now=NOW, timing=Timing(), publisher=published)
    announce(there, notice=MINUTE, takes=MINUTE)
    before = len(published.shown)
    there.tick(NOW + HOUR)
    (document,) = published.shown[before:]
    assert document.events == ()
    happened = [(entry.at - NOW, entry.action) for entry in there.entries if entry.action.startswith("event.")]
    assert happened == [(0 * MINUTE, "event.scheduled"), (MINUTE, "event.started"), (2 * MINUTE, "event.completed")]


def test_a_stage_after_another_counts_on() -> None:
    published = Published()
    first = Simulation(now=NOW, timing=Timing(), publisher=published)
    announce(first)
    second = Simulation(now=NOW, timing=Timing(), publisher=published, after=first)
    assert second.scope.incarnation == first.scope.incarnation + 1
    assert second.scope.tag == first.scope.tag
    assert published.vms[-1] == ()
    first = simulation()
    assert Simulation(now=NOW, timing=Timing(), after=first).scope.incarnation == first.scope.incarnation == 1


def test_what_is_long_over_is_remembered_but_cannot_be_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forenotice.emulator.simulation.REMEMBERED", 20)
    there = simulation()
    at = NOW
    old = announce(there, notice=0 * SECOND, takes=0 * SECOND)
    for number in range(21):
        announce(there, Kind.RESTART, f"vm-{number}", at=at, notice=0 * SECOND, takes=0 * SECOND)
        at += 2 * SECOND
        there.tick(at)
    assert approve(there, old, at) is None
    at += 2 * HOUR
    recent = announce(there, at=at, notice=0 * SECOND, takes=0 * SECOND)
    there.tick(at + 2 * SECOND)
    assert there.event(old.id).status is Status.COMPLETED
    assert approve(there, old, at + 2 * SECOND) is not None
    assert approve(there, recent, at + 2 * SECOND) is None


def test_what_is_held_for_two_reasons_does_not_hold_up_the_next() -> None:
    """A deletion that waits for an earlier one is tried, stays, and lets the restart behind it start."""
    there = simulation()
    first = announce(there, Kind.DELETION, "web-1", notice=HOUR)
    busy = announce(there, Kind.HOST_UPDATE, "web-0", notice=MINUTE, takes=10 * MINUTE)
    later = announce(there, Kind.DELETION, "web-0", notice=2 * HOUR)
    behind = announce(there, Kind.RESTART, "web-0", notice=3 * HOUR)
    there.tick(NOW + MINUTE)
    for event in (later, behind):
        there.approve(event.id, "operator", NOW + MINUTE)
    assert there.event(busy.id).status is Status.STARTED
    there.tick(NOW + 11 * MINUTE)
    assert [there.event(event.id).status for event in (first, later, behind)] == ["Scheduled", "Scheduled", "Started"]
    there.approve(first.id, "operator", NOW + 30 * MINUTE)
    there.tick(NOW + 31 * MINUTE)
    assert there.event(later.id).status is Status.COMPLETED


def test_spot_vms_are_evicted_and_others_deleted() -> None:
    there = simulation()
    for kind, spot in ((Kind.EVICTION, True), (Kind.DELETION, False)):
        announce(there, kind, notice=0 * SECOND, takes=0 * SECOND)
        assert [vm.spot for vm in there.vms] == [spot]
        there.tick(NOW + MINUTE)


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({"notice": -SECOND}, "cannot be negative"),
        ({"takes": -SECOND}, "cannot be negative"),
        ({"duration": -7}, "or -1"),
        ({"description": 5}, "a description is text, not 5"),
        ({"notice": timedelta(days=4_000_000)}, "beyond the calendar"),
    ],
)
def test_what_no_document_may_say_is_refused(details: dict[str, object], why: str) -> None:
    with pytest.raises(errors.RefusedError, match=why):
        announce(simulation(), **details)  # type: ignore[arg-type]


class Thorough(Simulation):
    """Looks at everything that is held whenever anything changes, and leaves all of it to core."""

    def _startable(self, tried: set[str]) -> list[Operation]:
        return [operation for operation in self._held.values() if operation.id not in tried]


def life(there: Simulation, chance: random.Random) -> list[tuple[datetime, str, int]]:
    """What became of the events of a busy group, by their number."""
    for number in range(6):
        there.add_vm(f"vm-{number}", NOW, update_domain=number % 3)
    numbers: dict[str | None, int] = {}
    at = NOW
    for number in range(25):
        at += chance.randrange(120) * SECOND
        there.tick(at)
        vms = chance.choice((("vm-0",), ("vm-1",), ("vm-0", "vm-3"), ("vm-2", "vm-5"), ("vm-4",)))
        notice, takes = chance.randrange(600) * SECOND, chance.randrange(300) * SECOND
        kind = chance.choice(list(Kind))
        numbers[announce(there, kind, *vms, at=at, notice=notice, takes=takes).id] = number
        for event in there.live:
            if event.status is Status.SCHEDULED and chance.random() < 0.3:
                there.approve(event.id, "operator", at)
    there.tick(at + 10 * HOUR)
    assert there.live == []
    return [(entry.at, entry.action, numbers[entry.event]) for entry in there.entries if entry.event]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_not_looked_at_is_nothing_that_core_would_have_started(seed: int) -> None:
    thorough = life(Thorough(now=NOW, timing=Timing()), random.Random(seed))
    assert life(simulation(), random.Random(seed)) == thorough
