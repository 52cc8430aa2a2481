"""Connections are accepted a few milliseconds at a time, and others on the loop have their turn in between."""

import asyncio
import socket
import time
from contextlib import ExitStack
from typing import Any

from forenotice.descriptors import ITERATION_SECONDS, Acceptor


async def accepted(count: int, seconds: float) -> str:
    """What happens when so many have connected at once: a letter for each, a blank for each turn of the loop."""
    told: list[str] = []

    def take(client: socket.socket, _: Any) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        client.close()
        told.append("a")

    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(count):
            stack.enter_context(socket.create_connection(listening.getsockname(), 10))
        acceptor = Acceptor(listening, "here", take)
        stack.callback(acceptor.close)
        while told.count("a") < count:
            told.append(" ")
            await asyncio.sleep(0)
    return "".join(told)


def test_others_on_the_loop_have_their_turn_in_between() -> None:
    assert asyncio.run(accepted(4, ITERATION_SECONDS)).split() == ["a"] * 4


def test_a_queue_is_drained_as_fast_as_it_can_be() -> None:
    """Cheap ones are taken many at a time: a guest that connects over and over must not make the queue grow."""
    assert len(asyncio.run(accepted(100, 0)).split()) < 50


def test_whoever_has_left_by_then_is_let_go() -> None:
    async def leave() -> socket.socket:
        taken: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

        def take(client: socket.socket, _: Any) -> None:
            taken.set_result(client)
            raise ConnectionResetError

        with socket.create_server(("127.0.0.1", 0)) as listening:
            acceptor = Acceptor(listening, "here", take)
            with socket.create_connection(listening.getsockname(), 10):
                client = await asyncio.wait_for(taken, 10)
            acceptor.close()
        return client

    assert asyncio.run(leave()).fileno() == -1
