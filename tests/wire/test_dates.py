"""Dates as guests read and write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forenotice.wire import dates

MOMENT = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)
MOMENTS = st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(microsecond=0))


def test_the_published_examples() -> None:
    assert dates.http(MOMENT) == "Mon, 19 Sep 2016 18:29:47 GMT"
    assert dates.iso(MOMENT) == "2016-09-19T18:29:47Z"


def test_another_zone_is_turned_into_utc_and_parts_of_a_second_are_left_out() -> None:
    moment = MOMENT.replace(microsecond=999_999).astimezone(timezone(timedelta(hours=-7)))
    assert dates.http(moment) == "Mon, 19 Sep 2016 18:29:47 GMT"
    assert dates.iso(moment) == "2016-09-19T18:29:47Z"


@pytest.mark.parametrize("write", [dates.http, dates.iso])
def test_a_naive_time_is_not_written(write: object) -> None:
    assert callable(write)
    with pytest.raises(ValueError, match="naive"):
        write(MOMENT.replace(tzinfo=None))


@given(MOMENTS)
def test_both_forms_are_read_back(moment: datetime) -> None:
    assert dates.parse(dates.http(moment)) == moment
    assert dates.parse(dates.iso(moment)) == moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("", None),
        ("2016-09-19T18:29:47+00:00", MOMENT),
        ("2016-09-19T20:29:47+02:00", MOMENT),
        ("2016-09-19T18:29:47.0000000Z", MOMENT),
        ("2016-09-19T18:29:47.25Z", MOMENT + timedelta(milliseconds=250)),
    ],
)
def test_what_else_is_read(text: str, moment: datetime | None) -> None:
    read = dates.parse(text)
    assert read == moment
    assert read is None or read.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "soon",
        "2016-09-19",
        "2016-09-19T18:29:47",
        "2016-13-19T18:29:47Z",
        "0001-01-01T00:00:00+10:00",
        "9999-12-31T23:59:59-10:00",
        "Mon, 19 Sep 2016 18:29:47",
        "Mon, 19 Sep 2016 18:29:47 PST",
        "Mon, 32 Sep 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 24:29:47 GMT",
        "Mon, 19 Sep 0000 18:29:47 GMT",
        "Tue, 19 Sep 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 18:29:47 GMT\n",
        "Mon, \u0661\u0669 Sep 2016 18:29:47 GMT",
    ],
)
def test_the_rest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time with a zone|contradicts itself"):
        dates.parse(text)


@given(st.text(max_size=40))
def test_garbage_is_refused_as_a_value_error(text: str) -> None:
    try:
        read = dates.parse(text)
    except ValueError:
        return
    assert read is None or read.utcoffset() == timedelta(0)
