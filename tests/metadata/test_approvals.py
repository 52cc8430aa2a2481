"""StartRequests, from the body to the service and back."""

import json
import re
import socket
import threading

import pytest
from tests.metadata.running import (
    APPROVAL,
    EVENT_ID,
    FLEET,
    PATH,
    WEB,
    WEB_VMS,
    Running,
    auto,
    request,
    running,
    until,
)

from forenotice import publication
from forenotice.core import errors
from forenotice.core.lifecycle import StartRequests
from forenotice.liveness import WITHIN_SECONDS
from forenotice.metadata.options import Limits, Options

OTHER = "F020BA2E-3BC0-4C40-A10B-86575A9EABD5"


def post(server: Running, body: bytes, *headers: str, target: str = PATH) -> tuple[int, bytes]:
    reply = server.ask(target, method="POST", headers=("Metadata: true", *headers), body=body)
    return reply.status, reply.body


def test_an_approval_reaches_the_service_and_is_answered_empty(server: Running) -> None:
    assert post(
        server, APPROVAL.lower().replace(b"startrequests", b"StartRequests").replace(b"eventid", b"EventId")
    ) == (
        200,
        b"",
    )
    assert server.guests.approvals == [StartRequests(vm="web-0", scope="group:web", event_ids=(EVENT_ID,))]
    assert server.server.counters.approvals_2xx == 1


@pytest.mark.parametrize(
    "body",
    [
        f'{{"StartRequests":[{{"EventId":"{EVENT_ID}"}}],"DocumentIncarnation":5}}',
        f'{{"DocumentIncarnation":"5","StartRequests":[{{"EventId":"{EVENT_ID}","Extra":[1]}}],"More":{{}}}}',
    ],
)
def test_unknown_keys_have_no_effect(server: Running, body: str) -> None:
    assert post(server, body.encode()) == (200, b"")
    assert [approval.event_ids for approval in server.guests.approvals] == [(EVENT_ID,)]


def test_many_ids_are_one_approval(server: Running) -> None:
    body = json.dumps({"StartRequests": [{"EventId": EVENT_ID}, {"EventId": OTHER.lower()}]}).encode()
    assert post(server, body) == (200, b"")
    assert [approval.event_ids for approval in server.guests.approvals] == [(EVENT_ID, OTHER)]


@pytest.mark.parametrize("content", ["application/json", "application/x-www-form-urlencoded", "text/plain", "?"])
def test_any_content_type_will_do(server: Running, content: str) -> None:
    assert post(server, APPROVAL, f"Content-Type: {content}") == (200, b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"{}",
        b'{"StartRequests":[]}',
        b'{"StartRequests":[{}]}',
        b'{"StartRequests":[{"EventId":"1"}]}',
        b'{"StartRequests":{"EventId":"' + EVENT_ID.encode() + b'"}}',
        b"[" * 30_000,
    ],
)
def test_a_malformed_body_is_refused_and_the_connection_goes_on(server: Running, body: bytes) -> None:
    with server.connect() as client:
        client.send(request(method="POST", body=body))
        reply = client.reply()
        assert reply.status == 400
        assert list(json.loads(reply.body)) == ["error"]
        assert re.match(r"Bad request\. [A-Z]", json.loads(reply.body)["error"])
        client.send(request(method="POST", body=APPROVAL))
        assert client.reply().status == 200
    assert len(server.guests.approvals) == 1


def test_what_the_service_refuses_is_a_bad_request(server: Running) -> None:
    server.guests.outcome = lambda approval: (
        errors.RefusedError("not of this VM") if approval.event_ids == (OTHER,) else None
    )
    status, body = post(server, APPROVAL.replace(EVENT_ID.encode(), OTHER.encode()))
    assert (status, json.loads(body)) == (400, {"error": "Bad request. Not of this VM"})
    assert post(server, APPROVAL) == (200, b"")
    server.guests.outcome = lambda _: errors.NotFoundError()
    assert post(server, APPROVAL)[0] == 400


@pytest.mark.parametrize("broken", [errors.UnavailableError(), errors.UnsoundError(), ZeroDivisionError("a bug")])
def test_without_the_store_an_approval_is_never_acknowledged(server: Running, broken: Exception) -> None:
    server.guests.broken = broken
    for _ in range(3):
        reply = server.ask(method="POST", body=APPROVAL)
        assert (reply.status, reply["Retry-After"]) == (503, "5")
        assert server.ask().status == 200
    server.guests.broken = None
    assert post(server, APPROVAL) == (200, b"")
    assert server.server.counters.approvals_5xx == 3


def test_an_answer_too_few_acknowledges_nothing(server: Running) -> None:
    server.guests.approve = lambda approvals: []  # type: ignore[method-assign]
    assert post(server, APPROVAL)[0] == 503


def test_approvals_that_come_together_share_a_batch(server: Running) -> None:
    server.guests.gate.clear()
    clients = [server.connect() for _ in range(20)]
    try:
        for client in clients:
            client.send(request(method="POST", body=APPROVAL))
        until(lambda: server.server.counters.open == 20)
        assert all(client.is_silent(0.02) for client in clients)
        server.guests.gate.set()
        assert {client.reply().status for client in clients} == {200}
    finally:
        for client in clients:
            client.socket.close()
    assert sum(server.guests.batches) == 20
    assert len(server.guests.batches) < 20


def test_polls_go_on_while_the_store_is_slow(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL) + request())
        assert client.is_silent()
        assert server.ask().status == 200
        server.guests.gate.set()
        assert (client.reply().body, client.reply().status) == (b"", 200)


def test_too_many_pending_approvals_are_turned_away() -> None:
    with running(options=Options(rate=None, limits=Limits(approvals=1))) as server:
        server.guests.gate.clear()
        with server.connect() as first, server.connect() as second, server.connect() as flood:
            first.send(request(method="POST", body=APPROVAL))
            until(lambda: server.guests.entered == 1)
            second.send(request(method="POST", body=APPROVAL))
            assert second.is_silent()
            flood.send(request(method="POST", body=APPROVAL) * 2000)
            assert {flood.reply().status for _ in range(2000)} == {503}
            server.guests.gate.set()
            assert [first.reply().status, second.reply().status] == [200, 200]


def test_a_store_that_hangs_makes_nobody_wait_for_ever() -> None:
    with running(options=Options(rate=None, limits=Limits(patience_seconds=0.2))) as server:
        server.guests.gate.clear()
        with server.connect() as first, server.connect() as second:
            for client in (first, second):
                client.send(request(method="POST", body=APPROVAL))
                until(lambda: server.guests.entered == 1)
            for client in (first, second):
                reply = client.reply()
                assert (reply.status, reply["Retry-After"]) == (503, "5")
                client.send(request())
                assert client.reply().status == 200
            server.guests.gate.set()
            until(lambda: server.guests.batches == [1])
            # Of the two answers only the first counts, and what the store was never told is not done either.
            first.send(request(method="POST", body=APPROVAL))
            assert (first.reply().status, server.guests.batches) == (200, [1, 1])


def test_a_client_that_leaves_before_its_answer_harms_nobody(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL))
        assert client.is_silent()
    server.guests.gate.set()
    until(lambda: server.server.counters.open == 0)
    assert len(server.guests.approvals) == 1
    assert server.ask().status == 200


def test_a_client_that_sends_no_more_still_gets_its_answer(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_silent()
        server.guests.gate.set()
        assert client.reply().status == 200
        assert client.is_closed()


def test_a_pending_approval_is_answered_before_the_server_stops(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL))
        assert client.is_silent()
        stopping = server.stop_soon()
        threading.Timer(0.1, server.guests.gate.set).start()
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (200, "close")
        stopping.result(10)
    assert len(server.guests.approvals) == 1


def test_an_approval_does_not_start_a_silent_scope_listening() -> None:
    fleet = (publication.of(auto(WEB), vms=WEB_VMS), FLEET[1])
    with running(fleet=fleet) as server:
        assert post(server, APPROVAL) == (200, b"")
        server.stop()
        assert server.guests.heards == []


def test_a_bridge_that_is_stuck_is_told_from_one_that_is_idle(server: Running) -> None:
    server.seconds += WITHIN_SECONDS + 1
    until(lambda: not server.liveness.silent())
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL))
        until(lambda: server.guests.entered == 1)
        server.seconds += WITHIN_SECONDS + 1
        assert set(server.liveness.silent()) == {"guests"}
        server.guests.gate.set()
        assert client.reply().status == 200
    until(lambda: not server.liveness.silent())
