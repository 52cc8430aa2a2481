"""Polls, approvals, and the list of events."""

import io
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.agent.parts import NOBODY, RUNTIME, context, idle_poller
from tests.agent.rules.builders import event
from tests.client.both import QUICK
from tests.client.older import OLDEST, knowing, refusal, version_of
from tests.client.samples import EVENT, document
from tests.client.scripted import Asked, Script, answer, scripted

from forenotice.agent.endpoint import NAME_AGAIN, SILENT, ApprovalResult, Approver, EventList, Named, Poller
from forenotice.client import Client, Document, EndpointError, News, Pace

NAME = answer(body=b"web-0")
Inbox = queue.SimpleQueue[News | Named]


@contextmanager
def polled(
    script: Script, at_once: float = 0.9, post: Callable[[News | Named], None] | None = None, **how: float
) -> Iterator[tuple[Poller, Inbox, io.StringIO]]:
    inbox: Inbox = queue.SimpleQueue()
    written = io.StringIO()
    with scripted(script) as endpoint:
        client = Client(endpoint.url, pace=Pace(interval=0.02, at_once=at_once))
        found = Poller(client, post or inbox.put, context(written), **{"interval": 0.02, **how})
        try:
            found.start()
            yield found, inbox, written
        finally:
            found.stop()


def with_name(respond: Callable[[Asked], bytes]) -> Script:
    """An endpoint that knows this VM's name."""
    return lambda asked, _: NAME if "instance" in asked.target else respond(asked)


EMPTY = with_name(lambda _: answer(body=document()))


def news(document: Document | None = None, *, error: str = "", at: float = 1.0, **more: Any) -> News:
    usual = {"changed": bool(document), "date": None, "asked_at": at, "answered_at": at}
    return News(document=document, error=EndpointError(error) if error else None, **{**usual, **more})


def test_the_name_comes_before_the_first_poll() -> None:
    with polled(EMPTY) as (_, inbox, _log):
        found = [inbox.get(timeout=60) for _ in range(3)]
    assert found[0] == Named("web-0")
    assert [type(message) for message in found[1:]] == [News, News]


@pytest.mark.parametrize(("status", "guessed"), [("503 Service Unavailable", False), ("404 Not Found", True)])
def test_polls_are_not_held_until_the_endpoint_has_told_the_name(status: str, guessed: bool) -> None:
    held: list[bool] = []

    def script(asked: Asked, _: object) -> bytes:
        if "instance" in asked.target:
            return answer(status) if len(held) < 4 else NAME
        held.append("prefer" in asked.headers)
        return answer("200 OK", document(), 'ETag: "1"')

    with polled(script, at_once=0, name_again=0.05) as (_, inbox, log):
        first = inbox.get(timeout=60)
        assert (isinstance(first, Named) and first != Named("web-0")) == guessed
        while inbox.get(timeout=60) != Named("web-0"):
            assert not any(held)
        while not held[-1]:
            inbox.get(timeout=60)
    assert held[:4] == [False] * 4
    assert ("name.failed" in log.getvalue()) != guessed


def test_an_endpoint_without_names_is_asked_again_only_later() -> None:
    names: list[bool] = []

    def script(asked: Asked, _: object) -> bytes:
        names.append("instance" in asked.target)
        return answer("404 Not Found") if names[-1] else answer(body=document())

    with polled(script) as (_, inbox, _log):
        for _number in range(4):
            inbox.get(timeout=60)
    assert (sum(names), 1 < NAME_AGAIN < 10) == (1, True)


def test_an_older_version_is_logged_once() -> None:
    with polled(knowing([OLDEST], refusal())) as (found, inbox, log):
        recorded = 0
        while recorded < 3:
            if isinstance(message := inbox.get(timeout=60), News):
                found.record(message)
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

    def post(message: News | Named) -> None:
        if next(broken, False):
            raise RuntimeError("broken")
        posted.put(message)

    with polled(EMPTY, post=post, pause=0.01) as (_, _inbox, log):
        assert posted.get(timeout=60)
    assert "RuntimeError: broken" in log.getvalue()


def test_a_server_that_lags_behind_another_takes_no_event_away() -> None:
    """An event that was gone for half a second would be undone, and prepared for again."""

    def one_of_two(asked: Asked) -> bytes:
        events, incarnation = ((), 2) if asked.number % 2 else ((EVENT,), 3)
        return answer("200 OK", document(*events, incarnation=incarnation), "Forenotice-Epoch: web-7")

    seen: list[int] = []
    with polled(with_name(one_of_two)) as (_, inbox, _log):
        while len(seen) < 7:
            message = inbox.get(timeout=60)
            if isinstance(message, News) and message.document:
                seen.append(len(message.document.events))
    assert seen[1:] == [1] * 6


@pytest.mark.parametrize("lacks", [True, False])
def test_a_document_that_lacks_an_event_is_polled_once_more_before_long(lacks: bool) -> None:
    """A held poll would delay the proof that an event is gone; one at once would prove little."""
    asked: list[tuple[float, bool]] = []

    def respond(request: Asked) -> bytes:
        asked.append((time.monotonic(), "prefer" in request.headers))
        number = len(asked)
        incarnation = 2 if number < 4 else 3
        body = document(*([EVENT] if (number < 4) == lacks else []), incarnation=incarnation)
        return answer("200 OK", b"" if lacks and number == 5 else body, f'ETag: "{incarnation}"')

    with polled(with_name(respond), at_once=0, interval=0.2 if lacks else 0.02) as (_, inbox, _log):
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
    approver.send("E1", event())
    assert [approver.may_send("E1"), approver.may_send("E2")] == [False, True]
    found = posted.get(timeout=60)
    approver.record(found)
    # After a failure only after a pause.
    assert [approver.may_send("E1"), approver.may_send("E2")] == [not found.error, True]
    return found


@pytest.mark.parametrize(
    ("status", "refused"),
    [("200 OK", False), ("400 Bad Request", True), ("404 Not Found", False), ("503 Service Unavailable", False)],
)
def test_an_approval_succeeds_or_is_refused(status: str, refused: bool) -> None:
    with scripted(lambda asked, ended: answer(status, b'{"error":"this is why"}')) as endpoint:
        found = sent(endpoint.url)
    assert json.loads(endpoint.asked[0].body) == {"StartRequests": [{"EventId": "E1"}]}
    assert ("this is why" in found.error, found.refused) == (status != "200 OK", refused)


def test_an_approval_without_a_response() -> None:
    def silent(asked: Asked, ended: threading.Event) -> bytes | None:
        ended.wait(60)
        return None

    with scripted(silent) as endpoint:
        found = sent(endpoint.url)
    assert ("timed out" in found.error, found.refused) == (True, False)
    assert "connection refused" in sent(NOBODY).error


def test_an_approval_uses_the_version_that_polling_has_found() -> None:
    posted: queue.SimpleQueue[ApprovalResult] = queue.SimpleQueue()
    with scripted(knowing([OLDEST], refusal())) as endpoint, Client(endpoint.url, pace=QUICK) as client:
        client.document()
        Approver(client, posted.put, RUNTIME, APPROVAL_PACE).send("E1", event())
        assert posted.get(timeout=60) == ApprovalResult("E1", "")
    assert [version_of(asked) for asked in endpoint.asked if asked.method == "POST"] == [OLDEST]


LISTED = Document(incarnation=7, events=(event(id="e1"),))
GONE = Document(incarnation=8)
RESTARTED = Document(incarnation=1)
SILENCE = news(GONE, changed=False, shown=False)
"""200 without a body: the last document is reported again."""
SAME = news(LISTED, changed=False, shown=False)
FAILURE = news(GONE, changed=False, shown=False, error="404")


def listed(events: EventList, *polls: Document | News | None) -> list[bool]:
    """Whether each poll brought something new."""
    return [events.record(poll if isinstance(poll, News) else news(poll)) for poll in polls]


@pytest.mark.parametrize(
    ("polls", "knows"),
    [
        ([LISTED], True),
        ([LISTED, GONE], False),
        ([LISTED, GONE, GONE], True),
        ([LISTED, GONE, SILENCE], False),
        ([LISTED, GONE, FAILURE], False),
        ([LISTED, GONE, FAILURE, GONE], True),
        ([LISTED, SAME], True),
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
    listed(events, *polls)
    assert events.knows("E1") == knows
    assert (events.find("E1") is not None) == (knows and events.document is LISTED)


def test_whether_there_is_anything_new() -> None:
    new = listed(EventList(), None, LISTED, LISTED, LISTED, SAME, GONE, GONE, GONE)
    assert new == [False, True, True, False, False, True, True, False]
