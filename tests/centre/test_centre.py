"""The thread of the service that serves edges, while NATS comes and goes."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nats.aio.client import Client
from tests.centre.conftest import Bus, Run
from tests.centre.test_intake import until
from tests.nats_servers import NatsServers
from tests.service.rig import Rig

from forenotice.centre.centre import Centre
from forenotice.centre.intake import Intake
from forenotice.cluster import messages
from forenotice.cluster.connection import Servers
from forenotice.cluster.messages import Beat
from forenotice.cluster.subjects import Subjects


@contextmanager
def a_single_one_of(servers: NatsServers) -> Iterator[None]:
    """Of three: clients can connect, but JetStream lacks its majority."""
    servers[0].start()
    try:
        yield
    finally:
        servers[0].kill()


def test_edges_are_heard_while_jetstream_is_away(rig: Rig, tmp_path: Path) -> None:
    """Else a service that has reconnected meanwhile would call all edges lost."""
    servers = NatsServers(tmp_path, 3)

    async def beat_until_heard() -> None:
        client = Client()
        await client.connect(servers[0].url, reconnect_time_wait=1, max_reconnect_attempts=20)

        async def is_heard() -> bool:
            await client.publish(Subjects.of("host-a").beat, messages.encode(Beat(version="1")))
            return rig.service.edges.hosts == {"host-a"}

        try:
            await until(is_heard)
        finally:
            await client.close()

    with a_single_one_of(servers):
        centre = Centre(rig.service, Servers(urls=(servers[0].url,)))
        centre.start()
        try:
            asyncio.run(beat_until_heard())
        finally:
            centre.stop()


def test_a_beat_is_taken_once_however_often_the_intake_begins_anew(
    rig: Rig, with_bus: Run, servers: NatsServers
) -> None:
    def subscriptions() -> int:
        with urllib.request.urlopen(f"{servers[0].monitoring}/connz", timeout=2) as found:
            return sum(int(each["subscriptions"]) for each in json.load(found)["connections"])

    async def test(bus: Bus) -> None:
        intake = Intake(rig.service, bus.client, bus.js)
        counts = set[int]()
        for _ in range(3):
            await intake.listen()
            await intake.bind()
            await bus.client.flush()
            counts.add(await asyncio.to_thread(subscriptions))
        assert len(counts) == 1, counts

    with_bus(test)
