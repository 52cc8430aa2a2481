"""A scenario played from end to end before anybody looks on: in no time, with nobody who approves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from forenotice.core.fleet import Listening
from forenotice.core.operations import Event, Status
from forenotice.core.timing import Timing
from forenotice.emulator.faults import table
from forenotice.emulator.playing import Chance, Player
from forenotice.emulator.scenarios.format import FOREVER, Choose, Scenario, Step, Wait
from forenotice.emulator.scenarios.positions import Path
from forenotice.emulator.stage import Stage

START = datetime(2020, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
EFFORT = 500_000
"""Less than a second. What comes after that is not rehearsed: some scenarios go on for a year, or pile up events."""
A_PLAY, A_MOMENT, A_STEP, AN_EVENT, A_VM = 500, 60, 60, 20, 1
"""What each takes of it: an event, and a VM that it names, in every moment that it is there."""
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


def check(scenario: Scenario) -> Scenario:
    """Refuse what is impossible even if nobody approves anything early, whatever chance has in store."""
    # A scope that may or may not listen is taken to listen: one that does not only skips steps.
    listening = Listening.ALWAYS if scenario.listening is Listening.AUTO else scenario.listening
    left = EFFORT
    for chance in _chances(scenario):
        _, _, player, left = _play(scenario, listening, chance, left)
        for note in player.notes:
            impossible = "impossible" if chance is None else "impossible at times, as chance has it"
            raise scenario.text.complaint((*note.step.path, note.step.act.verb), f"this is {impossible}: {note.said}")
        if left <= 0:
            return replace(scenario, unrehearsed=player.step)
    return scenario


def rehearse(scenario: Scenario) -> Rehearsal:
    stage, faults, _, _ = _play(scenario, scenario.listening)
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


@dataclass(slots=True)
class _Turns:
    """A chance that lets everything have its turn, as the plays go on."""

    share: float
    """Of the difference that random waits take: none of it, or all."""
    turns: dict[Path, int] = field(default_factory=dict)

    def random(self) -> float:
        return self.share

    def sample(self, population: Sequence[Step], k: int) -> list[Step]:
        path = population[0].path
        turn = self.turns[path] = self.turns.get(path, -1) + 1
        return [population[(turn + index) % len(population)] for index in range(k)]


def _chances(scenario: Scenario) -> Iterator[Chance | None]:
    """Its own, and then one after the other such that every choice is made, with the shortest waits and the longest."""
    yield None
    plays = max(_turns(step) for step in scenario.steps)
    waits = any(_is_random(step) for step in scenario.steps)
    for share in (0.0, 1.0) if waits else (0.0,) if plays > 1 else ():
        turns = _Turns(share)
        for _ in range(plays):
            yield turns


def _turns(step: Step) -> int:
    """How often it is played until everything in it had its turn."""
    most = max((_turns(each) for each in step.steps), default=1)
    return most * len(step.steps) if isinstance(step.act, Choose) else most


def _is_random(step: Step) -> bool:
    waits = isinstance(step.act, Wait) and step.act.wait.least < step.act.wait.most
    return waits or any(_is_random(each) for each in step.steps)


def _play(
    scenario: Scenario, listening: Listening, chance: Chance | None = None, effort: int = EFFORT
) -> tuple[Stage, _Faults, Player, int]:
    """Also what is left of the effort; none: it was not played to its end."""
    timing, faults = Timing(), _Faults()
    stage = Stage(now=START, timing=timing, kind=scenario.group, listens=listening)
    for vm in scenario.vms:
        stage.add_vm(vm.name, START, update_domain=vm.update_domain)
    rounds = 1 if scenario.repeat == FOREVER else 0
    player = Player(scenario, stage, faults, timing, START, rounds=rounds, chance=chance)
    played = 0
    effort -= A_PLAY + A_STEP * len(scenario.vms)
    while moments := [due for due in (player.due, stage.due) if due is not None]:
        faults.now = min(moments)
        stage.tick(faults.now)
        player.play(faults.now)
        effort -= A_MOMENT + A_STEP * (player.played - played)
        effort -= sum(AN_EVENT + A_VM * len(event.resources) for event in stage.live)
        played = player.played
        if effort <= 0:
            break
    return stage, faults, player, effort
