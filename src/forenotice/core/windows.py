"""Windows: the times of the week in which planned maintenance may start, by the clock of a place."""

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from forenotice.core import errors
from forenotice.core.timing import whole_second_up

if TYPE_CHECKING:
    from forenotice.core.draft import Draft

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAILY = "daily"
DAY = timedelta(days=1)
SOON = timedelta(days=366)
"""Windows that have no moment in common for this long are taken to have none."""
MOST = 20
"""Windows of one scope or rollout."""
EXAMPLE = "give days, hours and a zone, such as 'mon-fri 22:00-04:00 Europe/Berlin' or 'daily 02:00-04:00 UTC'"
FORM = re.compile(r"(\S+) +(\d\d:\d\d)-(\d\d:\d\d) +(\S+)", re.ASCII)
MIDNIGHT = "24:00"
"""As the end of a window: that of the day on which it opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    days: tuple[int, ...]
    """On which it opens; Monday is 0."""
    opens: time
    closes: time
    """On the next day, when it is not later than `opens`."""
    zone: str

    def __str__(self) -> str:
        closes = MIDNIGHT if self.closes == time(0) else f"{self.closes:%H:%M}"
        return f"{_days_told(self.days)} {self.opens:%H:%M}-{closes} {self.zone}"


class Opening(NamedTuple):
    """One time that a window is open: from a moment on, up to another."""

    start: datetime
    end: datetime


@lru_cache(maxsize=1024)
def parse(text: str) -> Window:
    found = FORM.fullmatch(text.strip())
    if found is None:
        raise errors.RefusedError(f"{text[:80]!r} is not a window: {EXAMPLE}")
    days, opens, closes, zone = found.groups()
    if zone not in _zones():
        raise errors.RefusedError(
            f"{zone[:40]!r} in {text[:80]!r} is not a time zone: give one such as UTC or Europe/Berlin"
        )
    return Window(
        days=_days(days, text),
        opens=_hour(opens, text),
        closes=time(0) if closes == MIDNIGHT else _hour(closes, text),
        zone=zone,
    )


def parse_all(texts: Iterable[str]) -> tuple[Window, ...]:
    windows = tuple(parse(text) for text in texts)
    if len(windows) > MOST:
        raise errors.RefusedError(f"there are {len(windows)} windows: give at most {MOST}")
    return windows


def is_open(windows: tuple[Window, ...], now: datetime) -> bool:
    """Whether a start is allowed; without windows it always is."""
    return next_open([windows], now) == now


def next_open(demands: Iterable[tuple[Window, ...]], now: datetime) -> datetime | None:
    """The first moment from `now` on at which every demand has a window open; None: there is none within a year."""
    # Of each demand, the openings that are not over, in order of their starts.
    wanted = [
        heapq.merge(*(_openings(window, now) for window in windows)) for windows in dict.fromkeys(demands) if windows
    ]
    openings = [next(each, None) for each in wanted]
    moment = now
    while moment - now <= SOON:
        for place, coming in enumerate(wanted):
            while (opening := openings[place]) is not None and opening.end <= moment:
                openings[place] = next(coming, None)
        if None in openings:
            return None
        later = max((opening.start for opening in openings if opening), default=moment)
        if later <= moment:
            return moment
        moment = later
    return None


def _openings(window: Window, now: datetime) -> Iterator[Opening]:
    """In order, from the ones of the days before on: they may still be open."""
    zone = ZoneInfo(window.zone)
    try:
        day = now.astimezone(zone).date() - 2 * DAY
        while True:
            if day.weekday() in window.days:
                yield _opening(window, day)
            day += DAY
    except OverflowError:
        return  # The calendar ends here.


@lru_cache(maxsize=20_000)
def _opening(window: Window, day: date) -> Opening:
    zone = ZoneInfo(window.zone)
    passes_midnight = window.closes <= window.opens
    opens = datetime.combine(day, window.opens)
    closes = datetime.combine(day + DAY if passes_midnight else day, window.closes)
    start, end = _instant(opens, zone), _instant(closes, zone)
    if end <= start:
        # Daylight saving has skipped all of it: it opens late and keeps its length.
        end = start + (closes - opens)
    return Opening(start, end)


def _instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When clocks of a zone show this: the first time, and where they skip it, the moment at which they do."""
    before, after = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if after >= before:
        return before
    # In a gap the offsets on both sides give an interval that holds the change: find it.
    low, high = after, before
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        if middle.astimezone(zone).utcoffset() == low.astimezone(zone).utcoffset():
            low = middle
        else:
            high = middle
    return high


def _days(text: str, window: str) -> tuple[int, ...]:
    if text.lower() == DAILY:
        return tuple(range(7))
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise errors.RefusedError(f"{part[:20]!r} in {window[:80]!r} is not a day: {EXAMPLE}")
        start, end = DAYS.index(first), DAYS.index(last or first)
        found.update((start + number) % 7 for number in range((end - start) % 7 + 1))
    return tuple(sorted(found))


def _days_told(days: tuple[int, ...]) -> str:
    if len(days) == len(DAYS):
        return DAILY
    if len(days) > 2 and days == tuple(range(days[0], days[-1] + 1)):
        return f"{DAYS[days[0]]}-{DAYS[days[-1]]}"
    return ",".join(DAYS[day] for day in days)


def _hour(text: str, window: str) -> time:
    try:
        return time(int(text[:2]), int(text[3:]))
    except ValueError:
        raise errors.RefusedError(f"{text} in {window[:80]!r} is not an hour: {EXAMPLE}") from None


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # "localtime" is another zone on another machine.
    return frozenset(available_timezones() - {"localtime"})


LEAD = timedelta(minutes=1)
"""Guests are told this much earlier than the notice requires, so that a late tick does not miss a short window."""


@dataclass(frozen=True, slots=True)
class Slot:
    """When guests are told, and the NotBefore that they see."""

    announce_at: datetime
    not_before: datetime


def earliest(draft: "Draft", notice: timedelta) -> datetime:
    """NotBefore of what is announced now, if no window is in the way."""
    try:
        return whole_second_up(draft.now + draft.allowance + draft.timing.shortened(notice))
    except OverflowError:
        raise errors.RefusedError("that much notice is beyond the calendar: give less") from None


def slot(draft: "Draft", wanted: Iterable[tuple[Window, ...]], notice: timedelta) -> Slot | None:
    """When to tell guests of what must wait for windows; None: these windows are never open together."""
    opening = next_open(wanted, earliest(draft, notice))
    if opening is None:
        return None
    return Slot(announce_at(opening, draft.timing.shortened(notice), draft.now), opening)


def announce_at(opening: datetime, notice: timedelta, now: datetime) -> datetime:
    """When guests are told of what can start at `opening`; `notice` is the real one, after --speed."""
    return max(opening - notice - LEAD, now)


def all_demands(draft: "Draft", vms: Iterable[str], rollout: str | None) -> dict[str, tuple[Window, ...]]:
    """Who asks for which windows: scopes by their keys, and the rollout."""
    asked = of_scopes(draft, vms)
    own = draft.rollout(rollout).options.windows if rollout is not None else ()
    return {**asked, rollout: own} if rollout is not None and own else asked


def of_scopes(draft: "Draft", vms: Iterable[str]) -> dict[str, tuple[Window, ...]]:
    asked = {key: draft.scope(key).policy.windows for key in dict.fromkeys(draft.vm(name).scope for name in vms)}
    return {key: wanted for key, wanted in asked.items() if wanted}


def first_start(draft: "Draft", vms: Iterable[str], rollout: str | None, earliest: datetime) -> datetime:
    """The first moment from `earliest` on at which everybody allows it."""
    asked = all_demands(draft, vms, rollout)
    opening = next_open(asked.values(), earliest)
    if opening is None:
        raise never(asked)
    return opening


def never(asked: Iterable[str]) -> errors.ConflictError:
    who = [key.partition(":")[2] or "the rollout" for key in asked]
    return errors.ConflictError(
        f"the windows of {' and '.join(who)} are never open together: give them hours in common", who=who
    )
