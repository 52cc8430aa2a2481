"""A real NATS with the streams of edges, and whoever plays the service there."""

import itertools
from collections.abc import Iterator

import pytest
from tests.edge.running import Bus, bus_at
from tests.nats_servers import NatsServers, nats_servers

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """For tests that leave it alone."""
    with nats_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture(scope="package")
def bus(servers: NatsServers) -> Iterator[Bus]:
    with bus_at(servers.urls) as bus:
        yield bus


@pytest.fixture
def host() -> str:
    """Another for each test: what is published for it stays."""
    return f"rack1.host-{next(_NUMBERS)}"
