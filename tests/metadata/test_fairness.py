"""Whoever sends many requests at once takes turns with others, and delays nobody who sends one at a time."""

import asyncio
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar, cast

import pytest
from tests.metadata.running import DB_ADDRESS, WEB_ADDRESSES, Client, Running, request, running

from forenotice.metadata.connection import TURN_PIECES, Connection
from forenotice.metadata.endpoint import TURN_SECONDS, FairQueue
from forenotice.metadata.options import Options
from forenotice.metadata.requests import Request


@dataclass(eq=False)
class Pipelining:
    """In the place of a connection that has so many requests."""

    name: str
    caller: str | None
    requests: int
    queue: FairQueue
    taken: list[str]
    seconds: float = 0

    def take_turn(self) -> None:
        until = monotonic() + self.seconds
        while monotonic() < until:
            pass
        self.taken.append(self.name)
        self.requests -= 1
        self.enlist()

    def enlist(self) -> None:
        if self.requests:
            self.queue.add(cast(Connection, self))


async def taken_by(*all_of_them: tuple[str, str | None, int], seconds: float = 0) -> str:
    taken: list[str] = []
    queue = FairQueue(asyncio.get_running_loop())
    for name, caller, requests in all_of_them:
        Pipelining(name, caller, requests, queue, taken, seconds).enlist()
    wanted = sum(requests for _, _, requests in all_of_them)
    while len(taken) < wanted:
        # Whoever else is on this loop has a turn each time around.
        taken.append(" ")
        wanted += 1
        await asyncio.sleep(0)
    return "".join(taken)


def test_callers_take_turns_and_so_do_the_connections_of_one() -> None:
    told = asyncio.run(taken_by(("a", "A", 3), ("b", "A", 3), ("c", "C", 2), ("d", None, 1), ("e", None, 1)))
    assert told.replace(" ", "") == "acdebcabab"


def test_others_on_the_loop_have_their_turn_in_between() -> None:
    told = asyncio.run(taken_by(("a", "A", 4), seconds=TURN_SECONDS))
    assert told.strip() == "a a a a"


def test_answers_to_requests_sent_at_once_come_whole_and_in_order(server: Running) -> None:
    count = 700
    with server.connect() as client, server.connect(DB_ADDRESS) as other:
        client.send(request() * count + request("/metadata/nowhere") + request(method="POST", body=b"{}") + request())
        assert other.ask(request())["ETag"] == '"1-dbtag"'
        statuses = client.statuses(count + 3)
        assert statuses == [200] * count + [404, 400, 200]


@pytest.mark.parametrize("early", [True, False])
def test_whoever_does_not_read_its_answers_is_not_received_without_end(server: Running, early: bool) -> None:
    def connect() -> Client:
        client = server.connect()
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            client.socket.setsockopt(socket.SOL_SOCKET, buffer, 64 * 1024)
        if early:
            client.send(request() * 100)
        return client

    # On the loop: more has come than is read at first when the connection is accepted.
    with server.call(connect) as client:
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.send(request() * 30_000)


class Counting(Connection):
    """Counts the pieces that it parses in each of its turns, and the turns that it had to wait for."""

    pieces: ClassVar[list[int]] = []
    waited: ClassVar[list[str | None]] = []

    def take_turn(self) -> None:
        self.waited.append(self.peer)
        super().take_turn()

    def _read(self) -> None:
        self.pieces.append(0)
        super()._read()

    def _parse(self, data: bytes) -> Request | None:
        self.pieces[-1] += 1
        return super()._parse(data)


def test_a_body_of_blank_lines_is_no_more_work_in_a_turn_than_any_other() -> None:
    with running(connection=Counting) as server, server.connect() as client:
        assert client.ask(request(method="POST", body=b"\n" * 16_000)).status == 400
        assert sum(Counting.pieces) > 8000
        assert max(Counting.pieces) <= TURN_PIECES


def test_of_many_connections_of_one_caller_that_send_together_one_is_read_at_once() -> None:
    with running(connection=Counting) as server, ExitStack() as stack:
        many = [stack.enter_context(server.connect()) for _ in range(20)]
        other = stack.enter_context(server.connect(DB_ADDRESS))
        for client in (*many, other):
            assert client.ask(request()).status == 200
        Counting.waited.clear()

        def send() -> None:
            """On the loop, which sees all of it at once afterwards."""
            for client in (*many, other):
                client.send(request(headers=("Metadata: true", "X-New: 1")))

        server.call(send)
        assert [client.reply().status for client in (*many, other)] == [200] * 21
        assert set(Counting.waited) == {WEB_ADDRESSES[0]}


REFUSED = {
    "path": request("/nothing"),
    "method": request(method="DELETE"),
    "proxy": request(headers=("Metadata: true", "Via: 1.1 proxy")),
    "header": request(headers=()),
    "version": request("/metadata/scheduledevents"),
    "approval": request("/nothing", method="POST", body=b"{}"),
}


@pytest.mark.parametrize("source", [DB_ADDRESS, "127.9.9.9"])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_answered_within_the_rate_and_then_the_connection_is_closed(refused: bytes, source: str) -> None:
    with running(options=Options(rate=0.1, burst=5)) as server, server.connect(source) as client:
        client.send(refused * 100)
        replies = [client.reply() for _ in range(6)]
        assert len({(reply.status, reply.body) for reply in replies}) == 1
        assert 400 <= replies[0].status <= 405
        assert ["connection" in reply.headers for reply in replies] == [False] * 5 + [True]
        assert client.is_closed()


def test_an_unknown_caller_that_floods_is_closed_too_and_refusals_of_a_vm_count_with_its_polls() -> None:
    with running(options=Options(rate=0.1, burst=5)) as server:
        with server.connect("127.9.9.9") as client:
            client.send(request() * 100)
            assert client.statuses(6) == [404] * 6
            assert client.is_closed()
        # Another stranger gets its response all the same.
        assert server.ask(source="127.9.9.8").status == 404
        with server.connect() as client:
            client.send(request("/nothing") * 5)
            assert client.statuses(5) == [404] * 5
            assert server.ask().status == 429


def test_requests_sent_at_once_are_answered_though_the_client_sends_no_more(server: Running) -> None:
    with server.connect() as client:
        client.send(request() * 100)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.statuses(100) == [200] * 100
        assert client.is_closed()
