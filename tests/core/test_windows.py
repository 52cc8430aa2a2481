"""Windows: how they are written, and when they open, also where clocks jump."""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forenotice.core import errors, windows
from forenotice.core.windows import Window

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("mon-fri 22:00-04:00 Europe/Berlin", "mon-fri 22:00-04:00 Europe/Berlin"),
        ("daily 02:00-04:00 UTC", "daily 02:00-04:00 UTC"),
        ("  Mon-SUN   00:00-24:00   UTC ", "daily 00:00-24:00 UTC"),
        ("sat-mon 22:00-00:00 UTC", "mon,sat,sun 22:00-24:00 UTC"),
        ("sun,mon 10:00-10:00 Pacific/Apia", "mon,sun 10:00-10:00 Pacific/Apia"),
        ("fri 01:00-02:00 America/New_York", "fri 01:00-02:00 America/New_York"),
        ("tue,wed-thu,thu 01:00-02:00 UTC", "tue-thu 01:00-02:00 UTC"),
    ],
)
def test_a_window_is_kept_in_one_form(text: str, kept: str) -> None:
    assert str(windows.parse(text)) == kept
    assert windows.parse(kept) == windows.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not a window: give days, hours and a zone, such as 'mon-fri 22:00-04:00 Europe/Berlin'"),
        ("always", "'always' is not a window"),
        ("mon 22:00-04:00", "is not a window"),
        ("mon 22-04 UTC", "is not a window"),
        ("mon ٢٢:00-04:00 UTC", "is not a window"),
        ("monday 22:00-04:00 UTC", "'monday' in 'monday 22:00-04:00 UTC' is not a day"),
        ("mon-fry 22:00-04:00 UTC", "'mon-fry' in"),
        ("mon, 22:00-04:00 UTC", "'' in"),
        ("mon- 22:00-04:00 UTC", "'mon-' in"),
        ("mon 22:60-04:00 UTC", "22:60 in 'mon 22:60-04:00 UTC' is not an hour"),
        ("mon 22:00-25:00 UTC", "25:00 in"),
        ("mon 24:00-04:00 UTC", "24:00 in"),
        ("mon 22:00-24:01 UTC", "24:01 in"),
        ("mon 22:00-04:00 Berlin", "'Berlin' in 'mon 22:00-04:00 Berlin' is not a time zone: give one such as UTC or"),
        ("mon 22:00-04:00 localtime", "'localtime' in"),
        ("mon 22:00-04:00 ../../etc/passwd", "is not a time zone"),
        ("mon 22:00-04:00 " + "x" * 5000, "is not a time zone"),
    ],
)
def test_other_windows_are_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(errors.RefusedError) as refused:
        windows.parse(text)
    assert said in refused.value.message
    assert len(refused.value.message) < 300


def test_zones_are_those_that_every_machine_has() -> None:
    windows._zones.cache_clear()
    assert windows._zones() & {"localtime", "UTC"} == {"UTC"}


def test_there_are_only_so_many() -> None:
    texts = [f"daily {hour:02}:00-{hour:02}:30 UTC" for hour in range(windows.MOST + 1)]
    assert len(windows.parse_all(texts[:-1])) == windows.MOST
    with pytest.raises(errors.RefusedError, match="there are 21 windows: give at most 20"):
        windows.parse_all(texts)


WEEK = st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days)))
TIMES = st.builds(time, st.integers(0, 23), st.sampled_from([0, 1, 15, 29, 30, 31, 59]))


@given(WEEK, TIMES, TIMES, st.sampled_from(["UTC", "Europe/Berlin", "Etc/GMT+5"]))
def test_what_is_written_reads_as_it_was(days: tuple[int, ...], opens: time, closes: time, zone: str) -> None:
    window = Window(days=days, opens=opens, closes=closes, zone=zone)
    assert windows.parse(str(window)) == window


BERLIN = "daily 02:00-03:00 Europe/Berlin"


@pytest.mark.parametrize(
    ("texts", "now", "opens"),
    [
        # Open, not yet open, just closed, on another day, over midnight. 2026-03-02 is a Monday.
        ([], "2026-03-02T12:00", "2026-03-02T12:00"),
        (["mon 10:00-14:00 UTC"], "2026-03-02T12:00:00.5", "2026-03-02T12:00:00.5"),
        (["mon 10:00-14:00 UTC"], "2026-03-02T09:00", "2026-03-02T10:00"),
        (["mon 10:00-14:00 UTC"], "2026-03-02T13:59:59.999999", "2026-03-02T13:59:59.999999"),
        (["mon 10:00-14:00 UTC"], "2026-03-02T14:00", "2026-03-09T10:00"),
        (["sun 22:00-04:00 UTC"], "2026-03-02T03:59", "2026-03-02T03:59"),
        (["sun 22:00-04:00 UTC"], "2026-03-02T04:00", "2026-03-08T22:00"),
        (["mon 22:00-04:00 UTC"], "2026-03-02T03:59", "2026-03-02T22:00"),
        (["sun 00:00-24:00 UTC"], "2026-03-02T00:00", "2026-03-08T00:00"),
        (["wed 10:00-11:00 UTC", "tue 10:00-11:00 UTC"], "2026-03-02T12:00", "2026-03-03T10:00"),
        (["mon 10:00-14:00 Asia/Tokyo"], "2026-03-01T12:00", "2026-03-02T01:00"),
        # Berlin skips 02:00 to 03:00: the hour opens when the clock has jumped, and lasts as long.
        ([BERLIN], "2026-03-29T00:30", "2026-03-29T01:00"),
        ([BERLIN], "2026-03-29T01:59", "2026-03-29T01:59"),
        ([BERLIN], "2026-03-29T02:00", "2026-03-30T00:00"),
        (["daily 02:30-04:00 Europe/Berlin"], "2026-03-29T00:00", "2026-03-29T01:00"),
        (["daily 01:30-02:30 Europe/Berlin"], "2026-03-29T00:59", "2026-03-29T00:59"),
        (["daily 01:30-02:30 Europe/Berlin"], "2026-03-29T01:00", "2026-03-29T23:30"),
        # It has 02:00 to 03:00 twice: the window is open from the first 02:00 on, and until the one 03:00.
        ([BERLIN], "2026-10-24T23:59", "2026-10-25T00:00"),
        ([BERLIN], "2026-10-25T01:59", "2026-10-25T01:59"),
        ([BERLIN], "2026-10-25T02:00", "2026-10-26T01:00"),
        (["daily 02:00-02:30 Europe/Berlin"], "2026-10-25T01:15", "2026-10-26T01:00"),
        # Half an hour on Lord Howe Island; midnight itself in Brazil; a whole Friday in Samoa.
        (["daily 02:10-02:20 Australia/Lord_Howe"], "2026-10-03T12:00", "2026-10-03T15:30"),
        (["sun 00:00-01:00 America/Sao_Paulo"], "2018-11-03T12:00", "2018-11-04T03:00"),
        (["fri 22:00-23:00 Pacific/Apia"], "2011-12-29T12:00", "2011-12-30T10:00"),
        (["fri 22:00-23:00 Pacific/Apia"], "2011-12-30T11:00", "2012-01-06T08:00"),
    ],
)
def test_when_it_opens(texts: list[str], now: str, opens: str) -> None:
    found = windows.parse_all(texts)
    assert windows.next_open([found], at(now)) == at(opens)
    assert windows.is_open(found, at(now)) is (now == opens)


def test_all_must_be_open_at_once() -> None:
    night, monday = windows.parse_all(["daily 22:00-04:00 UTC"]), windows.parse_all(["mon 00:00-24:00 Asia/Tokyo"])
    assert windows.next_open([night, monday, (), night], at("2026-03-02T15:00")) == at("2026-03-08T22:00")
    morning, evening = windows.parse_all(["daily 06:00-08:00 UTC"]), windows.parse_all(["daily 18:00-20:00 UTC"])
    assert windows.next_open([morning, evening], at("2026-03-02T00:00")) is None
    assert windows.next_open([morning + evening, evening], at("2026-03-02T00:00")) == at("2026-03-02T18:00")


def test_the_calendar_ends() -> None:
    late = windows.parse_all(["mon 10:00-11:00 UTC"])
    assert windows.next_open([late], at("9999-12-31T12:00")) is None
    assert windows.next_open([()], at("9999-12-31T12:00")) == at("9999-12-31T12:00")


# Against clocks read minute by minute

JUMPS = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "America/Sao_Paulo": ("2018-11-04", "2019-02-17"),
    "Pacific/Apia": ("2011-12-30",),
}


@cache
def clock(zone: str, jump: str) -> tuple[datetime, Sequence[datetime]]:
    """From a moment on, what the latest is that a clock of the zone has shown, minute by minute."""
    start, latest, shown = at(jump) - 12 * DAY, at("0001-01-01").replace(tzinfo=None), []
    for minute in range(25 * 24 * 60):
        latest = max(latest, (start + minute * MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None))
        shown.append(latest)
    return start, shown


def openings(window: Window, jump: str) -> list[tuple[datetime, datetime]]:
    """The moments at which a clock first shows the hours of the window, or later ones."""
    start, shown = clock(window.zone, jump)
    found = []
    for number in range(-9, 12):
        day = at(jump).date() + number * DAY
        if day.weekday() not in window.days:
            continue
        opens, closes = datetime.combine(day, window.opens), datetime.combine(day, window.closes)
        closes += DAY if closes <= opens else timedelta()
        first, last = (start + bisect_left(shown, wall) * MINUTE for wall in (opens, closes))
        found.append((first, last if last > first else first + (closes - opens)))
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(zone, jump) for zone, jumps in JUMPS.items() for jump in jumps]),
    WEEK,
    TIMES,
    TIMES,
    st.integers(-3 * 24 * 60, 3 * 24 * 60),
    st.sampled_from([0, 1, 59.5]),
)
def test_it_opens_as_the_clocks_of_its_zone_say(
    place: tuple[str, str], days: tuple[int, ...], opens: time, closes: time, minutes: int, seconds: float
) -> None:
    zone, jump = place
    window = Window(days=days, opens=opens, closes=closes, zone=zone)
    now = at(jump) + minutes * MINUTE + timedelta(seconds=seconds)
    expected = min(max(first, now) for first, last in openings(window, jump) if last > now)
    assert windows.next_open([(window,)], now) == expected


DEMANDS = st.lists(
    st.builds(Window, days=WEEK, opens=TIMES, closes=TIMES, zone=st.sampled_from(list(JUMPS))), max_size=2
)


@settings(max_examples=30, deadline=None)
@given(st.lists(DEMANDS.map(tuple), max_size=3), st.integers(0, 365 * 24 * 60))
def test_no_earlier_moment_would_do(demands: list[tuple[Window, ...]], minutes: int) -> None:
    now = at("2026-01-01") + minutes * MINUTE
    found = windows.next_open(demands, now)
    assert found is None or all(windows.is_open(each, found) for each in demands)
    until = min(found or now + DAY, now + DAY)
    for minute in range(0, int((until - now) / MINUTE), 13):
        assert not all(windows.is_open(each, now + minute * MINUTE) for each in demands)
