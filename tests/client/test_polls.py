"""When a guest asks, how it asks, how long it waits, and how it slows down: without a network and without pauses."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.client.samples import EVENT, STARTED, document, said
from tests.client.steps import Failing, in_turn, perform, play, remote

from forenotice.client import EndpointError, Pace
from forenotice.client import endpoint as client_endpoint
from forenotice.client.changes import follow
from forenotice.client.endpoint import Request
from forenotice.client.events import NO_EVENTS
from forenotice.client.http import ProtocolError, Response
from forenotice.clock import SystemClock
from forenotice.core.errors import RefusedError
from forenotice.wire import dates

USUAL = Pace()
EMPTY = document()
ONE = document(EVENT, incarnation=3)


def good(body: bytes = EMPTY, tag: str = '"2-x"') -> Response:
    return said(body, etag=tag)


SAME = said(status=304, etag='"2-x"')


def test_polls_once_a_second() -> None:
    played = play(follow(remote(pace=USUAL)), *[said(EMPTY)] * 3)
    assert all(0.5 < seconds <= 1 for seconds in played.pauses)
    assert [news.changed for news in played.told] == [True, False, False]
    assert played.headers("If-None-Match") == [None] * 4


def test_a_tag_is_sent_back_and_304_keeps_the_document() -> None:
    played = play(follow(remote()), good(ONE), SAME, good(EMPTY, '"4-x"'), SAME)
    assert played.headers("If-None-Match") == [None, '"2-x"', '"2-x"', '"4-x"', '"4-x"']
    assert [news.changed for news in played.told] == [True, False, True, False]
    assert [len(news.document.events) for news in played.told if news.document] == [1, 1, 0, 0]


REFUSED = ConnectionRefusedError()
LONG = "wait=10"
CHANGED = good(ONE, '"3-x"')


@pytest.mark.parametrize(
    ("pace", "outcomes", "prefers"),
    [
        # A server that supports long polling.
        (Pace(at_once=0), [good(), SAME, CHANGED, SAME], [None, LONG, LONG, LONG, LONG]),
        # One that does not, until some minutes later.
        (USUAL, [good(), *[SAME] * 5], [None, LONG, *[None] * 5]),
        (USUAL, [good(), *[good()] * 5], [None, LONG, *[None] * 5]),
        (Pace(probe=0), [good(), SAME, good(), SAME], [None, *[LONG] * 4]),
        # A change that comes at once proves nothing.
        (USUAL, [good(), CHANGED, good(EMPTY, '"4-x"')], [None, LONG, LONG, LONG]),
        # After an outage the server may be another.
        (USUAL, [good(), SAME, REFUSED, SAME, SAME], [None, LONG, None, None, None, None]),
        (USUAL, [good(), SAME, REFUSED, REFUSED, SAME, SAME], [None, LONG, None, None, None, LONG, None]),
    ],
)
def test_long_polls(pace: Pace, outcomes: list[Response | Failing], prefers: list[str | None]) -> None:
    played = play(follow(remote(pace=pace)), *outcomes)
    assert played.headers("Prefer") == prefers
    failed = any(isinstance(outcome, Exception) for outcome in outcomes)
    assert failed or played.timeouts == [130, *(20 if each else 10 for each in prefers[1:])]


@pytest.mark.parametrize(
    "fault",
    [said(status=400), said(status=503), ConnectionResetError(), TimeoutError(), ProtocolError("half")],
    ids=str,
)
def test_a_server_without_support_for_long_polls_is_polled_plainly(fault: Response | Failing) -> None:
    played = play(follow(remote(pace=USUAL)), good(), fault, good(ONE, '"3-x"'), fault, said(status=304), SAME)
    assert played.headers("Prefer") == [None, "wait=10", *[None] * 5]
    # A failed long poll is not told.
    assert [news.error is None for news in played.told] == [True, True, False, True, True]
    assert [news.changed for news in played.told] == [True, True, False, False, False]
    again = play(follow(remote(pace=Pace(probe=0))), good(), fault, SAME, fault)
    assert again.headers("Prefer") == [None, "wait=10", None, "wait=10", None]


def test_an_outage_that_begins_with_a_held_poll_is_told_by_the_plain_one_after_it() -> None:
    played = play(follow(remote(pace=USUAL)), good(), *[REFUSED] * 4, SAME, SAME)
    assert played.headers("Prefer") == [None, "wait=10", *[None] * 4, "wait=10", None]
    assert [news.error is None for news in played.told] == [True, False, False, False, True, True]
    assert played.pauses[1:5] == [1, 2, 4, 8]
    # How long a busy server wants to be left alone counts for held polls, too.
    assert play(follow(remote(pace=USUAL)), good(), said(status=429, retry_after="7"), SAME).pauses[1] == 7


def test_a_client_that_is_not_patient_polls() -> None:
    guest = remote(pace=Pace(at_once=0))
    guest.patient = False
    assert play(follow(guest), good(), SAME).headers("Prefer") == [None] * 3
    guest.patient = True
    assert play(follow(guest), SAME, SAME).headers("Prefer") == [None, "wait=10", "wait=10"]


def test_what_somebody_else_has_heard_is_told_before_it_is_waited_for() -> None:
    guest = remote()
    assert perform(guest.document(), in_turn(good(ONE))).incarnation == 3
    played = play(follow(guest), SAME, SAME)
    assert played.headers("Prefer") == [None, "wait=10", "wait=10"]
    assert [news.changed for news in played.told] == [True, False]


def test_a_304_confirms_the_document_that_was_named_in_the_request() -> None:
    """Not what another thread has heard of meanwhile."""
    guest = remote()
    perform(guest.document(), in_turn(good()))

    def meanwhile(_: object) -> Response:
        assert perform(guest.document(), in_turn(good(ONE, '"3-x"'))).incarnation == 3
        return SAME

    assert perform(guest.document(), meanwhile).incarnation == 2
    asked: list[str | None] = []

    def note(ask: Request) -> Response:
        asked.append(ask.headers.get("If-None-Match"))
        return said(status=304)

    assert perform(guest.document(), note).incarnation == 3
    assert asked == ['"3-x"']


FAULTS: list[Response | Failing] = [
    said(status=404),
    said(status=410),
    said(status=429),
    said(status=500),
    said(status=503),
    said(status=204),
    said(status=302, location="http://10.0.0.2"),
    said(status=304),
    said(b"{"),
    said(b"<html>"),
    said(b"\xff\xfe"),
    ConnectionRefusedError(),
    ConnectionResetError(),
    TimeoutError(),
    OSError(113, "No route to host"),
    ProtocolError("half an answer"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_an_error_and_not_no_events(fault: Response | Failing) -> None:
    with pytest.raises(EndpointError):
        perform(remote().document(), in_turn(fault))
    # Without a tag, for a 304 that nobody asked for.
    first, second, third = play(follow(remote()), said(ONE), fault, said(ONE)).told
    assert isinstance(second.error, EndpointError)
    assert second.error.message.startswith(("http://10.0.0.1 ", "cannot reach the metadata endpoint http://10.0.0.1 "))
    assert second.document is first.document
    assert (second.changed, second.date) == (False, None)
    assert (third.error, third.changed) == (None, False)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_pauses_grow_but_not_beyond_a_third_of_what_preempt_gives(fault: Response | Failing) -> None:
    assert play(follow(remote(pace=USUAL)), *[fault] * 7).pauses == [1, 2, 4, 8, 10, 10, 10]
    first, second, after_success, again = play(follow(remote(pace=USUAL)), fault, fault, said(EMPTY), fault).pauses
    assert (first, second, again) == (1, 2, 1)
    assert after_success <= 1


RETRY_AFTER = [
    ("7", 7),
    ("0", 1),
    (" 30 ", 30),
    ("120", 120),
    ("86400", 120),
    ("9" * 400, 120),
    ("Mon, 11 Apr 2022 22:27:28 GMT", 30),
    ("Mon, 11 Apr 2022 22:26:00 GMT", 1),
    ("Thu, 11 Apr 2030 22:26:58 GMT", 120),
    ("soon", 1),
    ("-5", 1),
    ("1.5", 1),
    ("٣", 1),
    ("", 1),
]


@pytest.mark.parametrize(("text", "seconds"), RETRY_AFTER)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_within_reason(text: str, seconds: float, status: int) -> None:
    busy = said(status=status, retry_after=text, date="Mon, 11 Apr 2022 22:26:58 GMT")
    assert play(follow(remote(pace=USUAL)), busy).pauses == [seconds]


def test_retry_after_a_date_without_another_to_compare_it_with() -> None:
    in_a_minute = dates.http(SystemClock().now() + timedelta(seconds=60))
    (pause,) = play(follow(remote(pace=USUAL)), said(status=503, retry_after=in_a_minute)).pauses
    assert pause == pytest.approx(60, abs=2)


def test_the_first_answer_may_take_two_minutes() -> None:
    guest = remote(pace=USUAL)
    played = play(follow(guest), TimeoutError(), said(), said(status=503), said(EMPTY), said(EMPTY))
    assert played.timeouts == [130, 130, 130, 130, 10, 10]


def test_patience_doubles_with_every_timeout() -> None:
    guest = remote(pace=USUAL)
    late = TimeoutError()
    played = play(follow(guest), said(EMPTY), late, late, late, late, late, ConnectionResetError(), said(EMPTY))
    assert played.timeouts == [130, 10, 20, 40, 80, 130, 130, 130, 10]


def test_an_empty_body_is_no_news() -> None:
    assert perform(remote().document(), in_turn(said(b" \r\n"))) == NO_EVENTS
    played = play(follow(remote()), said(), said(ONE), said(), said(document(STARTED, incarnation=4)))
    assert [news.error for news in played.told] == [None] * 4
    assert [news.changed for news in played.told] == [False, True, False, True]
    assert [news.shown for news in played.told] == [False, True, False, True]
    nothing, first, second, third = [news.document for news in played.told]
    assert nothing is None
    assert first is second
    assert first is not None
    assert third is not None
    assert (first.events[0].started, third.events[0].started) == (False, True)
    guest = remote()
    perform(guest.document(), in_turn(said(ONE)))
    assert perform(guest.document(), in_turn(said())).incarnation == 3


@pytest.mark.parametrize("incarnation", [1, 2, 90, "4"])
def test_an_incarnation_that_jumps_or_starts_again_is_another_document(incarnation: object) -> None:
    played = play(follow(remote()), said(ONE), said(document(incarnation=incarnation)))
    assert [news.changed for news in played.told] == [True, True]
    assert played.told[1].document is not None
    assert played.told[1].document.events == ()


@pytest.mark.parametrize(
    ("seconds", "counted"), [(-3600, -3600), (-30, -30), (-1, 0), (0, 0), (1, 0), (30, 30), (3600, 3600)]
)
def test_how_far_the_endpoints_clock_is_ahead(seconds: int, counted: int) -> None:
    guest = remote()
    date = dates.http(SystemClock().now() + timedelta(seconds=seconds))
    not_before = dates.http(SystemClock().now() + timedelta(seconds=seconds + 100))
    found = perform(guest.document(), in_turn(said(document(EVENT | {"NotBefore": not_before}), date=date)))
    assert guest.ahead == pytest.approx(counted, abs=1)
    assert found.events[0].ahead == guest.ahead
    assert found.events[0].seconds_left == pytest.approx(100, abs=3)
    (news,) = play(follow(remote()), said(EMPTY, date=date)).told
    assert news.date == dates.parse(date)
    assert news.asked_at <= news.answered_at


def test_a_late_answer_does_not_skew_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: seconds)

    def late(_: object) -> Response:
        nonlocal seconds
        seconds += 100
        return said(ONE, date=dates.http(SystemClock().now() - timedelta(seconds=100)))

    guest = remote()
    perform(guest.document(), late)
    assert guest.ahead == 0


def test_a_clock_that_is_set_right_is_noticed_without_another_document() -> None:
    wrong, right = (dates.http(SystemClock().now() + timedelta(seconds=seconds)) for seconds in (500, 0))
    first, second, third = play(
        follow(remote()), said(ONE, etag="x", date=wrong), said(status=304, date=right), said(status=304, date=right)
    ).told
    assert first.document is not None
    assert second.document is not None
    assert first.document.events[0].ahead == pytest.approx(500, abs=2)
    assert second.document.events[0].ahead == 0
    assert second.changed is False
    assert third.document is second.document


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (said(b'{"error":"no such event"}', status=400), RefusedError, None),
        (said(b'{"error":"' + b"x" * 10_000 + b'"}', status=500), EndpointError, 500),
        (said(status=404), EndpointError, 404),
        (said(status=429), EndpointError, 429),
        (said(status=503), EndpointError, 503),
        (said(status=204), EndpointError, 204),
        (ConnectionResetError(), EndpointError, None),
        (TimeoutError(), EndpointError, None),
    ],
)
def test_an_approval_that_is_not_taken_is_seen(
    answer: Response | Failing, error: type[Exception], status: int | None
) -> None:
    with pytest.raises(error) as caught:
        perform(remote().approve("A"), in_turn(answer))
    assert getattr(caught.value, "status", None) == status
    assert status != 400 or "answered 400: no such event" in str(caught.value)
    assert len(str(caught.value)) < 300


# A server behind a balancer that has not heard the latest


def of(epoch: str, body: bytes, tag: str) -> Response:
    return said(body, etag=tag, forenotice_epoch=epoch)


def test_a_document_that_is_older_than_what_was_seen_is_no_news() -> None:
    late, early = of("a", ONE, '"3-a"'), of("a", EMPTY, '"2-a"')
    played = play(follow(remote(pace=USUAL)), late, early, early, of("a", EMPTY.replace(b"2", b"4"), '"4-a"'))
    assert [news.changed for news in played.told] == [True, False, False, True]
    assert [news.shown for news in played.told] == [True, False, False, True]
    assert [news.document.incarnation for news in played.told if news.document] == [3, 3, 3, 4]
    assert played.headers("If-None-Match") == [None, '"3-a"', '"3-a"', '"3-a"', '"4-a"']
    # It was answered at once because it differs: whether the server holds polls is not known by that.
    assert played.headers("Prefer") == [None, *["wait=10"] * 4]


def test_a_server_that_stays_behind_is_believed_in_the_end() -> None:
    """Its database may have been restored without anybody telling it so."""
    late, early = of("a", ONE, '"3-a"'), of("a", EMPTY, '"2-a"')
    guest = remote(pace=Pace(interval=0, behind=0.05))
    stopped_at = time.monotonic() + 10
    seen = [perform(guest.document(), lambda _: late).incarnation]
    while seen[-1] != 2:
        seen.append(perform(guest.document(), lambda _: early).incarnation)
        assert time.monotonic() < stopped_at
    assert set(seen) == {3, 2}
    assert seen.count(3) > 1


@pytest.mark.parametrize(("before", "then"), [("a", "b"), ("a", ""), ("", "a"), ("", "")])
def test_without_the_same_epoch_incarnations_begin_again(before: str, then: str) -> None:
    played = play(follow(remote()), of(before, ONE, '"3-a"'), of(then, EMPTY, '"2-a"'))
    assert [news.document.incarnation for news in played.told if news.document] == [3, 2]
    assert played.headers("If-None-Match") == [None, '"3-a"', '"2-a"']


def test_epochs_and_tags_beyond_all_bounds_have_no_effect() -> None:
    played = play(follow(remote()), of("a" * 2000, ONE, f'"{"x" * 5000}"'), of("a" * 2000, EMPTY, '"2-a"'))
    assert [news.document.incarnation for news in played.told if news.document] == [3, 2]
    assert played.headers("If-None-Match") == [None, None, '"2-a"']


def test_what_was_asked_for_earlier_and_comes_later_is_no_news() -> None:
    """Two threads share a client: one is held, and confirmed what the other knows better by now."""
    guest = remote()
    perform(guest.document(), lambda _: of("a", EMPTY, '"2-a"'))
    held = guest.poll(10)
    next(held)
    perform(guest.document(), lambda _: of("a", ONE, '"3-a"'))
    with pytest.raises(StopIteration) as ended:
        held.send(said(status=304, etag='"2-a"', forenotice_epoch="a"))
    assert ended.value.value.known.document.incarnation == 3
    assert guest.known is not None
    assert guest.known.tag == '"3-a"'


AT = datetime(2026, 5, 4, 12, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dated", "took", "known", "ahead"),
    [
        (0, 0, 0, 0),
        (2, 0, 0, 0),
        (-2, 0, 0, 0),
        (3, 0, 0, 3),
        (-3, 0, 0, -3),
        # A first answer may take two minutes, and be dated before or after them.
        (-100, 100, 0, 0),
        (-102, 100, 0, 0),
        (-103, 100, 0, -3),
        (3, 100, 0, 3),
        # What is known is given up when it cannot be right, and only then.
        (-60, 10, -60, -60),
        (-50, 10, -60, -40),
        (-5, 10, -5, -5),
        (500, 0, 500.9, 500.9),
        (0, 0, 500, 0),
        (600, 0, 500, 600),
    ],
)
def test_ahead(dated: float, took: float, known: float, ahead: float) -> None:
    date = AT.replace(microsecond=0) + timedelta(seconds=dated)
    assert client_endpoint.clock_ahead(date, AT, took, known) == pytest.approx(ahead)
