"""Approvals on their way to the endpoint."""

import json
import queue
import threading

import pytest
from tests.agent.rules.builders import event
from tests.client.scripted import Asked, answer, scripted

from forenotice.agent.approving import Approver
from forenotice.agent.messages import Answered
from forenotice.client import Pace

PACE = Pace(first_timeout=0.2)
NOBODY = "http://127.0.0.1:1"


def sent(url: str) -> Answered:
    posted: queue.SimpleQueue[Answered] = queue.SimpleQueue()
    approver = Approver(lambda: url, posted.put, PACE)
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


def test_an_endpoint_that_is_none() -> None:
    found = sent("nonsense://")
    assert "is not a metadata endpoint" in found.error


def test_one_event_does_not_wait_for_another() -> None:
    approver = Approver(lambda: NOBODY, lambda _: None, PACE)
    approver.answered(Answered("E1", "no"))
    assert not approver.may_send("E1")
    assert approver.may_send("E2")
