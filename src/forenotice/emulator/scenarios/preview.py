"""What happens in a scenario if nobody approves, computed by playing it in no time; and a timeline of it as text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Unpack

import msgspec

from forenotice.core.fleet import Listening
from forenotice.core.operations import Event, Status
from forenotice.core.timing import Timing
from forenotice.emulator import faults
from forenotice.emulator.faults import FaultOptions
from forenotice.emulator.player import Player, RandomSource
from forenotice.emulator.scenarios.format import FOREVER, ChooseAction, Scenario, Step, WaitAction
from forenotice.emulator.simulation import Simulation
from forenotice.toml import Path

START = datetime(2020, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
EFFORT = 500_000
"""Less than a second. What comes after that is not checked: some scenarios go on for a year, or pile up events."""
A_PLAY, A_MOMENT, A_STEP, AN_EVENT, A_VM = 500, 60, 60, 20, 1
"""What each costs of it: an event, and a VM that it names, in every moment that it is live."""
ENDED = {f"event.{status.lower()}" for status in Status if not status.live}


@dataclass(slots=True, kw_only=True)
class PlannedEvent:
    """Times are since the start."""

    event: Event
    announced: timedelta
    started: timedelta | None = None
    ended: timedelta
    """Or as far as the preview goes."""


@dataclass(slots=True, kw_only=True)
class PlannedFault:
    name: str
    since: timedelta
    until: timedelta | None = None
    """None: it is never switched off."""


@dataclass(frozen=True, slots=True)
class Preview:
    events: list[PlannedEvent]
    faults: list[PlannedFault]

    @property
    def end(self) -> timedelta:
        faults = (fault.since if fault.until is None else fault.until for fault in self.faults)
        return max([MILLISECOND, *(event.ended for event in self.events), *faults])


def check(scenario: Scenario) -> Scenario:
    """Refuse steps that are impossible even if nobody approves anything early, whatever chance has in store."""
    # A scope that may or may not listen is taken to listen: one that does not only skips steps.
    listening = Listening.ALWAYS if scenario.listening is Listening.AUTO else scenario.listening
    left = EFFORT
    for chance in _chances(scenario):
        _, _, player, left = _play(scenario, listening, chance, left)
        for found in player.deviations:
            at_times = "" if chance is None else " at times, as chance has it"
            path = (*found.step.path, found.step.action.verb)
            raise scenario.text.complaint(path, f"this is impossible{at_times}: {found.message}")
        if left <= 0:
            return msgspec.structs.replace(scenario, unchecked_from=player.step)
    return scenario


def compute(scenario: Scenario) -> Preview:
    simulation, switched, _, _ = _play(scenario, scenario.listening)
    events: dict[str, PlannedEvent] = {}
    for entry in simulation.entries:
        if entry.event is None:
            continue
        # Events of one moment are announced a tick apart.
        at = (entry.at - START) // MILLISECOND * MILLISECOND
        if entry.action == "event.scheduled":
            event = simulation.event(entry.event)
            events[entry.event] = PlannedEvent(event=event, announced=at, ended=switched.now - START)
        elif entry.action == "event.started":
            events[entry.event].started = at
        elif entry.action in ENDED:
            events[entry.event].ended = at
    return Preview(list(events.values()), switched.planned)


class _Faults:
    """Faults that no request meets."""

    def __init__(self) -> None:
        self.now = START
        self.planned: list[PlannedFault] = []

    def switch_on(self, name: str, *, now: datetime, **options: Unpack[FaultOptions]) -> None:
        self.now = now
        fault = faults.find(name)
        amount, lasts = fault.accept(**options)
        self.switch_off(name)
        since = now - START
        if options.get("times") is not None:
            lasts = timedelta(0)
        elif fault.effect == faults.Delay(faults.Since.FIRST):
            lasts = amount
        self.planned.append(PlannedFault(name=name, since=since, until=None if lasts is None else since + lasts))

    def switch_off(self, name: str) -> None:
        since = self.now - START
        for fault in self.planned:
            if fault.name == name and (fault.until is None or fault.until > since):
                fault.until = since


@dataclass(slots=True)
class _EveryChoice:
    """Chooses everything in turn, play by play."""

    share: float
    """Of the difference that random waits take: none of it, or all."""
    turns: dict[Path, int] = field(default_factory=dict)

    def random(self) -> float:
        return self.share

    def sample(self, population: Sequence[Step], k: int) -> list[Step]:
        path = population[0].path
        turn = self.turns[path] = self.turns.get(path, -1) + 1
        return [population[(turn + index) % len(population)] for index in range(k)]


def _chances(scenario: Scenario) -> Iterator[RandomSource | None]:
    """Its own, and then such that every choice is made, with the shortest waits and the longest."""
    yield None
    plays = max(_turns(step) for step in scenario.steps)
    waits = any(_is_random(step) for step in scenario.steps)
    for share in (0.0, 1.0) if waits else (0.0,) if plays > 1 else ():
        choice = _EveryChoice(share)
        for _ in range(plays):
            yield choice


def _turns(step: Step) -> int:
    """How often it is played until everything in it had its turn."""
    most = max((_turns(each) for each in step.steps), default=1)
    return most * len(step.steps) if isinstance(step.action, ChooseAction) else most


def _is_random(step: Step) -> bool:
    waits = isinstance(step.action, WaitAction) and step.action.wait.least < step.action.wait.most
    return waits or any(_is_random(each) for each in step.steps)


def _play(
    scenario: Scenario, listening: Listening, chance: RandomSource | None = None, effort: int = EFFORT
) -> tuple[Simulation, _Faults, Player, int]:
    """Also what is left of the effort; none: it was not played to its end."""
    timing, switched = Timing(), _Faults()
    simulation = Simulation(now=START, timing=timing, kind=scenario.group, listens=listening)
    for vm in scenario.vms:
        simulation.add_vm(vm.name, START, update_domain=vm.update_domain)
    rounds = 1 if scenario.repeat == FOREVER else 0
    player = Player(scenario, simulation, switched, timing, START, rounds=rounds, chance=chance)
    played = 0
    effort -= A_PLAY + A_STEP * len(scenario.vms)
    while moments := [due for due in (player.due, simulation.due) if due is not None]:
        switched.now = min(moments)
        simulation.tick(switched.now)
        player.play(switched.now)
        effort -= A_MOMENT + A_STEP * (player.played - played)
        effort -= sum(AN_EVENT + A_VM * len(event.resources) for event in simulation.live)
        played = player.played
        if effort <= 0:
            break
    return simulation, switched, player, effort


# As text: a lane for each event and fault, above a scale of time

WIDTH = 100
INDENT = "  "
LONGEST_NAMES = 26
MOST_LANES = 20
FEWEST_APART = 8
"""Columns between two marks of the scale."""
UNITS = (
    (timedelta(milliseconds=1), "ms", (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    (timedelta(seconds=1), "s", (1, 2, 5, 10, 15, 30)),
    (timedelta(minutes=1), "min", (1, 2, 5, 10, 15, 30)),
    (timedelta(hours=1), "h", (1, 2, 3, 6, 12)),
    (timedelta(days=1), "d", (1, 2, 5, *(n * 10**power for power in range(1, 8) for n in (1, 2, 5)))),
)
"""Units of the scale, and how many of each may lie between two marks."""
LEGEND = (
    "├── Scheduled ──┾━━ Started ━━┥ done   ──✕ cancelled   ▒ fault",
    "Nobody approves in these timelines: an approval starts an event before its NotBefore.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    step: timedelta
    """From one mark to the next."""
    columns: int
    """For that."""
    number: int
    unit: str

    @classmethod
    def fitting(cls, end: timedelta, room: int) -> "Scale":
        steps = ((number * unit, number, name) for unit, name, numbers in UNITS for number in numbers)
        step, number, name = next(each for each in steps if each[0] / end * room >= FEWEST_APART)
        return cls(step=step, columns=int(min(step / end, 1) * room), number=number, unit=name)

    def column(self, moment: timedelta) -> int:
        return round(moment / self.step * self.columns)

    def marked(self, end: timedelta) -> tuple[str, str]:
        marks = range(int(end / self.step) + 1)
        labels = "".join(f"{mark * self.number:<{self.columns}}" for mark in marks)
        return "".join("╵".ljust(self.columns) for _ in marks).rstrip(), f"{labels.rstrip()} {self.unit}"


def timeline(scenario: Scenario) -> list[str]:
    preview = compute(scenario)
    types = max((len(event.event.type) for event in preview.events), default=0)
    names = [*(_name(event, types) for event in preview.events), *(fault.name for fault in preview.faults)]
    left = max((len(INDENT + name) for name in names), default=0) + 2
    end = preview.end
    scale = Scale.fitting(end, WIDTH - left - len(" 00 min"))
    bars = [
        *((scale.column(event.announced), _event_bar(event, scale)) for event in preview.events),
        *((scale.column(fault.since), _fault_bar(fault, scale, end)) for fault in preview.faults),
    ]
    lanes = _lanes(zip(names, bars, strict=True))
    drawn = [f"{INDENT}{name}".ljust(left) + line for name, line in lanes[:MOST_LANES]]
    if len(lanes) > MOST_LANES:
        drawn.append(f"{INDENT}and {len(lanes) - MOST_LANES} lanes more")
    drawn += [" " * left + line for line in scale.marked(end)]
    return [*drawn, *([f"{INDENT}and so on, for ever"] if scenario.repeat == FOREVER else [])]


def _name(event: PlannedEvent, types: int) -> str:
    first, *more = event.event.resources
    names = ", ".join([first, *more])
    if len(names) > LONGEST_NAMES:
        names = f"{first[:LONGEST_NAMES]} and {len(more)} more" if more else f"{first[: LONGEST_NAMES - 1]}…"
    return f"{event.event.type:{types}}  {names}"


def _event_bar(event: PlannedEvent, scale: Scale) -> str:
    announced, ended = scale.column(event.announced), scale.column(event.ended)
    if event.started is None:
        return "├" + _line("─", ended - announced - 1, "Scheduled") + "✕" if ended > announced else "✕"
    started = scale.column(event.started)
    before = ""
    if event.started > event.announced:
        started = max(started, announced + 1)
        before = "├" + _line("─", started - announced - 1, "Scheduled")
    return before + ("┾" if before else "┝") + _line("━", max(ended - started - 1, 0), "Started") + "┥"


def _line(stroke: str, length: int, word: str) -> str:
    return f" {word} ".center(length, stroke) if length >= len(word) + 4 else stroke * length


def _fault_bar(fault: PlannedFault, scale: Scale, end: timedelta) -> str:
    until = end if fault.until is None else fault.until
    return "▒" * max(1, scale.column(until) - scale.column(fault.since))


def _lanes(bars: Iterable[tuple[str, tuple[int, str]]]) -> list[tuple[str, str]]:
    """Bars of one name share a lane where they do not overlap; they may touch."""
    lanes: list[tuple[str, str]] = []
    for lane, (column, text) in bars:
        for index, (name, line) in enumerate(lanes):
            touches = line[column:] == "┥" and text.startswith("├")
            if name == lane and (touches or len(line) <= column):
                joined = f"┽{text[1:]}" if touches else text
                lanes[index] = (name, line[:column].ljust(column) + joined)
                break
        else:
            lanes.append((lane, " " * column + text))
    return lanes
