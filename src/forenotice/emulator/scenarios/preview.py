"""What happens in a scenario if nobody approves, computed by playing it in no time; and a timeline of it as text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Unpack

from forenotice.core.fleet import Listening
from forenotice.core.operations import Event, Status
from forenotice.core.timing import Timing
from forenotice.emulator import faults
from forenotice.emulator.faults import FaultOptions
from forenotice.emulator.player import Chance, Player
from forenotice.emulator.scenarios import catalogue as scenarios
from forenotice.emulator.scenarios.format import FOREVER, ChooseAction, Scenario, Step, WaitAction
from forenotice.emulator.scenarios.text import Path
from forenotice.emulator.simulation import Simulation

START = datetime(2020, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
EFFORT = 500_000
"""Less than a second. What comes after that is not rehearsed: some scenarios go on for a year, or pile up events."""
A_PLAY, A_MOMENT, A_STEP, AN_EVENT, A_VM = 500, 60, 60, 20, 1
"""What each takes of it: an event, and a VM that it names, in every moment that it is there."""
ENDED = {f"event.{status.lower()}" for status in Status if not status.live}


@dataclass(slots=True, kw_only=True)
class PlannedEvent:
    """Of an event. Times are since the start."""

    event: Event
    announced: timedelta
    started: timedelta | None = None
    ended: timedelta
    """Or as far as it was rehearsed."""


@dataclass(slots=True, kw_only=True)
class PlannedFault:
    """A fault while it was switched on."""

    name: str
    since: timedelta
    until: timedelta | None = None
    """None: it is never switched off."""


@dataclass(frozen=True, slots=True)
class Preview:
    events: list[PlannedEvent]
    faults: list[PlannedFault]


def check(scenario: Scenario) -> Scenario:
    """Refuse what is impossible even if nobody approves anything early, whatever chance has in store."""
    # A scope that may or may not listen is taken to listen: one that does not only skips steps.
    listening = Listening.ALWAYS if scenario.listening is Listening.AUTO else scenario.listening
    left = EFFORT
    for chance in _chances(scenario):
        _, _, player, left = _play(scenario, listening, chance, left)
        for note in player.deviations:
            impossible = "impossible" if chance is None else "impossible at times, as chance has it"
            raise scenario.text.complaint(
                (*note.step.path, note.step.action.verb), f"this is {impossible}: {note.said}"
            )
        if left <= 0:
            return replace(scenario, unchecked_from=player.step)
    return scenario


def compute(scenario: Scenario) -> Preview:
    simulation, faults, _, _ = _play(scenario, scenario.listening)
    lives: dict[str, PlannedEvent] = {}
    for entry in simulation.entries:
        if entry.event is None:
            continue
        # Those of one moment are announced a tick apart.
        at = (entry.at - START) // MILLISECOND * MILLISECOND
        if entry.action == "event.scheduled":
            lives[entry.event] = PlannedEvent(
                event=simulation.event(entry.event), announced=at, ended=faults.now - START
            )
        elif entry.action == "event.started":
            lives[entry.event].started = at
        elif entry.action in ENDED:
            lives[entry.event].ended = at
    return Preview(list(lives.values()), faults.faults)


class _Faults:
    """Faults that nobody meets."""

    def __init__(self) -> None:
        self.now = START
        self.faults: list[PlannedFault] = []

    def switch_on(self, name: str, *, now: datetime, **options: Unpack[FaultOptions]) -> None:
        self.now = now
        fault = faults.find(name)
        extent = fault.accept(**options)
        self.switch_off(name)
        since = now - START
        if options.get("times") is not None:
            until: timedelta | None = since
        elif fault.effect == faults.Delay(since=faults.Since.FIRST):
            until = since + extent.amount
        else:
            until = None if extent.lasts is None else since + extent.lasts
        self.faults.append(PlannedFault(name=name, since=since, until=until))

    def switch_off(self, name: str) -> None:
        since = self.now - START
        for trouble in self.faults:
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
    return most * len(step.steps) if isinstance(step.action, ChooseAction) else most


def _is_random(step: Step) -> bool:
    waits = isinstance(step.action, WaitAction) and step.action.wait.least < step.action.wait.most
    return waits or any(_is_random(each) for each in step.steps)


def _play(
    scenario: Scenario, listening: Listening, chance: Chance | None = None, effort: int = EFFORT
) -> tuple[Simulation, _Faults, Player, int]:
    """Also what is left of the effort; none: it was not played to its end."""
    timing, faults = Timing(), _Faults()
    simulation = Simulation(now=START, timing=timing, kind=scenario.group, listens=listening)
    for vm in scenario.vms:
        simulation.add_vm(vm.name, START, update_domain=vm.update_domain)
    rounds = 1 if scenario.repeat == FOREVER else 0
    player = Player(scenario, simulation, faults, timing, START, rounds=rounds, chance=chance)
    played = 0
    effort -= A_PLAY + A_STEP * len(scenario.vms)
    while moments := [due for due in (player.due, simulation.due) if due is not None]:
        faults.now = min(moments)
        simulation.tick(faults.now)
        player.play(faults.now)
        effort -= A_MOMENT + A_STEP * (player.played - played)
        effort -= sum(AN_EVENT + A_VM * len(event.resources) for event in simulation.live)
        played = player.played
        if effort <= 0:
            break
    return simulation, faults, player, effort


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
"""What times are written in, and how many of each may lie between two marks."""

SCHEDULED, STARTED = "Scheduled", "Started"
LEGEND = (
    "├── Scheduled ──┾━━ Started ━━┥ done   ──✕ cancelled   ▒ fault",
    "Nobody approves in these pictures: an approval starts an event before its NotBefore.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    step: timedelta
    """From one mark to the next."""
    columns: int
    """For that."""
    number: int
    unit: str
    """What is written at the marks."""

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


@dataclass(frozen=True, slots=True)
class Bar:
    lane: str
    column: int
    text: str


def catalogue() -> str:
    """Every scenario that there is, with its picture."""
    blocks: list[tuple[str, ...]] = [LEGEND]
    for name in scenarios.names():
        scenario = scenarios.load(name)
        blocks.append((f"{name} ({scenario.timing})", INDENT + scenario.description, *timeline(scenario)))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def described(scenario: Scenario) -> dict[str, object]:
    """For machines, with its picture."""
    return {
        "name": scenario.name,
        "title": scenario.title,
        "description": scenario.description,
        "timing": str(scenario.timing),
        "resources": list(scenario.resources),
        "picture": timeline(scenario),
    }


def timeline(scenario: Scenario) -> list[str]:
    rehearsal = compute(scenario)
    types = max((len(life.event.type) for life in rehearsal.events), default=0)
    names = [*(_name(life, types) for life in rehearsal.events), *(trouble.name for trouble in rehearsal.faults)]
    left = max((len(INDENT + name) for name in names), default=0) + 2
    end = _end(rehearsal)
    scale = Scale.fitting(end, WIDTH - left - len(" 00 min"))
    bars = [
        *(Bar(_name(life, types), scale.column(life.announced), _life(life, scale)) for life in rehearsal.events),
        *(Bar(each.name, scale.column(each.since), _trouble(each, scale, end)) for each in rehearsal.faults),
    ]
    lanes = _lanes(bars)
    drawn = [f"{INDENT}{name}".ljust(left) + line for name, line in lanes[:MOST_LANES]]
    if len(lanes) > MOST_LANES:
        drawn.append(f"{INDENT}and {len(lanes) - MOST_LANES} lanes more")
    drawn += [" " * left + line for line in scale.marked(end)]
    return [*drawn, *([f"{INDENT}and so on, for ever"] if scenario.repeat == FOREVER else [])]


def _end(rehearsal: Preview) -> timedelta:
    ends = [life.ended for life in rehearsal.events]
    ends += [trouble.since if trouble.until is None else trouble.until for trouble in rehearsal.faults]
    return max([*ends, timedelta(milliseconds=1)])


def _name(life: PlannedEvent, types: int) -> str:
    first, *more = life.event.resources
    names = ", ".join([first, *more])
    if len(names) > LONGEST_NAMES:
        names = f"{first[:LONGEST_NAMES]} and {len(more)} more" if more else f"{first[: LONGEST_NAMES - 1]}…"
    return f"{life.event.type:{types}}  {names}"


def _life(life: PlannedEvent, scale: Scale) -> str:
    announced, ended = scale.column(life.announced), scale.column(life.ended)
    if life.started is None:
        return "├" + _line("─", ended - announced - 1, SCHEDULED) + "✕" if ended > announced else "✕"
    started = scale.column(life.started)
    before = ""
    if life.started > life.announced:
        started = max(started, announced + 1)
        before = "├" + _line("─", started - announced - 1, SCHEDULED)
    return before + ("┾" if before else "┝") + _line("━", max(ended - started - 1, 0), STARTED) + "┥"


def _line(stroke: str, length: int, word: str) -> str:
    return f" {word} ".center(length, stroke) if length >= len(word) + 4 else stroke * length


def _trouble(trouble: PlannedFault, scale: Scale, end: timedelta) -> str:
    until = end if trouble.until is None else trouble.until
    return "▒" * max(1, scale.column(until) - scale.column(trouble.since))


def _lanes(bars: Iterable[Bar]) -> list[tuple[str, str]]:
    """Bars of one name share a lane where they do not overlap; they may touch."""
    lanes: list[tuple[str, str]] = []
    for bar in bars:
        for index, (name, line) in enumerate(lanes):
            touches = line[bar.column :] == "┥" and bar.text.startswith("├")
            if name == bar.lane and (touches or len(line) <= bar.column):
                text = f"┽{bar.text[1:]}" if touches else bar.text
                lanes[index] = (name, line[: bar.column].ljust(bar.column) + text)
                break
        else:
            lanes.append((bar.lane, " " * bar.column + bar.text))
    return lanes
