"""StartRequests, from the body to the service and back."""

import json
import re
import socket
import threading
from contextlib import ExitStack

import pytest
from tests.metadata import running as rig
from tests.metadata.running import APPROVAL, EVENT_ID, FLEET, PATH, WEB, Running, auto, limited, request, running, until

from forenotice import publication
from forenotice.core import errors
from forenotice.core.lifecycle import StartRequests
from forenotice.failures import WITHIN_SECONDS

OTHER = "F020BA2E-3BC0-4C40-A10B-86575A9EABD5"
POST = request(method="POST", body=APPROVAL)


def post(server: Running, body: bytes, *headers: str) -> tuple[int, bytes]:
    reply = server.ask(PATH, method="POST", headers=("Metadata: true", *headers), body=body)
    return reply.status, reply.body


@pytest.mark.parametrize(
    ("body", "event_ids"),
    [
        (f'{{"StartRequests":[{{"EventId":"{EVENT_ID.lower()}"}}]}}', (EVENT_ID,)),
        (f'{{"StartRequests":[{{"EventId":"{EVENT_ID}"}}],"DocumentIncarnation":5}}', (EVENT_ID,)),
        (
            f'{{"DocumentIncarnation":"5","StartRequests":[{{"EventId":"{EVENT_ID}","Extra":[1]}}],"More":{{}}}}',
            (EVENT_ID,),
        ),
        (json.dumps({"StartRequests": [{"EventId": EVENT_ID}, {"EventId": OTHER.lower()}]}), (EVENT_ID, OTHER)),
    ],
)
def test_an_approval_reaches_the_service_and_gets_an_empty_response(
    server: Running, body: str, event_ids: tuple[str, ...]
) -> None:
    assert post(server, body.encode()) == (200, b"")
    assert server.guests.approvals == [StartRequests(vm="web-0", scope="group:web", event_ids=event_ids)]
    assert server.server.counters.approvals_2xx == 1
    for content in ("application/json", "application/x-www-form-urlencoded", "text/plain", "?"):
        assert post(server, body.encode(), f"Content-Type: {content}") == (200, b"")


def test_a_malformed_body_is_refused_and_the_connection_goes_on(server: Running) -> None:
    with server.connect() as client:
        for body in (
            b"",
            b"nonsense",
            b"{}",
            b'{"StartRequests":[]}',
            b'{"StartRequests":[{}]}',
            b'{"StartRequests":[{"EventId":"1"}]}',
            b'{"StartRequests":{"EventId":"' + EVENT_ID.encode() + b'"}}',
            b"[" * 30_000,
        ):
            reply = client.ask(request(method="POST", body=body))
            assert reply.status == 400
            (error,) = json.loads(reply.body).items()
            assert re.match(r"error: Bad request\. [A-Z]", ": ".join(error))
        assert client.ask(POST).status == 200
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
    # One outcome too few acknowledges nothing.
    server.guests.approve = lambda approvals: []  # type: ignore[method-assign]
    assert post(server, APPROVAL)[0] == 503


def test_approvals_that_come_together_share_a_batch(server: Running) -> None:
    server.guests.gate.clear()
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(20)]
        for client in clients:
            client.send(POST)
        until(lambda: server.server.counters.open == 20)
        assert all(client.is_silent(0.02) for client in clients)
        server.guests.gate.set()
        assert {client.reply().status for client in clients} == {200}
    assert sum(server.guests.batches) == 20
    assert len(server.guests.batches) < 20


def test_polls_go_on_while_the_store_is_slow(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(POST + request())
        assert client.is_silent()
        assert server.ask().status == 200
        server.guests.gate.set()
        assert (client.reply().body, client.reply().status) == (b"", 200)


def test_too_many_pending_approvals_are_refused() -> None:
    with running(options=limited(approvals=1)) as server:
        server.guests.gate.clear()
        with server.connect() as first, server.connect() as second, server.connect() as flood:
            first.send(POST)
            until(lambda: server.guests.entered == 1)
            second.send(POST)
            assert second.is_silent()
            flood.send(POST * 2000)
            assert set(flood.statuses(2000)) == {503}
            server.guests.gate.set()
            assert [first.reply().status, second.reply().status] == [200, 200]


def test_an_approval_does_not_wait_for_ever_for_a_store_that_hangs() -> None:
    with running(options=limited(patience_seconds=0.2)) as server:
        server.guests.gate.clear()
        with server.connect() as first, server.connect() as second:
            for client in (first, second):
                client.send(POST)
                until(lambda: server.guests.entered == 1)
            for client in (first, second):
                reply = client.reply()
                assert (reply.status, reply["Retry-After"]) == (503, "5")
                assert client.ask(request()).status == 200
            server.guests.gate.set()
            until(lambda: server.guests.batches == [1])
            # Of two outcomes only the first counts, and what the store never got is not done either.
            assert (first.ask(POST).status, server.guests.batches) == (200, [1, 1])


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_or_sends_no_more_before_its_response(server: Running, leaves: bool) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(POST)
        if not leaves:
            client.socket.shutdown(socket.SHUT_WR)
        assert client.is_silent()
        if not leaves:
            server.guests.gate.set()
            assert client.reply().status == 200
            assert client.is_closed()
    server.guests.gate.set()
    until(lambda: server.server.counters.open == 0)
    assert len(server.guests.approvals) == 1
    assert server.ask().status == 200


def test_a_pending_approval_gets_its_response_before_the_server_stops(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(POST)
        assert client.is_silent()
        stopping = server.stop_soon()
        threading.Timer(0.1, server.guests.gate.set).start()
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (200, "close")
        stopping.result(10)
    assert len(server.guests.approvals) == 1


def test_an_approval_does_not_start_a_silent_scope_listening() -> None:
    with running(fleet=(publication.of(auto(WEB), vms=rig.WEB_VMS), FLEET[1])) as server:
        assert post(server, APPROVAL) == (200, b"")
        server.stop()
        assert server.guests.heards == []


def test_an_upstream_that_is_stuck_is_told_from_one_that_is_idle(server: Running) -> None:
    server.seconds += WITHIN_SECONDS + 1
    until(lambda: not server.liveness.silent())
    server.guests.gate.clear()
    with server.connect() as client:
        client.send(POST)
        until(lambda: server.guests.entered == 1)
        server.seconds += WITHIN_SECONDS + 1
        assert set(server.liveness.silent()) == {"guests"}
        server.guests.gate.set()
        assert client.reply().status == 200
    until(lambda: not server.liveness.silent())
