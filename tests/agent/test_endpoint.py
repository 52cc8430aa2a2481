"""Polls, approvals, and the list of events."""

import io
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.agent.parts import NOBODY, RUNTIME, context, idle_poller
from tests.agent.rules.builders import event
from tests.client.both import QUICK
from tests.client.older import OLDEST, knowing, refusal, version_of
from tests.client.samples import EVENT, document
from tests.client.scripted import Asked, Script, answer, scripted

from forenotice.agent.endpoint import NAME_AGAIN, SILENT, ApprovalResult, Approver, EventList, Named, Polled, Poller
from forenotice.client import Client, Document, EndpointError, News, Pace

EMPTY = answer(body=document())
NAME = answer(body=b"web-0")
Inbox = queue.SimpleQueue[Polled | Named]


def is_name(asked: Asked) -> bool:
    return "instance" in asked.target


@contextmanager
def polled(
    script: Script, at_once: float = 0.9, name_again: float = NAME_AGAIN, interval: float = 0.02
) -> Iterator[tuple[Poller, Inbox, io.StringIO]]:
    inbox: Inbox = queue.SimpleQueue()
    written = io.StringIO()
    with scripted(script) as endpoint:
        client = Client(endpoint.url, pace=Pace(interval=0.02, at_once=at_once))
        made = {"name_again": name_again, "interval": interval}
        found = Poller(client, inbox.put, context(written), **made)
        try:
            found.start()
            yield found, inbox, written
        finally:
            found.stop()


def until_named(inbox: Inbox) -> Iterator[None]:
    """Polls go on meanwhile, so each of them coming in time is not enough."""
    deadline = time.monotonic() + 60
    while inbox.get(timeout=60) != Named("web-0"):
        assert time.monotonic() < deadline, "the endpoint is never asked for the name again"
        yield


def news(document: Document | None = None, *, error: str = "", at: float = 1.0, **more: Any) -> News:
    usual = {"changed": bool(document), "date": None, "asked_at": at, "answered_at": at}
    return News(document=document, error=EndpointError(error) if error else None, **{**usual, **more})


def test_the_name_comes_before_the_first_poll() -> None:
    with polled(lambda asked, _: NAME if is_name(asked) else EMPTY) as (_, inbox, _log):
        assert inbox.get(timeout=60) == Named("web-0")
        assert isinstance(inbox.get(timeout=60), Polled)
        assert isinstance(inbox.get(timeout=60), Polled)


def test_polls_are_not_held_until_the_name_is_known() -> None:
    waits: list[bool] = []

    def script(asked: Asked, _: object) -> bytes:
        if is_name(asked):
            return answer("503 Service Unavailable") if len(waits) < 4 else NAME
        waits.append("prefer" in asked.headers)
        return answer("200 OK", document(), 'ETag: "1"')

    with polled(script, at_once=0) as (_, inbox, log):
        for _ in until_named(inbox):
            pass
        deadline = time.monotonic() + 60
        while not waits[-1]:
            assert time.monotonic() < deadline, "no poll is held"
            inbox.get(timeout=60)
    assert waits[:4] == [False] * 4
    assert "name.failed" in log.getvalue()


def test_an_endpoint_without_names_is_asked_for_one_again_only_later() -> None:
    asked: list[bool] = []

    def script(request: Asked, _: object) -> bytes:
        asked.append(is_name(request))
        return answer("404 Not Found") if is_name(request) else EMPTY

    with polled(script) as (_, inbox, _log):
        assert isinstance(inbox.get(timeout=60), Named)
        for _number in range(3):
            assert isinstance(inbox.get(timeout=60), Polled)
    assert sum(asked) == 1


def test_while_its_name_is_a_guess_polls_are_not_held_and_it_asks_again_soon() -> None:
    waits: list[bool] = []

    def script(request: Asked, _: object) -> bytes:
        if is_name(request):
            return NAME if waits[1:] else answer("404 Not Found")
        waits.append("prefer" in request.headers)
        return answer("200 OK", document(), 'ETag: "1"')

    with polled(script, at_once=0, name_again=0.05) as (_, inbox, _log):
        guess = inbox.get(timeout=60)
        assert isinstance(guess, Named)
        assert guess != Named("web-0")
        for _ in until_named(inbox):
            assert not any(waits)
    assert 1 < NAME_AGAIN < 10


def test_an_older_version_is_logged_once() -> None:
    with polled(knowing([OLDEST], refusal())) as (found, inbox, log):
        recorded = 0
        while recorded < 3:
            if isinstance(message := inbox.get(timeout=60), Polled):
                found.record(message.news)
                recorded += 1
    assert log.getvalue().count("poll.version") == 1
    assert f'"api_version":"{OLDEST}"' in log.getvalue().replace(" ", "")


def test_whether_it_works() -> None:
    found = idle_poller()
    assert (found.works, found.why) == (False, "there was no answer yet")
    found.record(news(error="refused"))
    assert (found.works, found.why) == (False, "refused")
    found.record(news(at=time.monotonic()))
    assert found.works
    found.record(news(error="refused"))
    assert found.works, "one failure is no reason for alarm"
    found.record(news(at=time.monotonic() - SILENT - 1))
    assert (found.works, found.why) == (False, "the endpoint has been silent for more than 30 s")


def test_a_defect_does_not_end_it() -> None:
    posted: Inbox = queue.SimpleQueue()
    broken = iter([True])

    def post(message: Polled | Named) -> None:
        if next(broken, False):
            raise RuntimeError("broken")
        posted.put(message)

    written = io.StringIO()
    with scripted(lambda asked, _: NAME if is_name(asked) else EMPTY) as endpoint:
        client = Client(endpoint.url, pace=Pace(interval=0.02))
        found = Poller(client, post, context(written), pause=0.01)
        found.start()
        assert posted.get(timeout=60)
        found.stop()
    assert "RuntimeError: broken" in written.getvalue()


def test_a_server_that_lags_behind_another_takes_no_event_away() -> None:
    """An event that was gone for half a second would be undone, and prepared for again."""

    def one_of_two(asked: Asked, _: object) -> bytes:
        if is_name(asked):
            return answer(body=b"WestNO_0")
        events, incarnation = ((), 2) if asked.number % 2 else ((EVENT,), 3)
        return answer("200 OK", document(*events, incarnation=incarnation), "Forenotice-Epoch: web-7")

    seen: list[int] = []
    with polled(one_of_two) as (_, inbox, _log):
        while len(seen) < 7:
            message = inbox.get(timeout=60)
            if isinstance(message, Polled) and message.news.document:
                seen.append(len(message.news.document.events))
    assert seen[1:] == [1] * 6


@pytest.mark.parametrize("lacks", [True, False])
def test_a_document_that_lacks_an_event_is_polled_once_more_before_long(lacks: bool) -> None:
    """A held poll would delay the proof that an event is gone; one at once would prove little."""
    asked: list[tuple[float, bool]] = []

    def script(request: Asked, _: object) -> bytes:
        if is_name(request):
            return NAME
        asked.append((time.monotonic(), "prefer" in request.headers))
        number = len(asked)
        incarnation = 2 if number < 4 else 3
        body = document(*([EVENT] if (number < 4) == lacks else []), incarnation=incarnation)
        return answer("200 OK", b"" if lacks and number == 5 else body, f'ETag: "{incarnation}"')

    with polled(script, at_once=0, interval=0.2 if lacks else 0.02) as (_, inbox, _log):
        while len(asked) < 8:
            inbox.get(timeout=60)
    held = [patient for _, patient in asked]
    if lacks:
        # What came before the first is unknown; the fourth lacks an event; the fifth response confirms nothing.
        assert held[:7] == [False, False, True, True, False, False, True]
        assert asked[4][0] - asked[3][0] >= 0.2
    else:
        assert held[:6] == [False, False, True, True, True, True]


APPROVAL_PACE = Pace(first_timeout=0.2)


def sent(url: str) -> ApprovalResult:
    posted: queue.SimpleQueue[ApprovalResult] = queue.SimpleQueue()
    approver = Approver(Client(url), posted.put, RUNTIME, APPROVAL_PACE)
    assert approver.may_send("E1")
    approver.send("E1", event())
    assert not approver.may_send("E1")
    found = posted.get(timeout=60)
    approver.record(found)
    # After a failure only after a pause.
    assert approver.may_send("E1") == (not found.error)
    return found


def test_an_approval_succeeds() -> None:
    with scripted(lambda asked, ended: answer()) as endpoint:
        assert sent(endpoint.url) == ApprovalResult("E1", "")
    assert json.loads(endpoint.asked[0].body) == {"StartRequests": [{"EventId": "E1"}]}


@pytest.mark.parametrize(
    ("status", "refused"), [("400 Bad Request", True), ("404 Not Found", False), ("503 Service Unavailable", False)]
)
def test_an_approval_is_refused(status: str, refused: bool) -> None:
    with scripted(lambda asked, ended: answer(status, b'{"error":"this is why"}')) as endpoint:
        found = sent(endpoint.url)
    assert "this is why" in found.error
    assert found.refused == refused


def test_an_approval_uses_the_version_that_polling_has_found() -> None:
    posted: queue.SimpleQueue[ApprovalResult] = queue.SimpleQueue()
    with scripted(knowing([OLDEST], refusal())) as endpoint, Client(endpoint.url, pace=QUICK) as client:
        client.document()
        Approver(client, posted.put, RUNTIME, APPROVAL_PACE).send("E1", event())
        assert posted.get(timeout=60) == ApprovalResult("E1", "")
    assert [version_of(asked) for asked in endpoint.asked if asked.method == "POST"] == [OLDEST]


def test_an_approval_is_not_answered() -> None:
    def silent(asked: Asked, ended: threading.Event) -> bytes | None:
        ended.wait(60)
        return None

    with scripted(silent) as endpoint:
        found = sent(endpoint.url)
    assert "timed out" in found.error
    assert not found.refused
    assert "connection refused" in sent(NOBODY).error


def test_one_events_approval_does_not_wait_for_anothers() -> None:
    approver = Approver(Client(NOBODY), lambda _: None, RUNTIME)
    approver.record(ApprovalResult("E1", "no"))
    assert not approver.may_send("E1")
    assert approver.may_send("E2")


LISTED = Document(incarnation=7, events=(event(id="e1"),))
GONE = Document(incarnation=8)
RESTARTED = Document(incarnation=1)
SILENCE = news(GONE, changed=False, shown=False)
"""200 without a body: the last document is reported again."""
FAILURE = news(GONE, changed=False, shown=False, error="404")


@pytest.mark.parametrize(
    ("polls", "knows"),
    [
        ([LISTED], True),
        ([LISTED, GONE], False),
        ([LISTED, GONE, GONE], True),
        ([LISTED, GONE, SILENCE], False),
        ([LISTED, GONE, FAILURE], False),
        ([LISTED, GONE, FAILURE, GONE], True),
        ([LISTED, news(LISTED, changed=False, shown=False)], True),
        ([LISTED, RESTARTED], False),
        ([LISTED, GONE, RESTARTED], False),
        ([LISTED, GONE, RESTARTED, RESTARTED], True),
        ([LISTED, RESTARTED, LISTED, RESTARTED], False),
        ([LISTED, RESTARTED, LISTED], True),
        ([GONE], False),
        ([GONE, GONE], True),
        ([], False),
    ],
)
def test_an_event_is_gone_when_two_polls_in_a_row_did_not_show_it(polls: list[Document | News], knows: bool) -> None:
    events = EventList()
    for poll in polls:
        events.record(poll if isinstance(poll, News) else news(poll))
    assert events.knows("E1") == knows
    assert (events.find("E1") is not None) == (knows and events.document is LISTED)


def test_it_tells_whether_there_is_anything_new() -> None:
    events = EventList()
    polls = [None, LISTED, LISTED, LISTED, news(LISTED, changed=False, shown=False), GONE, GONE, GONE]
    new = [events.record(poll if isinstance(poll, News) else news(poll)) for poll in polls]
    assert new == [False, True, True, False, False, True, True, False]
