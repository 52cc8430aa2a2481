"""What a player does at which moment, whoever approves or not, at any speed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from forenotice.core.operations import Event, Status
from forenotice.core.timing import Timing
from forenotice.emulator.player import Player
from forenotice.emulator.scenarios import reader
from forenotice.emulator.simulation import Simulation

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HEAD = 'title = "t"\nresources = ["web-0"]\n'
UPDATE = '[[step]]\nannounce = "host-update"\nid = "update"\nnotice = "15m"\ntakes = "10m"\n'


class Faults:
    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any]]] = []

    def switch_on(self, name: str, **details: Any) -> None:
        self.done.append((name, {key: value for key, value in details.items() if value is not None}))

    def switch_off(self, name: str) -> None:
        self.done.append((f"no {name}", {}))


class Play:
    """A player and its simulation, moved on together."""

    def __init__(self, text: str, speed: float = 1) -> None:
        scenario = reader.read(text if text.startswith("title") else HEAD + text, "my.toml")
        timing = Timing(speed=speed)
        self.now = START
        self.simulation = Simulation(now=START, timing=timing, kind=scenario.group, listens=scenario.listening)
        for vm in scenario.vms:
            self.simulation.add_vm(vm.name, START, update_domain=vm.update_domain)
        self.faults = Faults()
        self.player = Player(scenario, self.simulation, self.faults, timing, START)

    def to(self, moment: datetime) -> None:
        while (due := self.due) is not None and due <= moment:
            self.now = due
            self.simulation.tick(due)
            self.player.play(due)
        self.now = moment

    @property
    def due(self) -> datetime | None:
        return min((due for due in (self.player.due, self.simulation.due) if due is not None), default=None)

    def approve(self, event: Event) -> None:
        self.simulation.approve(event.id, "web-0", self.now)
        self.player.play(self.now)

    @property
    def events(self) -> list[Event]:
        return self.simulation.live

    @property
    def notes(self) -> list[str]:
        return [note.message for note in self.player.deviations]

    def announcements(self) -> Iterator[timedelta]:
        return (entry.at - START for entry in self.simulation.entries if entry.action == "event.scheduled")


WAITING = '[[step]]\nwait_for = "update"\nuntil = "{}"\n'
CANCEL = '[[step]]\ncancel = "update"\n'
RESET = '[[step]]\nfault = "reset"\n'


def wait(minutes: int) -> str:
    return f'[[step]]\nwait = "{minutes}m"\n'


def test_it_is_due_at_its_start_and_then_when_its_wait_is_over() -> None:
    play = Play(f'{UPDATE}description = "Now."\nduration = 3\n{wait(8)}{CANCEL}')
    assert (play.player.due, play.player.waiting_for) == (START, "its start")
    play.player.play(START)
    (event,) = play.events
    assert (event.type, event.description, event.duration) == ("Freeze", "Now.", 3)
    assert (event.not_before, event.resources) == (START + 15 * MINUTE, ("web-0",))
    assert play.player.labels == {"update": event.id}
    assert (play.player.due, play.player.waiting_for) == (START + 8 * MINUTE, "its next step at 12:08:00")
    play.player.play(START + 7 * MINUTE)
    assert play.events == [event]
    play.player.play(START + 8 * MINUTE)
    assert (play.events, play.player.done, play.player.due, play.notes) == ([], True, None, [])
    assert play.player.waiting_for == "nothing: all is played"


@pytest.mark.parametrize(
    ("until", "approved", "seen"),
    [
        *(("approved", True, 5), ("approved", False, 15), ("started", True, 5)),
        *(("started", False, 15), ("gone", True, 15), ("gone", False, 25)),
    ],
)
def test_it_waits_until_an_event_has_come_so_far_or_further(until: str, approved: bool, seen: int) -> None:
    play = Play(UPDATE + WAITING.format(until) + RESET)
    play.to(START + 5 * MINUTE)
    assert (play.player.due, play.player.waiting_for) == (None, f"Freeze of web-0 to be {until}")
    if approved:
        play.approve(play.events[0])
    play.to(START + seen * MINUTE - timedelta(seconds=1))
    if seen > 5:
        assert play.faults.done == []
    play.to(START + 30 * MINUTE)
    assert play.faults.done == [("reset", {"now": START + seen * MINUTE})]


def test_it_waits_at_most_so_long_and_approves_as_an_operator() -> None:
    play = Play(f'{UPDATE}{WAITING.format("approved")}at_most = "2m"\n[[step]]\napprove = "update"\n')
    play.to(START)
    assert play.player.waiting_for == "Freeze of web-0 to be approved, until 12:02:00 at the latest"
    play.to(START + 2 * MINUTE)
    (event,) = play.events
    assert (event.status, event.approved_by, play.player.done) == (Status.STARTED, "scenario", True)


def test_a_step_that_comes_too_late_is_left_out_and_noted() -> None:
    play = Play(f"{UPDATE}{wait(8)}{CANCEL}{RESET}")
    play.to(START + MINUTE)
    play.approve(play.events[0])
    play.to(START + 8 * MINUTE)
    assert [event.status for event in play.events] == [Status.STARTED]
    (note,) = play.player.deviations
    assert (note.at, note.step.path) == (START + 8 * MINUTE, ("step", 2))
    assert note.message == "'update' is Started by then: it is too late to cancel it"
    assert [name for name, _ in play.faults.done] == ["reset"]


def test_what_can_never_come_is_not_waited_for() -> None:
    play = Play(UPDATE + CANCEL + WAITING.format("started") + WAITING.format("approved"))
    play.to(START)
    assert play.player.done
    assert play.notes == [
        "'update' is cancelled by then: it does not start any more",
        "'update' is Canceled by then: nobody can approve it any more",
    ]
    play = Play(
        'title = "t"\nvms = ["a", { name = "b", update_domain = 1 }]\n'
        '[[step]]\nannounce = "restart"\nid = "update"\n' + CANCEL + WAITING.format("gone")
    )
    play.to(START)
    assert play.player.done
    assert "different update domains" in play.notes[0]
    assert play.notes[1:] == ["'update' was not announced"] * 2


def test_waits_do_not_add_up_when_it_is_called_late() -> None:
    play = Play(f"repeat = 3\n{UPDATE}{wait(1)}{CANCEL}")
    play.player.play(START + timedelta(seconds=1))
    assert play.player.due == START + MINUTE
    play.player.play(START + timedelta(seconds=125))
    assert play.player.due == START + 3 * MINUTE
    assert len(list(play.announcements())) == 3


def test_a_step_comes_at_its_time_or_at_once_if_that_has_passed() -> None:
    play = Play(f'{wait(1)}{RESET}at = "3m"\n{wait(1)}')
    play.to(START + 10 * MINUTE)
    assert play.faults.done == [("reset", {"now": START + 3 * MINUTE})]
    assert (play.player.done, play.notes) == (True, [])
    play = Play(f'{wait(3)}{RESET}at = "1m"\n{wait(1)}')
    play.to(START + 3 * MINUTE)
    assert play.faults.done == [("reset", {"now": START + 3 * MINUTE})]
    assert play.notes == ["it came 0:02:00 later than it says"]
    assert play.player.due == START + 4 * MINUTE


def test_speed_divides_the_durations_of_faults_and_waits() -> None:
    second = timedelta(seconds=1)
    play = Play(
        '[[step]]\nfault = "latency"\namount = "2s"\nlasts = "1m"\ntimes = 3\non = "polls"\n'
        '[[step]]\nclear = "latency"\n[[step]]\nfrozen = "5s"\n',
        speed=10,
    )
    play.to(START)
    assert play.faults.done == [
        ("latency", {"amount": 0.2 * second, "lasts": 6 * second, "times": 3, "on": "polls", "now": START}),
        ("no latency", {}),
        ("frozen", {"amount": 0.5 * second, "now": START}),
    ]
    play = Play(f'{UPDATE}{wait(1)}{WAITING.format("gone")}at = "2m"\nat_most = "3m"\n', speed=60)
    for now, due in ((0, 1), (1, 2), (2, 5)):
        play.to(START + now * second)
        assert play.player.due == START + due * second
    assert play.events[0].not_before == START + 15 * second


def test_steps_are_repeated() -> None:
    play = Play(
        'repeat = 2\n[[step]]\nrepeat = 3\n[[step.step]]\nannounce = "restart"\n[[step.step]]\nwait = "1m"\n' + wait(10)
    )
    play.to(START + 60 * MINUTE)
    assert list(play.announcements()) == [n * MINUTE for n in (0, 1, 2, 13, 14, 15)]
    assert play.player.done
    # A round that takes no time is followed by a rest.
    for times in ('"forever"', 10_000):
        play = Play(f"repeat = {times}\n{RESET}")
        play.to(START + timedelta(seconds=3))
        assert [details["now"] - START for _, details in play.faults.done] == [timedelta(seconds=n) for n in range(4)]
        assert not play.player.done


RANDOM = """\
repeat = 20
[[step]]
choose = 2
[[step.step]]
fault = "reset"
[[step.step]]
fault = "latency"
[[step.step]]
fault = "empty-body"
[[step]]
wait = ["1m", "5m"]
"""


def test_chance_comes_from_the_seed() -> None:
    def played(seed: int) -> list[tuple[str, timedelta]]:
        play = Play(f"seed = {seed}\n{RANDOM}")
        play.to(START + 200 * MINUTE)
        assert play.player.done
        return [(name, details["now"] - START) for name, details in play.faults.done]

    first = played(1)
    assert played(1) == first != played(2)
    rounds = list(zip(first[::2], first[1::2], strict=True))
    pairs = {(one, other) for (one, _), (other, _) in rounds}
    assert pairs == {("reset", "latency"), ("reset", "empty-body"), ("latency", "empty-body")}
    waits = [after - before for (_, before), (_, after) in pairwise(one for one, _ in rounds)]
    assert all(MINUTE <= wait <= 5 * MINUTE for wait in waits)
    assert len(set(waits)) == len(waits)
