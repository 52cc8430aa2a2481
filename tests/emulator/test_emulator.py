"""The emulator as a whole: guests send requests over real sockets while a test moves its clock."""

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection, IncompleteRead
from time import monotonic

import pytest
import requests
from tests.acceptance.running import until

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.operations import Event, Kind, Status
from forenotice.emulator import faults
from forenotice.emulator.emulator import EmulatedClock, Emulator
from forenotice.emulator.faults import Delay
from forenotice.emulator.scenarios import catalogue, reader
from forenotice.emulator.simulation import Announcement
from forenotice.metadata.options import Limits
from forenotice.runtime import Runtime
from forenotice.settings import Address
from forenotice.wire import versions

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@contextmanager
def running(*, virtual: bool = True, runtime: Runtime | None = None, names: Sequence[str] = ()) -> Iterator[Emulator]:
    emulator = Emulator(as_vm="web-0", virtual=virtual, runtime=runtime)
    emulator.start(names=names)
    try:
        yield emulator
    finally:
        emulator.stop()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """Its time is virtual."""
    with running() as found:
        yield found


def ask(at: Address, path: str = "scheduledevents", **query: str) -> requests.Response:
    params = {"api-version": "2020-07-01", **query}
    return requests.get(f"http://{at}/metadata/{path}", params=params, headers={"Metadata": "true"}, timeout=60)


def shown(at: Address) -> list[tuple[str, str]]:
    return [(event["EventId"], event["EventStatus"]) for event in ask(at).json()["Events"]]


def approve(at: Address, event: Event) -> int:
    url = f"http://{at}/metadata/scheduledevents?api-version=2020-07-01"
    body = {"StartRequests": [{"EventId": event.id}]}
    return requests.post(url, json=body, headers={"Metadata": "true"}, timeout=60).status_code


def name(at: Address) -> str:
    return ask(at, "instance/compute/name", format="text").text


def restart(*names: str, notice: timedelta | None = None) -> Announcement:
    return Announcement(kind=Kind.RESTART, resources=names or ("web-0",), notice=notice, takes=5 * MINUTE)


def test_virtual_time_stands_still_until_it_is_moved(emulator: Emulator) -> None:
    event = emulator.announce(restart())
    assert shown(emulator.address) == [(event.id, "Scheduled")]
    assert ask(emulator.address).headers["Date"] == f"{emulator.clock.now():%a, %d %b %Y %H:%M:%S GMT}"
    before = emulator.clock.now()
    assert emulator.advance(15 * MINUTE) == before + 15 * MINUTE
    assert shown(emulator.address) == [(event.id, "Started")]
    assert ask(emulator.address).headers["Date"] == f"{before + 15 * MINUTE:%a, %d %b %Y %H:%M:%S GMT}"
    emulator.advance(5 * MINUTE)
    assert shown(emulator.address) == []
    with pytest.raises(errors.RefusedError, match="forward only"):
        emulator.advance(-SECOND)


def test_ids_come_from_the_runtime() -> None:
    ids = (f"00000000-0000-4000-8000-{number:012d}" for number in itertools.count())
    with running(runtime=Runtime(new_id=lambda: next(ids))) as emulator:
        assert emulator.simulation.vms[0].vm_id < emulator.announce(restart()).id < next(ids)


def test_an_approval_over_the_wire_starts_it_before_the_answer(emulator: Emulator) -> None:
    event = emulator.announce(restart())
    assert approve(emulator.address, event) == 200
    assert shown(emulator.address) == [(event.id, "Started")]
    emulator.cancel(emulator.announce(restart("web-0")).id)
    assert shown(emulator.address) == [(event.id, "Started")]


def test_a_scenario_starts_afresh_as_the_vm_that_it_says(emulator: Emulator) -> None:
    emulator.announce(restart())
    emulator.switch_on("latency", amount=10 * MINUTE)
    incarnation = emulator.simulation.scope.incarnation
    player = emulator.play(catalogue.load("spot-eviction"))
    assert name(emulator.address) == emulator.as_vm != "web-0"
    assert emulator.faults.active == ()
    (event,) = ask(emulator.address).json()["Events"]
    assert (event["EventType"], event["Resources"]) == ("Preempt", [emulator.as_vm])
    assert ask(emulator.address).json()["DocumentIncarnation"] > incarnation
    emulator.advance(2 * MINUTE)
    assert player.done
    assert shown(emulator.address) == []
    # It was evicted, but whoever tests wants to ask on.
    assert name(emulator.address) == emulator.as_vm


def test_a_scenario_that_waits_for_an_approval_goes_on_with_it(emulator: Emulator) -> None:
    player = emulator.play(catalogue.load("rolling-update"))
    while emulator.due is not None:
        for event in emulator.simulation.live:
            assert approve(emulator.address, event) == 200
        emulator.advance_to(emulator.due)
    assert player.done
    assert emulator.simulation.live == []


def test_only_a_name_that_was_given_leads_here() -> None:
    with running(names=["emulator"]) as emulator:
        url = f"http://{emulator.address}/metadata/scheduledevents?api-version=2020-07-01"
        for host, status in (("169.254.169.254", 200), ("emulator:8254", 200), ("rebound.example", 400)):
            assert requests.get(url, headers={"Metadata": "true", "Host": host}, timeout=60).status_code == status


def test_a_port_that_is_taken_leaves_nothing_behind() -> None:
    with running() as first:
        threads = threading.active_count()
        second = Emulator(as_vm="web-0")
        with pytest.raises(errors.ConflictError, match="cannot be served"):
            second.start(first.address)
        assert threading.active_count() == threads


@pytest.mark.parametrize(("fault", "amount"), [("frozen", 2 * MINUTE), ("slow-first-answer", 2 * MINUTE)])
def test_what_is_held_goes_on_when_time_is_moved(fault: str, amount: timedelta) -> None:
    with running() as emulator:
        emulator.switch_on(fault, amount=amount)
        answers: list[int] = []
        guest = threading.Thread(target=lambda: answers.append(ask(emulator.address).status_code))
        guest.start()
        until(emulator.polls_under_way)
        assert emulator.due == emulator.clock.now() + amount
        emulator.advance(amount - SECOND)
        assert answers == []
        emulator.advance(SECOND)
        guest.join(60)
        assert answers == [200]
        assert emulator.due is None


def test_the_clock_is_moved_by_no_more_than_was_said(emulator: Emulator) -> None:
    before = emulator.clock.now()
    event = emulator.announce(restart())
    emulator.advance(15 * MINUTE - SECOND / 2)
    assert emulator.simulation.event(event.id).status is Status.SCHEDULED
    for _ in range(5):
        emulator.advance(SECOND / 10)
    assert emulator.clock.now() == before + 15 * MINUTE
    assert emulator.simulation.event(event.id).status is Status.STARTED
    with pytest.raises(errors.RefusedError, match="beyond the calendar"):
        emulator.advance(timedelta(days=4_000_000))


def test_those_who_move_the_clock_at_the_same_time_all_move_it(emulator: Emulator) -> None:
    before = emulator.clock.now()
    movers = [threading.Thread(target=emulator.advance, args=(15 * MINUTE,)) for _ in range(8)]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    assert emulator.clock.now() == before + 120 * MINUTE


@pytest.mark.parametrize("fresh", ["reset", "play"])
def test_nobody_is_unknown_while_it_starts_afresh(fresh: str) -> None:
    scenario = catalogue.load("several-vms")
    with running() as emulator:
        over = threading.Event()
        statuses: set[int] = set()

        def poll() -> None:
            while not over.is_set():
                statuses.add(ask(emulator.address).status_code)

        guest = threading.Thread(target=poll)
        guest.start()
        for _ in range(30):
            emulator.play(scenario) if fresh == "play" else emulator.reset()
        over.set()
        guest.join()
        assert statuses == {200}


FOREVER = """
title = "For ever"
resources = ["web-0"]
repeat = "forever"
[[step]]
announce = "eviction"
notice = "1s"
takes = "1s"
[[step]]
wait = "1s"
"""


def test_a_long_advance_lets_others_have_their_turn_and_can_be_ended() -> None:
    with running() as emulator:
        emulator.play(reader.read(FOREVER, "forever.toml", name="forever"))
        refusals: list[str] = []

        def advance() -> None:
            try:
                emulator.advance(timedelta(days=300))
            except errors.ConflictError as refusal:
                refusals.append(refusal.message)

        mover = threading.Thread(target=advance)
        mover.start()
        began = emulator.clock.now()
        until(lambda: emulator.clock.now() > began + 60 * MINUTE)
        assert ask(emulator.address).status_code == 200
        assert emulator.look(lambda: emulator.player) is not None
    mover.join(60)
    assert refusals == ["the emulator is ending: start another one"]


def test_an_advance_past_too_many_things_stops_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forenotice.emulator.emulator.MOST_SLICES", 2)
    with running() as emulator:
        emulator.play(reader.read(FOREVER, "forever.toml", name="forever"))
        with pytest.raises(errors.RefusedError, match="more than 200 things happen until then: it is"):
            emulator.advance(timedelta(days=300))
        assert ask(emulator.address).status_code == 200


def test_a_clock_that_is_behind_is_set_right_when_all_begins_anew() -> None:
    with running(virtual=False) as emulator:
        for begin in (lambda: emulator.play(catalogue.load("reboot")), emulator.reset):
            emulator.pause()
            emulator.resume()
            assert emulator.clock.ahead < timedelta(0)
            begin()
            assert emulator.clock.ahead == timedelta(0)


def test_half_a_request_does_not_hold_up_the_end() -> None:
    emulator = Emulator(as_vm="web-0")
    at = emulator.start()
    with socket.create_connection((at.host, at.port), timeout=60) as guest:
        guest.sendall(b"GET /metadata/versions HTTP/1.1\r\nHost: localhost\r\nMetadata: true\r\n\r\nGET /metadata/ver")
        assert guest.recv(12) == b"HTTP/1.1 200"
        began = monotonic()
        emulator.stop()
        assert monotonic() - began < Limits().request_seconds / 2


# The response that a poll would get


def polled(emulator: Emulator) -> tuple[int | None, bytes]:
    connection = HTTPConnection(emulator.address.host, emulator.address.port, timeout=60)
    try:
        connection.request("GET", "/metadata/scheduledevents?api-version=2020-07-01", headers={"Metadata": "true"})
        response = connection.getresponse()
        return response.status, response.read()
    except IncompleteRead as error:
        return response.status, error.partial
    except ConnectionResetError:
        return None, b""
    finally:
        connection.close()


def test_faults_are_previewed_and_not_used_up(emulator: Emulator) -> None:
    for fault in faults.ALL:
        if isinstance(fault.effect, Delay):
            continue
        emulator.reset()
        emulator.announce(restart())
        emulator.switch_on(fault.name, times=1, on="polls")
        emulator.announce(Announcement(kind=Kind.HOST_UPDATE, resources=("web-0",)))
        first, second = (emulator.preview_poll("web-0", versions.NEWEST) for _ in range(2))
        assert first == second
        assert first.faults == fault.name
        assert (first.status, first.body) == polled(emulator), fault.name
        assert len(emulator.requests) == 1
        assert emulator.preview_poll("web-0", versions.NEWEST).faults is None
    emulator.switch_on("slow-first-answer", amount=MINUTE)
    emulator.switch_on("error-503", on="approvals")
    for _ in range(2):
        found = emulator.preview_poll("web-0", versions.NEWEST)
        assert (found.status, found.faults) == (200, "slow-first-answer")
        emulator.advance(60 * MINUTE)
    with pytest.raises(errors.NotFoundError, match="there is no VM 'web-9'"):
        emulator.preview_poll("web-9", versions.NEWEST)


# The clock


def test_a_virtual_clock_stands_until_it_is_moved() -> None:
    clock = EmulatedClock(virtual=True)
    began = clock.now()
    assert began.microsecond == 0
    clock.not_below(began + timedelta(days=1))
    clock.not_below(began)
    for never in (clock.resume, clock.catch_up):
        never()
        assert (clock.stands, clock.now()) == (True, began + timedelta(days=1))


def test_a_clock_goes_on_from_where_it_was_paused_or_moved_to() -> None:
    clock, system = EmulatedClock(), SystemClock()
    assert abs(clock.now() - system.now()) < 5 * SECOND
    clock.pause()
    began = clock.now()
    clock.not_below(began + 60 * MINUTE)
    assert (clock.stands, clock.now()) == (True, began + 60 * MINUTE)
    clock.pause()
    clock.resume()
    assert not clock.stands
    assert timedelta(0) <= clock.now() - began - 60 * MINUTE < 30 * SECOND
    assert clock.ahead > 59 * MINUTE
    clock.not_below(system.now() + timedelta(days=1))
    first = clock.now()
    assert timedelta(days=1) <= first - system.now() + SECOND
    # One that is ahead has nothing to catch up with.
    clock.catch_up()
    assert first <= clock.now() < first + 60 * MINUTE


def test_a_clock_that_is_behind_catches_up() -> None:
    clock, system = EmulatedClock(), SystemClock()
    for go_on in (clock.pause, clock.resume):
        clock.pause()
        while (machine := system.now()) <= clock.now():
            pass
        go_on()
        assert clock.now() < system.now()
        clock.catch_up()
        assert clock.now() >= machine
        assert clock.ahead <= timedelta(0)
