"""Handlers to be tested: our own client, which waits long, and a plain poller. Both approve what is their VM's own."""

import asyncio
import contextlib
import json
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.client.both import QUICK

from forenotice import Appeared, AsyncClient, Client, EndpointError, Pace, RefusedError

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
INTERVAL = 0.02


@contextlib.contextmanager
def approving(pace: Pace = QUICK) -> Iterator[Client]:
    with Client(pace=pace) as client:
        thread = threading.Thread(target=_approve, args=(client,))
        thread.start()
        try:
            yield client
        finally:
            client.close()
            thread.join(60)


def _approve(client: Client) -> None:
    for change in client.watch(mine=True):
        if isinstance(change, Appeared) and change.event.status == "Scheduled":
            with contextlib.suppress(EndpointError, RefusedError):
                client.approve(change.event)


@contextlib.asynccontextmanager
async def approving_async(pace: Pace = QUICK) -> AsyncIterator[None]:
    """In the event loop of whoever tests."""

    async def approve(client: AsyncClient) -> None:
        async for change in client.watch(mine=True):
            if isinstance(change, Appeared) and change.event.status == "Scheduled":
                with contextlib.suppress(EndpointError, RefusedError):
                    await client.approve(change.event)

    async with AsyncClient(pace=pace) as client, asyncio.TaskGroup() as tasks:
        handler = tasks.create_task(approve(client))
        yield
        handler.cancel()


@contextlib.contextmanager
def polling(url: str, me: str = "", interval: float = INTERVAL) -> Iterator[None]:
    """Approves nothing if it is nobody."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(interval):
            for event in get(url)["Events"]:
                if me in event["Resources"] and event["EventStatus"] == "Scheduled":
                    approve(url, event["EventId"])

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def get(url: str) -> Any:
    return json.loads(_ask(url))


def approve(url: str, event_id: str) -> None:
    _ask(url, json.dumps({"StartRequests": [{"EventId": event_id}]}).encode())


def _ask(url: str, body: bytes | None = None) -> bytes:
    with OPENER.open(urllib.request.Request(url, body, {"Metadata": "true"}), timeout=60) as answer:
        found: bytes = answer.read()
        return found
