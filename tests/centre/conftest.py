"""The demo fleet in a service, and a real NATS with the streams of edges."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from tests.nats_servers import NatsServers, nats_servers
from tests.service.rig import Rig

from forenotice.cluster import messages, streams
from forenotice.cluster.messages import Beat, HostState
from forenotice.cluster.subjects import DOCS, Subjects
from forenotice.store.database import Store


@pytest.fixture
def rig(store: Store) -> Rig:
    """Every scope listens."""
    return Rig(store).settle_demo()


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with nats_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@dataclass(frozen=True)
class Bus:
    client: Client
    js: JetStreamContext

    async def state(self, host: str) -> HostState | None:
        try:
            found = await self.js.get_msg(DOCS, subject=Subjects.of(host).docs)
        except NotFoundError:
            return None
        return messages.decode_state(found.data or b"", host)

    async def put(self, state: HostState) -> None:
        await self.js.publish(Subjects.of(state.host).docs, messages.encode_state(state))


Run = Callable[[Callable[[Bus], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def with_bus(servers: NatsServers) -> Run:
    """Runs a test with a connection to NATS whose streams are empty."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Bus]:
        client = Client()
        await client.connect(list(servers.urls))
        js = client.jetstream()
        for wanted in streams.configurations():
            try:
                await js.delete_stream(wanted.name or "")
            except NotFoundError:
                continue
        await streams.ensure(js, 1)
        try:
            yield Bus(client, js)
        finally:
            await client.close()

    async def run(test: Callable[[Bus], Coroutine[Any, Any, None]]) -> None:
        async with connected() as bus:
            await test(bus)

    return lambda test: asyncio.run(run(test))


def register(rig: Rig, *hosts: str) -> None:
    """Their edges are heard for the first time."""
    for host in hosts:
        rig.service.edges.beat(host, Beat(version="1"))
    rig.service.edges.watch(connected=True)
