import re
from datetime import timedelta

import pytest

from forenotice.agent.handlers import tables
from forenotice.agent.handlers.tables import When
from forenotice.settings.spans import Span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("5min", 300), ("2h", 7200), ("1d", 86400), ("500ms", 0.5), ("1.5 m", 90), (" 0s ", 0)],
)
def test_spans(text: str, seconds: float) -> None:
    span = Span.read(text)
    assert span == timedelta(seconds=seconds)
    assert type(span) is Span
    assert Span.read(tables.write(span)) == span


@pytest.mark.parametrize("text", ["", "5", "m", "-5s", "5 parsecs", "1h30m", "٥s", "5S", 5, None, True, ["5s"]])
def test_what_is_no_span_is_refused(text: object) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f'{text!r} is not a duration: give one such as "30s", "5m" or "2h"')
    ):
        Span.read(text)


@pytest.mark.parametrize("text", ["367d", "9" * 30 + "d"])
def test_a_span_has_an_end(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is too long: give at most 366d"):
        Span.read(text)


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("at once", None),
        ("At once", None),
        ("NotBefore - 5m", timedelta(minutes=5)),
        ("NotBefore-90s".lower(), timedelta(seconds=90)),
    ],
)
def test_times_to_begin(text: str, lead: timedelta | None) -> None:
    when = When.read(text)
    assert when.lead == lead
    assert When.read(tables.write(when)) == when
    assert hash(When.read(tables.write(when))) == hash(when)


@pytest.mark.parametrize("text", ["", "soon", "NotBefore", "NotBefore + 5m", "NotBefore - soon", 5, None])
def test_what_is_no_time_to_begin_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="give "):
        When.read(text)


def test_other_types_are_not_read_or_written() -> None:
    with pytest.raises(NotImplementedError, match="no way to read a complex"):
        tables.read(complex, 1)
    with pytest.raises(NotImplementedError, match="no way to write a complex"):
        tables.write(1j)
    assert When() != "at once"
