"""Approvals on their way to the endpoint."""

import json
import queue
import threading

import pytest
from tests.agent.rules.builders import event
from tests.client.both import QUICK
from tests.client.older import OLDEST, knowing, refusal, version_of
from tests.client.scripted import Asked, answer, scripted

from forenotice.agent.endpoint import Answered, Approver
from forenotice.client import Client, Pace

PACE = Pace(first_timeout=0.2)
NOBODY = "http://127.0.0.1:1"


def sent(url: str) -> Answered:
    posted: queue.SimpleQueue[Answered] = queue.SimpleQueue()
    approver = Approver(Client(url), posted.put, PACE)
    assert approver.may_send("E1")
    approver.send("E1", event())
    assert not approver.may_send("E1")
    found = posted.get(timeout=60)
    approver.answered(found)
    # At once only what went well: it will not be sent again anyway.
    assert approver.may_send("E1") == (not found.error)
    return found


def test_yes() -> None:
    with scripted(lambda asked, ended: answer()) as endpoint:
        assert sent(endpoint.url) == Answered("E1", "")
    assert json.loads(endpoint.asked[0].body) == {"StartRequests": [{"EventId": "E1"}]}


@pytest.mark.parametrize(
    ("status", "refused"), [("400 Bad Request", True), ("404 Not Found", False), ("503 Service Unavailable", False)]
)
def test_everything_else_is_no(status: str, refused: bool) -> None:
    with scripted(lambda asked, ended: answer(status, b'{"error":"this is why"}')) as endpoint:
        found = sent(endpoint.url)
    assert "this is why" in found.error
    assert found.refused == refused


def test_it_is_asked_in_the_version_that_polling_has_found() -> None:
    """A client for each approval would else be refused first, each time."""
    posted: queue.SimpleQueue[Answered] = queue.SimpleQueue()
    with scripted(knowing([OLDEST], refusal())) as endpoint, Client(endpoint.url, pace=QUICK) as client:
        approver = Approver(client, posted.put, PACE)
        client.document()
        approver.send("E1", event())
        assert posted.get(timeout=60) == Answered("E1", "")
    assert [version_of(asked) for asked in endpoint.asked if asked.method == "POST"] == [OLDEST]


def test_no_answer_in_time() -> None:
    def silent(asked: Asked, ended: threading.Event) -> bytes | None:
        ended.wait(60)
        return None

    with scripted(silent) as endpoint:
        found = sent(endpoint.url)
    assert "timed out" in found.error
    assert not found.refused


def test_nobody_there() -> None:
    assert "connection refused" in sent(NOBODY).error


def test_one_event_does_not_wait_for_another() -> None:
    approver = Approver(Client(NOBODY), lambda _: None, PACE)
    approver.answered(Answered("E1", "no"))
    assert not approver.may_send("E1")
    assert approver.may_send("E2")
