"""A client that tries for ever: what it tells whoever waits for its end."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from structlog.testing import capture_logs
from tests.nats_servers import nats_servers

from forenotice import cluster
from forenotice.cluster.connection import Servers, close, connect

SECONDS = 20.0


def test_two_reasons_that_take_turns_do_not_fill_the_log() -> None:
    """As with credentials that were revoked: each attempt fails in more than one way."""

    async def test() -> None:
        attempts = 0

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal attempts
            attempts += 1
            writer.close()

        with socket.create_server(("127.0.0.1", 0)) as server:
            closed = f"nats://127.0.0.1:{server.getsockname()[1]}"
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listening:
            host, port = listening.sockets[0].getsockname()
            with capture_logs() as logged:
                urls = (closed, f"nats://{host}:{port}")
                connecting = asyncio.create_task(connect(Servers(urls=urls), "test", "_INBOX"))
                await until(lambda: attempts >= 8)
                await cluster.cancel((connecting,))
        failed = [(entry["reason"], entry["times"]) for entry in logged if entry["action"] == "nats.failed"]
        assert len(dict(failed)) > 1, failed
        assert len(set(failed)) == len(failed), failed

    asyncio.run(test())


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came"
        await asyncio.sleep(0.02)


def test_an_attempt_that_fails_is_not_the_end_of_a_connection(tmp_path: Path) -> None:
    """A server that is paused takes connections and says nothing. Who waits for the end would not wait any more."""

    async def test() -> None:
        with nats_servers(tmp_path) as servers, capture_logs() as logged:
            with servers[0].paused():
                connecting = asyncio.create_task(connect(Servers(urls=servers.urls), "test", "_INBOX"))
                await until(lambda: any(entry["action"] == "nats.failed" for entry in logged))
            client, until_lost = await asyncio.wait_for(connecting, SECONDS)
            waiting = asyncio.create_task(until_lost())
            await client.flush()
            assert not waiting.done()
            servers[0].kill()
            await asyncio.wait_for(waiting, SECONDS)
            assert [entry["action"] for entry in logged].count("nats.lost") == 1
            await close(client)

    asyncio.run(test())
