"""The thread that asks the endpoint."""

import io
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.client.older import OLDEST, knowing, refusal
from tests.client.samples import EVENT, document
from tests.client.scripted import Asked, Script, answer, scripted

from forenotice.agent import endpoint
from forenotice.agent.endpoint import Named, Polled, Poller
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.client import Client, EndpointError, News, Pace
from forenotice.clock import MachineClock
from forenotice.settings import LogFormat, LogLevel

EMPTY = answer(body=document())
Inbox = queue.SimpleQueue[Polled | Named]


@contextmanager
def polled(
    script: Script, at_once: float = 0.9, name_again: float = endpoint.NAME_AGAIN, interval: float = 0.02
) -> Iterator[tuple[Poller, Inbox, io.StringIO]]:
    inbox: Inbox = queue.SimpleQueue()
    written = io.StringIO()
    with scripted(script) as endpoint:
        log = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, written)
        client = Client(endpoint.url, pace=Pace(interval=0.02, at_once=at_once))
        found = Poller(client, inbox.put, log, Metrics(), name_again=name_again, interval=interval)
        try:
            found.start()
            yield found, inbox, written
        finally:
            found.stop()


def news(*, error: str = "", age: float = 0.0) -> News:
    at = time.monotonic() - age
    problem = EndpointError(error) if error else None
    return News(document=None, changed=False, error=problem, date=None, asked_at=at, answered_at=at)


def test_the_name_comes_before_the_news() -> None:
    with polled(lambda asked, _: answer(body=b"web-0") if "instance" in asked.target else EMPTY) as (_, inbox, _log):
        assert inbox.get(timeout=60) == Named("web-0")
        assert isinstance(inbox.get(timeout=60), Polled)
        assert isinstance(inbox.get(timeout=60), Polled)


def test_it_is_in_a_hurry_until_it_knows_its_name() -> None:
    """Nothing can be done without one, and a poll that is held would keep it from asking."""
    tag = 'ETag: "1"'
    waits: list[bool] = []

    def script(asked: Asked, _: object) -> bytes:
        if "instance" in asked.target:
            return answer("503 Service Unavailable") if len(waits) < 4 else answer(body=b"web-0")
        waits.append("prefer" in asked.headers)
        return answer("200 OK", document(), tag)

    with polled(script, at_once=0) as (_, inbox, log):
        while inbox.get(timeout=60) != Named("web-0"):
            pass
        while not waits[-1]:
            inbox.get(timeout=60)
    assert waits[:4] == [False] * 4
    assert "name.failed" in log.getvalue()


def test_an_endpoint_without_names_is_asked_for_one_again_only_later() -> None:
    asked: list[str] = []

    def script(request: Asked, _: object) -> bytes:
        asked.append(request.target)
        return answer("404 Not Found") if "instance" in request.target else EMPTY

    with polled(script) as (_, inbox, _log):
        assert isinstance(inbox.get(timeout=60), Named)
        for _number in range(3):
            assert isinstance(inbox.get(timeout=60), Polled)
    assert sum("instance" in target for target in asked) == 1


def test_while_its_name_is_a_guess_it_is_in_a_hurry_and_asks_again_soon() -> None:
    waits: list[bool] = []

    def script(request: Asked, _: object) -> bytes:
        if "instance" in request.target:
            return answer(body=b"web-0") if waits[1:] else answer("404 Not Found")
        waits.append("prefer" in request.headers)
        return answer("200 OK", document(), 'ETag: "1"')

    with polled(script, at_once=0, name_again=0.05) as (_, inbox, _log):
        guess = inbox.get(timeout=60)
        assert isinstance(guess, Named)
        assert guess != Named("web-0")
        while inbox.get(timeout=60) != Named("web-0"):
            assert not any(waits)
    assert 1 < endpoint.NAME_AGAIN < 10


def test_an_older_version_is_told_once() -> None:
    with polled(knowing([OLDEST], refusal())) as (found, inbox, log):
        told = 0
        while told < 3:
            if isinstance(message := inbox.get(timeout=60), Polled):
                found.heard(message.news)
                told += 1
    assert log.getvalue().count("poll.version") == 1
    assert f'"api_version":"{OLDEST}"' in log.getvalue().replace(" ", "")


def test_whether_it_works() -> None:
    log = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, io.StringIO())
    found = Poller(Client("http://127.0.0.1:1"), lambda _: None, log, Metrics())
    assert (found.works, found.why) == (False, "there was no answer yet")
    found.heard(news(error="refused"))
    assert (found.works, found.why) == (False, "refused")
    found.heard(news())
    assert found.works
    # One failure is no reason for alarm.
    found.heard(news(error="refused"))
    assert found.works
    found.heard(news(age=endpoint.SILENT + 1))
    assert (found.works, found.why) == (False, "the endpoint has been silent for more than 30 s")


def test_a_defect_does_not_end_it() -> None:
    posted: Inbox = queue.SimpleQueue()
    broken = iter([True])

    def post(message: Polled | Named) -> None:
        if next(broken, False):
            raise RuntimeError("broken")
        posted.put(message)

    written = io.StringIO()
    with scripted(lambda asked, _: answer(body=b"web-0") if "instance" in asked.target else EMPTY) as endpoint:
        log = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, written)
        found = Poller(Client(endpoint.url, pace=Pace(interval=0.02)), post, log, Metrics(), pause=0.01)
        found.start()
        assert posted.get(timeout=60)
        found.stop()
    assert "RuntimeError: broken" in written.getvalue()


def test_a_server_that_lags_behind_another_takes_no_event_away() -> None:
    """An event that was gone for half a second would be undone, and prepared for again."""

    def one_of_two(asked: Asked, _: object) -> bytes:
        if "instance" in asked.target:
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


def test_a_document_that_lacks_an_event_is_asked_for_once_more_before_long() -> None:
    """A poll that is held would keep the agent from believing that an event is gone; one at once would prove little."""
    asked: list[tuple[float, bool]] = []

    def script(request: Asked, _: object) -> bytes:
        if "instance" in request.target:
            return answer(body=b"web-0")
        asked.append((time.monotonic(), "prefer" in request.headers))
        number = len(asked)
        body = document(EVENT, incarnation=2) if number < 4 else b"" if number == 5 else document(incarnation=3)
        return answer("200 OK", body, f'ETag: "{2 if number < 4 else 3}"')

    with polled(script, at_once=0, interval=0.2) as (_, inbox, _log):
        while len(asked) < 8:
            inbox.get(timeout=60)
    held = [patient for _, patient in asked]
    # Nobody knows what came before the first; the fourth lacks an event; the fifth answer confirms nothing.
    assert held[:7] == [False, False, True, True, False, False, True]
    assert asked[4][0] - asked[3][0] >= 0.2


def test_a_document_that_lacks_nothing_is_believed_at_once() -> None:
    held: list[bool] = []

    def script(request: Asked, _: object) -> bytes:
        if "instance" in request.target:
            return answer(body=b"web-0")
        held.append("prefer" in request.headers)
        events, tag = ((), 2) if len(held) < 4 else ((EVENT,), 3)
        return answer("200 OK", document(*events, incarnation=tag), f'ETag: "{tag}"')

    with polled(script, at_once=0) as (_, inbox, _log):
        while len(held) < 6:
            inbox.get(timeout=60)
    assert held[:6] == [False, False, True, True, True, True]
