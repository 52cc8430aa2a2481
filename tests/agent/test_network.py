"""The listener and the exchange with peers, as the configuration asks."""

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.acceptance.running import ask, until
from tests.agent.parts import FINE, context
from tests.agent.rules.builders import T0

from forenotice.agent.config import READY_PATH, Config
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.network import Network
from forenotice.agent.signature import HEADER, Message, Signer

SECRET = "sixteen or more bytes"
SHARED = {"E1": (("web-0", "web-1"), None)}


@pytest.fixture
def place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)
    return path


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def network(written: io.StringIO) -> Iterator[Network]:
    made = Network(lambda: FINE, lambda *_: None, lambda: T0, context(written), pause=0.05)
    yield made
    made.close()


def test_nothing_listens_unless_asked_for(network: Network, written: io.StringIO) -> None:
    network.apply(Config(), ("web-0",))
    assert written.getvalue() == ""


def test_pages_and_their_end(network: Network, place: str) -> None:
    network.apply(Config(listen=place), ())
    assert [ask(place, "GET", path).status for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    assert ask(place, "POST", READY_PATH, b"{}").status == 404
    network.apply(Config(), ())
    with pytest.raises(OSError, match="refused"):
        ask(place, "GET", "/healthz")


def test_an_address_that_is_taken_is_tried_again(network: Network, place: str, written: io.StringIO) -> None:
    host, _, port = place.rpartition(":")
    with socket.create_server((host, int(port))):
        network.apply(Config(listen=place), ())
        assert "listen.failed" in written.getvalue()

    def listens() -> bool:
        network.apply(Config(listen=place), ())
        return "listen.started" in written.getvalue()

    until(listens)
    assert ask(place, "GET", "/healthz").status == 200


def test_pages_do_not_depend_on_peers(network: Network, place: str, written: io.StringIO, secret: Path) -> None:
    secret.unlink()
    config = Config(listen=place, peers=PeersConfig(secret_file=str(secret)))
    network.announce(SHARED)
    assert network.unacknowledged("E1") == {}, "peers are not configured yet"
    network.apply(config, ("web-0",))
    assert ask(place, "GET", "/healthz").status == 200
    assert ask(place, "POST", READY_PATH, b"{}").status == 404
    assert network.unacknowledged("E1")["web-1"].startswith(f"the peers' secret {secret} cannot be read")
    secret.touch(0o600)
    secret.write_text(SECRET)

    def joined() -> bool:
        network.apply(config, ("web-0",))
        return ask(place, "POST", READY_PATH, b"{}").status == 401

    until(joined)
    assert "sixteen" not in written.getvalue()


def test_peers_are_told_as_soon_as_they_are_joined(network: Network, place: str, secret: Path) -> None:
    config = Config(listen=place, peers=PeersConfig(secret_file=str(secret), addresses={"web-1": "127.0.0.1:1"}))
    network.announce(SHARED)
    network.apply(config, ("web-0",))
    assert set(network.unacknowledged("E1")) == {"web-1"}
    network.announce({})
    assert network.unacknowledged("E1") == {}


def test_a_changed_secret_is_read_again_with_the_configuration(network: Network, place: str, secret: Path) -> None:
    read = {"listen": place, "peers": {"secret_file": str(secret)}}
    message = Message(sender="web-1", receiver="web-0", sent_at=T0, readiness=None)
    body = msgspec.json.encode(message)

    def accepted(by: str) -> int:
        return ask(place, "POST", READY_PATH, body, {HEADER: Signer(by.encode()).sign(message, body)}).status

    config = msgspec.convert(read, Config)
    network.apply(config, ("web-0",))
    assert accepted(SECRET) == 200
    secret.write_text("known to some of them")
    network.apply(config, ("web-0",))
    assert accepted(SECRET) == 200
    network.apply(msgspec.convert(read, Config), ("web-0",))
    assert (accepted(SECRET), accepted("known to some of them")) == (401, 200)
