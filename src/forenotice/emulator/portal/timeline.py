"""The timelines of the page: what has happened and is to come, and the scenario as it is written."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from forenotice.core.operations import Event
from forenotice.core.timing import Timing
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import rehearsing
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.scenarios.rehearsing import Life, Rehearsal, Trouble
from forenotice.portal import timeline
from forenotice.portal.timeline import Bar, Timeline

FAULT = "other"
"""The colour of what is no event."""
LEAST = timedelta(minutes=5)
"""That is drawn, before speed divides it."""
BACK = timedelta(hours=1)
"""What is over for longer is not drawn, unless the scenario lasts as long; before speed divides it."""
MARGIN = 0.04
MOST_EVENTS = 500

rehearsed = functools.lru_cache(maxsize=32)(rehearsing.rehearse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    so_far: Timeline | None
    """Events as they are and will be if nobody approves; None: there were none."""
    written: Timeline | None
    """The scenario, if nobody approves; None: none is played."""


def draw(emulator: Emulator, now: datetime) -> Drawn:
    """Both over the same time. To be asked while nothing changes."""
    player, timing = emulator.player, emulator.timing
    plan = list(_plan(rehearsed(player.scenario), player.began, timing)) if player is not None else []
    events = emulator.stage.recent[-MOST_EVENTS:]
    real = [bar for event in events for bar in _bars(emulator, event)]
    if not plan and not real:
        return Drawn(so_far=None, written=None)
    length = max((bar.end - bar.begin for bar in plan if bar.end), default=timedelta(0))
    begin, end = _frame([*plan, *real], now - max(timing.shortened(BACK), length * 2), timing, now)
    return Drawn(
        so_far=timeline.draw(real, begin=begin, end=end, now=now) if real else None,
        written=timeline.draw(plan, begin=begin, end=end, now=now) if plan else None,
    )


def preview(scenario: Scenario, timing: Timing, now: datetime) -> Timeline:
    """As if it began now."""
    plan = list(_plan(rehearsed(scenario), now, timing))
    begin, end = _frame(plan, now, timing, now)
    return timeline.draw(plan, begin=begin, end=end)


def _frame(bars: list[Bar], earliest: datetime, timing: Timing, now: datetime) -> tuple[datetime, datetime]:
    begin = max(min(bar.begin for bar in bars), earliest)
    end = max(begin + timing.shortened(LEAST), now, *(bar.end or bar.begin for bar in bars))
    return begin, end + (end - begin) * MARGIN


def _bars(emulator: Emulator, event: Event) -> Iterator[Bar]:
    """One in the lane of each VM that it names."""
    started = emulator.stage.started_at(event)
    start, end = started, event.ended_at
    if event.status.live:
        start = max(event.not_before, emulator.clock.now()) if started is None else started
        end = start + emulator.stage.takes(event)
    said = f"{event.type} of {', '.join(event.resources)}: {event.status}, NotBefore {event.not_before:%H:%M:%S} UTC"
    for name in event.resources:
        yield Bar(
            id=f"{event.id}-{name}",
            lane=name,
            type=str(event.type),
            label=said,
            begin=event.created_at,
            not_before=event.not_before,
            start=start,
            end=end,
            expected=event.status.live and started is None,
            status=str(event.status),
        )


def _plan(rehearsal: Rehearsal, began: datetime, timing: Timing) -> Iterator[Bar]:
    for index, life in enumerate(rehearsal.lives):
        yield from _planned(life, index, began, timing)
    for index, trouble in enumerate(rehearsal.troubles):
        yield _of_trouble(trouble, index, began, timing)


def _planned(life: Life, index: int, began: datetime, timing: Timing) -> Iterator[Bar]:
    def at(since: timedelta) -> datetime:
        return began + timing.shortened(since)

    after = f"after {_written(life.announced)}" if life.announced else "at once"
    starts = "cancelled" if life.started is None else f"started after {_written(life.started)}"
    said = f"{life.event.type} of {', '.join(life.event.resources)}: announced {after}, {starts}"
    for name in life.event.resources:
        yield Bar(
            id=f"plan-{index}-{name}",
            lane=name,
            type=str(life.event.type),
            label=f"{said}, gone after {_written(life.ended)}",
            begin=at(life.announced),
            start=None if life.started is None else at(life.started),
            end=at(life.ended),
        )


def _of_trouble(trouble: Trouble, index: int, began: datetime, timing: Timing) -> Bar:
    begin = began + timing.shortened(trouble.since)
    end = None if trouble.until is None else began + timing.shortened(trouble.until)
    said = f"fault {trouble.name}: switched on after {_written(trouble.since)}"
    return Bar(id=f"plan-fault-{index}", lane=trouble.name, type=FAULT, label=said, begin=begin, start=begin, end=end)


def _written(since: timedelta) -> str:
    minutes, seconds = divmod(round(since.total_seconds()), 60)
    return f"{minutes} min" + (f" {seconds} s" if seconds else "")
