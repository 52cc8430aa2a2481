"""How far a rollout is, wave by wave, as numbers and words that a template only has to write down. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from forenotice.core import fleet
from forenotice.views.rollouts import PlannedWave, Progress, WaveProgress

MOST_WAVES = 20
"""Told one by one; those that are over are one line then, and those that come later another."""
LOOKS = ("done", "failed", "under_way", "waiting", "skipped")
"""In the order in which a bar has them."""
LEAST_RUN = 3
"""So many numbers that follow each other are told by the first and the last."""

Wave = WaveProgress | PlannedWave


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


def counts(progress: Progress) -> dict[str, int]:
    return msgspec.structs.asdict(progress)


def meter(progress: Progress) -> Meter:
    return _meter(counts(progress))


def _meter(counts: Mapping[str, int]) -> Meter:
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


def lines(waves: Sequence[WaveProgress]) -> list[Line]:
    """Where waves and update domains are the same they are called so; where groups differ a wave says which it has."""
    same = are_update_domains(waves)
    if len(waves) <= MOST_WAVES:
        return [_line([wave], same=same) for wave in waves]
    over = next((number for number, wave in enumerate(waves) if not _is_over(wave.progress)), len(waves))
    shown, later = waves[over : over + MOST_WAVES], waves[over + MOST_WAVES :]
    found = [_line([wave], same=same) for wave in shown]
    return [
        *([_line(waves[:over], same=same)] if over else []),
        *found,
        *([_line(later, same=same)] if later else []),
    ]


def are_update_domains(waves: Sequence[Wave]) -> bool:
    """Whether each wave has one update domain, and each of those has one wave."""
    domains = [tuple(wave.update_domains) for wave in waves]
    return all(len(each) == 1 for each in domains) and len(set(domains)) == len(domains)


def title_of(wave: Wave, *, same: bool) -> tuple[str, str]:
    """What a wave is called, and what is said of it beside."""
    numbered = f"Wave {wave.wave}"
    if same:
        return f"Update domain {wave.update_domains[0]}", numbered.lower()
    return numbered, domains_told(wave.update_domains)


def domains_told(domains: Sequence[int]) -> str:
    if not domains:
        return ""
    return f"update domain{'' if len(domains) == 1 else 's'} {fleet.names(_runs(domains))}"


def _line(waves: Sequence[WaveProgress], *, same: bool) -> Line:
    total: Counter[str] = Counter()
    for wave in waves:
        total.update(counts(wave.progress))
    title, detail = title_of(waves[0], same=same)
    if len(waves) > 1:
        title, detail = f"Waves {waves[0].wave} to {waves[-1].wave}", ""
    return Line(id=f"wave-{waves[0].wave}", title=title, detail=detail, hosts=total.total(), meter=_meter(total))


def _is_over(progress: Progress) -> bool:
    return not (progress.waiting or progress.under_way or progress.failed)


def _runs(numbers: Sequence[int]) -> list[str]:
    """`0 to 4`, `7`."""
    found: list[str] = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda each: each[1] - each[0]):
        values = [value for _, value in run]
        found += [f"{values[0]} to {values[-1]}"] if len(values) >= LEAST_RUN else map(str, values)
    return found
