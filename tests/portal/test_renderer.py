"""How times, spans and sentences are written."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.portal import renderer, timeline

NOW = datetime(2026, 1, 31, 12, 0, 0, 999_000, tzinfo=UTC)
EVENT = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (252, "4 min 12 s"), (3600, "1 h"), (3601, "1 h"), (93_600, "1 d 2 h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert renderer.span(seconds) == renderer.span(timedelta(seconds=seconds)) == text


def test_relative() -> None:
    assert renderer.relative(NOW + timedelta(seconds=252), NOW) == "in 4 min 12 s"
    assert renderer.relative("2026-01-31T11:59:00.999000Z", NOW) == "1 min ago"
    assert renderer.relative(NOW, NOW) == "now"


def test_moments_are_for_people_and_machines() -> None:
    written = '<time datetime="2026-01-31T12:00:00Z">2026-01-31 12:00:00 UTC</time>'
    assert renderer.moment(NOW) == renderer.moment("2026-01-31T13:00:00+01:00") == written
    assert renderer.moment(None, "never") == "never"
    assert renderer.moment(None, "<b>") == "&lt;b&gt;"


def test_sentences_have_times_and_links_and_nothing_else() -> None:
    told = renderer.linked(f"It waits until event {EVENT} on <b>web</b> has ended, until 2026-01-31 12:00:00 UTC.")
    assert f'event <a href="/events/{EVENT}"><abbr title="{EVENT}">C7061BAC</abbr></a>' in told
    assert '<time datetime="2026-01-31T12:00:00Z">' in told
    assert "&lt;b&gt;web&lt;/b&gt;" in told
    operation = EVENT.lower()
    assert f'Operation <a href="/operations/{operation}">' in renderer.linked(f"Operation {operation} acts on db.")


@pytest.mark.parametrize(
    ("hours", "texts"),
    [
        (0.05, ["00:00:00", "00:00:30", "00:01:00"]),
        (6, ["31 Jan", "01:00", "02:00"]),
        (83, ["31 Jan", "12:00", "01 Feb"]),
        (168, ["31 Jan", "01 Feb", "02 Feb"]),
    ],
)
def test_marks_of_a_picture_differ(hours: float, texts: list[str]) -> None:
    midnight = datetime(2026, 1, 31, tzinfo=UTC)
    drawn = timeline.draw([], begin=midnight, end=midnight + timedelta(hours=hours))
    assert [renderer.mark(mark.at, drawn) for mark in drawn.marks[:3]] == texts


@pytest.mark.parametrize("text", ["0000-00-00 00:00:00 UTC", "2026-02-30 12:00:00 UTC", "2026-01-31 23:59:60 UTC"])
def test_what_only_looks_like_a_time_is_left_alone(text: str) -> None:
    """A driver may say anything."""
    assert renderer.linked(f"web-0 (failed at {text})") == f"web-0 (failed at {text})"
