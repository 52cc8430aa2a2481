"""Every request is recorded with its answer, whatever became of it, and the server can be added to."""

import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic

import pytest
from tests.emulator.faulty import SHORT, Faulty, faulty
from tests.metadata.running import APPROVAL, DEADLINE, EVENT_ID, PATH, Client, request

from forenotice.core import errors
from forenotice.metadata.options import Options
from forenotice.settings import Address, Listener


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty() as server:
        yield server


def test_a_poll_is_recorded(server: Faulty) -> None:
    server.moving.moved = timedelta(days=1)
    before = monotonic()
    server.ask(headers=("Metadata: true", "X-Twice: a", "X-Twice: b"))
    (asked,) = server.requests
    assert abs(asked.at - server.moving.now()) < timedelta(seconds=5)
    assert before <= asked.monotonic <= asked.answered <= monotonic()
    assert (asked.vm, asked.method, asked.target, asked.api_version) == ("web-0", "GET", PATH, "2020-07-01")
    assert asked.headers["metadata"] == "true"
    assert asked.headers["x-twice"] == "a, b"
    assert (asked.body, asked.status, asked.fault, asked.event_ids) == (b"", 200, None, ())
    assert server.requests.polls == (asked,)
    assert server.requests.approvals == ()


def test_an_approval_is_recorded_with_its_ids(server: Faulty) -> None:
    server.ask(method="POST", body=APPROVAL.replace(EVENT_ID.encode(), EVENT_ID.lower().encode()))
    server.ask(method="POST", body=b"{}")
    server.ask(method="POST", body=APPROVAL, headers=())
    good, bad, forgetful = server.requests.approvals
    assert (good.status, good.event_ids) == (200, (EVENT_ID,))
    assert (bad.status, bad.event_ids, bad.body) == (400, (), b"{}")
    assert (forgetful.status, forgetful.event_ids) == (400, (EVENT_ID,))


def test_the_same_poll_again_is_recorded_again(server: Faulty) -> None:
    """Otherwise it would be answered by the bytes that it is, unseen."""
    with server.connect() as client:
        for _ in range(3):
            client.send(request())
            assert client.reply().status == 200
    for _ in range(2):
        server.ask()
    assert [asked.status for asked in server.requests.polls] == [200] * 5


def test_what_is_refused_is_recorded(server: Faulty) -> None:
    server.ask(headers=())
    server.ask("/elsewhere")
    server.ask("/metadata/scheduledEvents/?API-version=latest")
    with server.connect() as client:
        client.send(b"nonsense\r\n\r\n")
        assert client.reply().status == 400
    with server.connect() as client:
        client.send(request(method="POST", headers=("Expect: 100-continue", "Content-Length: 9")))
        assert client.reply().status == 400
    assert [(asked.method, asked.status, asked.vm) for asked in server.requests] == [
        ("GET", 400, "web-0"),
        ("GET", 404, "web-0"),
        ("GET", 400, "web-0"),
        ("", 400, "web-0"),
        ("POST", 400, "web-0"),
    ]
    assert server.requests[2].api_version == "latest"
    assert [asked.status for asked in server.requests.polls] == [400, 400]


def test_the_rate_stays_real() -> None:
    with faulty(Options(rate=1, burst=2)) as server:
        assert [server.ask().status for _ in range(3)] == [200, 200, 429]
        assert [asked.status for asked in server.requests] == [200, 200, 429]


def test_a_request_that_was_cut_off_has_no_status(server: Faulty) -> None:
    server.switch_on("latency", amount=timedelta(minutes=1))
    client = server.connect()
    client.send(request() + request(method="POST", body=APPROVAL))
    assert client.is_silent(0.03)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    assert server.requests.wait_for(lambda requests: len(requests) == 2, DEADLINE)
    assert [(asked.status, asked.fault) for asked in server.requests] == [(None, "latency"), (None, None)]
    assert server.call(lambda: len(server.faults.interceptors)) == 0
    assert not server.guests.approvals


@pytest.mark.parametrize(("method", "body", "held"), [("GET", b"", False), ("POST", APPROVAL, True)])
def test_only_an_approval_is_held_when_the_client_has_gone(
    server: Faulty, method: str, body: bytes, held: bool
) -> None:
    server.switch_on("latency", amount=timedelta(minutes=1))
    client = server.connect()
    client.send(request(method=method, body=body))
    assert client.is_silent(0.03)
    client.socket.close()
    assert server.requests.wait_for(lambda requests: bool(requests), 0.1 if held else DEADLINE) is not held
    assert (server.faults.delayed, len(server.requests)) == (held, not held)


def test_a_reset_has_no_status(server: Faulty) -> None:
    server.switch_on("reset")
    with server.connect() as client:
        client.send(request())
        with pytest.raises(ConnectionResetError):
            client.socket.recv(1)
    (asked,) = server.requests
    assert (asked.status, asked.fault) == (None, "reset")


def test_pipelined_requests_keep_their_order_under_latency(server: Faulty) -> None:
    server.switch_on("latency", amount=SHORT, on="polls")
    with server.connect() as client:
        client.send(request() + request("/metadata/versions") + request())
        replies = [client.reply() for _ in range(3)]
    assert b"apiVersions" in replies[1].body
    assert replies[0].body == replies[2].body
    assert [asked.target for asked in server.requests] == [PATH, "/metadata/versions", PATH]


def test_who_is_held_is_answered_when_the_server_stops(server: Faulty) -> None:
    server.switch_on("latency", amount=timedelta(minutes=1))
    with server.connect() as client:
        client.send(request())
        assert client.is_silent(0.03)
        stopping = server.stop_soon()
        reply = client.reply()
        assert (reply.status, reply["Connection"]) == (200, "close")
        assert client.is_closed()
        stopping.result(DEADLINE)
    assert [asked.status for asked in server.requests] == [200]


def test_a_listener_can_be_added(server: Faulty) -> None:
    place = server.call(server.server.open, Listener(at=Address(host="127.0.0.1", port=0), vm="web-1"))
    assert isinstance(place, Address)
    assert place in server.server.bound
    with Client(socket.create_connection((place.host, place.port), DEADLINE)) as client:
        client.send(request("/metadata/instance/compute/name?api-version=2021-02-01&format=text"))
        assert client.reply().text == "web-1"
    assert server.requests[-1].vm == "web-1"
    with pytest.raises(errors.RefusedError, match="cannot be served"):
        server.call(server.server.open, Listener(at=place))
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.host, place.port), DEADLINE)
