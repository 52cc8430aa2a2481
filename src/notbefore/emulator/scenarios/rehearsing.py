"""A scenario played from end to end before anybody looks on: in no time, with nobody who approves."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from notbefore.core.fleet import Listening
from notbefore.core.operations import Event, Status
from notbefore.core.timing import Timing
from notbefore.emulator.faults import table
from notbefore.emulator.playing import Player
from notbefore.emulator.scenarios.format import FOREVER, Scenario
from notbefore.emulator.stage import Stage

START = datetime(2020, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
EFFORT = 500_000
"""What comes after that is not rehearsed: some scenarios go on for a year, or pile up events."""
ENDED = {f"event.{status.lower()}" for status in Status if not status.live}


@dataclass(slots=True, kw_only=True)
class Life:
    """Of an event. Times are since the start."""

    event: Event
    announced: timedelta
    started: timedelta | None = None
    ended: timedelta
    """Or as far as it was rehearsed."""


@dataclass(slots=True, kw_only=True)
class Trouble:
    """A fault while it was switched on."""

    name: str
    since: timedelta
    until: timedelta | None = None
    """None: it is never switched off."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    lives: list[Life]
    troubles: list[Trouble]


def check(scenario: Scenario) -> None:
    """Refuse what is impossible even if nobody approves anything early."""
    # A scope that may or may not listen is taken to listen: one that does not only skips steps.
    listening = Listening.ALWAYS if scenario.listening is Listening.AUTO else scenario.listening
    _, _, player = _play(scenario, listening)
    for note in player.notes:
        raise scenario.text.complaint((*note.step.path, note.step.act.verb), f"this is impossible: {note.said}")


def rehearse(scenario: Scenario) -> Rehearsal:
    stage, faults, _ = _play(scenario, scenario.listening)
    lives: dict[str, Life] = {}
    for entry in stage.entries:
        if entry.event is None:
            continue
        # Those of one moment are announced a tick apart.
        at = (entry.at - START) // MILLISECOND * MILLISECOND
        if entry.action == "event.scheduled":
            lives[entry.event] = Life(event=stage.event(entry.event), announced=at, ended=faults.now - START)
        elif entry.action == "event.started":
            lives[entry.event].started = at
        elif entry.action in ENDED:
            lives[entry.event].ended = at
    return Rehearsal(list(lives.values()), faults.troubles)


class _Faults:
    """Faults that nobody meets."""

    def __init__(self) -> None:
        self.now = START
        self.troubles: list[Trouble] = []

    def switch_on(
        self,
        name: str,
        *,
        amount: timedelta | None = None,
        times: int | None = None,
        lasts: timedelta | None = None,
        now: datetime,
        **_: object,
    ) -> None:
        self.now = now
        fault = table.find(name)
        extent = fault.accept(amount=amount, times=times, lasts=lasts)
        self.switch_off(name)
        since = now - START
        if times is not None:
            until: timedelta | None = since
        elif fault.effect == table.Holds(since=table.Since.FIRST):
            until = since + extent.amount
        else:
            until = None if extent.lasts is None else since + extent.lasts
        self.troubles.append(Trouble(name=name, since=since, until=until))

    def switch_off(self, name: str) -> None:
        since = self.now - START
        for trouble in self.troubles:
            if trouble.name == name and (trouble.until is None or trouble.until > since):
                trouble.until = since


def _play(scenario: Scenario, listening: Listening) -> tuple[Stage, _Faults, Player]:
    timing, faults = Timing(), _Faults()
    stage = Stage(now=START, timing=timing, kind=scenario.group, listens=listening)
    for vm in scenario.vms:
        stage.add_vm(vm.name, START, update_domain=vm.update_domain)
    player = Player(scenario, stage, faults, timing, START, rounds=1 if scenario.repeat == FOREVER else 0)
    effort = 0
    while effort < EFFORT and (moments := [due for due in (player.due, stage.due) if due is not None]):
        faults.now = min(moments)
        stage.tick(faults.now)
        player.play(faults.now)
        # Events of one VM wait for each other.
        effort += 100 + len(stage.live) ** 2
    return stage, faults, player
