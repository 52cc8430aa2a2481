"""Pictures of scenarios, drawn from a rehearsal: a lane for each event and fault, above a scale of time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from forenotice.emulator.scenarios import catalogue as scenarios
from forenotice.emulator.scenarios import rehearsing
from forenotice.emulator.scenarios.format import FOREVER, Scenario
from forenotice.emulator.scenarios.rehearsing import Life, Rehearsal, Trouble

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
    rehearsal = rehearsing.rehearse(scenario)
    types = max((len(life.event.type) for life in rehearsal.lives), default=0)
    names = [*(_name(life, types) for life in rehearsal.lives), *(trouble.name for trouble in rehearsal.troubles)]
    left = max((len(INDENT + name) for name in names), default=0) + 2
    end = _end(rehearsal)
    scale = Scale.fitting(end, WIDTH - left - len(" 00 min"))
    bars = [
        *(Bar(_name(life, types), scale.column(life.announced), _life(life, scale)) for life in rehearsal.lives),
        *(Bar(each.name, scale.column(each.since), _trouble(each, scale, end)) for each in rehearsal.troubles),
    ]
    lanes = _lanes(bars)
    drawn = [f"{INDENT}{name}".ljust(left) + line for name, line in lanes[:MOST_LANES]]
    if len(lanes) > MOST_LANES:
        drawn.append(f"{INDENT}and {len(lanes) - MOST_LANES} lanes more")
    drawn += [" " * left + line for line in scale.marked(end)]
    return [*drawn, *([f"{INDENT}and so on, for ever"] if scenario.repeat == FOREVER else [])]


def _end(rehearsal: Rehearsal) -> timedelta:
    ends = [life.ended for life in rehearsal.lives]
    ends += [trouble.since if trouble.until is None else trouble.until for trouble in rehearsal.troubles]
    return max([*ends, timedelta(milliseconds=1)])


def _name(life: Life, types: int) -> str:
    first, *more = life.event.resources
    names = ", ".join([first, *more])
    if len(names) > LONGEST_NAMES:
        names = f"{first[:LONGEST_NAMES]} and {len(more)} more" if more else f"{first[: LONGEST_NAMES - 1]}…"
    return f"{life.event.type:{types}}  {names}"


def _life(life: Life, scale: Scale) -> str:
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


def _trouble(trouble: Trouble, scale: Scale, end: timedelta) -> str:
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
