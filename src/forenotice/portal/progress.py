"""How far a rollout is, turn by turn, as numbers and words that a template only has to write down. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from forenotice.core import fleet

MOST_TURNS = 20
"""Told one by one; those that are over are one line then, and those that come later another."""
LOOKS = ("done", "failed", "under_way", "waiting", "skipped")
"""In the order in which a bar has them."""
LEAST_RUN = 3
"""So many numbers that follow each other are told by the first and the last."""

Counts = Mapping[str, int]
Turn = Mapping[str, Any]
"""As the service shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    parts: Sequence[tuple[float, float, str]]
    """Place and width in percent, and what it is."""
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    id: str
    title: str
    detail: str
    hosts: int
    meter: Meter


def meter(counts: Counts) -> Meter:
    hosts = sum(counts.values())
    parts: list[tuple[float, float, str]] = []
    before = 0
    for look in LOOKS:
        if counts[look] and look != "waiting":
            left, right = before / hosts * 100, (before + counts[look]) / hosts * 100
            parts.append((round(left, 2), round(right - left, 2), look))
        before += counts[look]
    others = [f"{counts[look]} {look.replace('_', ' ')}" for look in ("under_way", "failed", "skipped") if counts[look]]
    return Meter(parts=parts, told=", ".join([f"{counts['done']} of {hosts} done", *others]))


def lines(turns: Sequence[Turn]) -> list[Line]:
    """Where turns and update domains are the same they are called so; where groups differ a turn says which it has."""
    same = are_update_domains(turns)
    if len(turns) <= MOST_TURNS:
        return [_line([turn], same=same) for turn in turns]
    over = next((number for number, turn in enumerate(turns) if not _is_over(turn["progress"])), len(turns))
    shown, later = turns[over : over + MOST_TURNS], turns[over + MOST_TURNS :]
    found = [_line([turn], same=same) for turn in shown]
    return [
        *([_line(turns[:over], same=same)] if over else []),
        *found,
        *([_line(later, same=same)] if later else []),
    ]


def are_update_domains(turns: Sequence[Turn]) -> bool:
    """Whether each turn has one update domain, and each of those has one turn."""
    domains = [tuple(turn["update_domains"]) for turn in turns]
    return all(len(each) == 1 for each in domains) and len(set(domains)) == len(domains)


def title_of(turn: Turn, *, same: bool) -> tuple[str, str]:
    """What a turn is called, and what is said of it beside."""
    numbered = f"Turn {turn['turn']}"
    if same:
        return f"Update domain {turn['update_domains'][0]}", numbered.lower()
    return numbered, domains_told(turn["update_domains"])


def domains_told(domains: Sequence[int]) -> str:
    if not domains:
        return ""
    return f"update domain{'' if len(domains) == 1 else 's'} {fleet.names(_runs(domains))}"


def _line(turns: Sequence[Turn], *, same: bool) -> Line:
    counts: Counter[str] = Counter()
    for turn in turns:
        counts.update(turn["progress"])
    title, detail = title_of(turns[0], same=same)
    if len(turns) > 1:
        title, detail = f"Turns {turns[0]['turn']} to {turns[-1]['turn']}", ""
    return Line(
        id=f"turn-{turns[0]['turn']}", title=title, detail=detail, hosts=sum(counts.values()), meter=meter(counts)
    )


def _is_over(counts: Counts) -> bool:
    return not (counts["waiting"] or counts["under_way"] or counts["failed"])


def _runs(numbers: Sequence[int]) -> list[str]:
    """`0 to 4`, `7`."""
    found: list[str] = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda each: each[1] - each[0]):
        values = [value for _, value in run]
        found += [f"{values[0]} to {values[-1]}"] if len(values) >= LEAST_RUN else map(str, values)
    return found
