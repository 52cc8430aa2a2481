"""Whoever sends many requests at once takes turns with others, and delays nobody who sends one at a time."""

import asyncio
import socket
from dataclasses import dataclass
from time import monotonic
from typing import cast

import pytest
from tests.metadata.running import DB_ADDRESS, Client, Running, request

from forenotice.metadata.protocol import Connection
from forenotice.metadata.turns import TURN_SECONDS, Turns


@dataclass(eq=False)
class Pipelining:
    """In the place of a connection that has so many requests."""

    name: str
    caller: str | None
    requests: int
    turns: Turns
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
            self.turns.enlist(cast(Connection, self))


async def taken_by(*all_of_them: tuple[str, str | None, int], seconds: float = 0) -> str:
    taken: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    for name, caller, requests in all_of_them:
        Pipelining(name, caller, requests, turns, taken, seconds).enlist()
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
        other.send(request())
        assert other.reply()["ETag"] == '"1-dbtag"'
        statuses = [client.reply().status for _ in range(count + 3)]
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


def test_requests_sent_at_once_are_answered_though_the_client_sends_no_more(server: Running) -> None:
    with server.connect() as client:
        client.send(request() * 100)
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.reply().status for _ in range(100)] == [200] * 100
        assert client.is_closed()
