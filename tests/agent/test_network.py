"""The listener and the exchange with peers, as the configuration asks."""

import io
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.acceptance.running import ask, until
from tests.agent.parts import FINE, SECRET, context, secret_file
from tests.agent.rules.builders import T0

from forenotice.agent.config import READY_PATH, Config
from forenotice.agent.network import Network
from forenotice.agent.peers import HEADER, Message, Signer

SHARED = {"E1": (("web-0", "web-1"), None)}
PREPARING = replace(FINE, ready=False, ready_why="preparing for a Reboot")
DEAF = replace(FINE, polling_ok=False, polling_why="connection refused")


@pytest.fixture
def place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return secret_file(tmp_path / "secret")


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def health() -> list[Any]:
    return [FINE]


@pytest.fixture
def network(written: io.StringIO, health: list[Any]) -> Iterator[Network]:
    made = Network(lambda: health[0], lambda *_: None, lambda: T0, context(written), pause=0.05)
    yield made
    made.close()


def config(place: str = "", secret: Path | None = None, **addresses: str) -> Config:
    peers = {"peers": {"secret_file": str(secret), "addresses": addresses}} if secret else {}
    return msgspec.convert({"listen": place, **peers}, Config)


def test_pages_and_their_end(network: Network, place: str, written: io.StringIO, health: list[Any]) -> None:
    network.apply(config(), ("web-0",))
    assert written.getvalue() == "", "nothing listens unless that is configured"
    network.apply(config(place), ())
    for now, live, ready in ((FINE, 200, 200), (PREPARING, 200, 503), (DEAF, 503, 200)):
        health[0] = now
        for path, status, why in (("/healthz", live, now.polling_why), ("/readyz", ready, now.ready_why)):
            response = ask(place, "GET", path)
            assert (response.status, response.json) == (status, {"ok": status == 200, "why": why})
            assert ask(place, "HEAD", path).status == status
    metrics = ask(place, "GET", "/metrics")
    assert (metrics.status, metrics.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert ask(place, "POST", READY_PATH, b"{}").status == 404
    network.apply(config(), ())
    with pytest.raises(OSError, match="refused"):
        ask(place, "GET", "/healthz")


def test_an_address_that_is_taken_is_tried_again(network: Network, place: str, written: io.StringIO) -> None:
    host, _, port = place.rpartition(":")
    with socket.create_server((host, int(port))):
        network.apply(config(place), ())
        assert "listen.failed" in written.getvalue()

    def listens() -> bool:
        network.apply(config(place), ())
        return "listen.started" in written.getvalue()

    until(listens)
    assert ask(place, "GET", "/healthz").status == 200


def test_pages_do_not_depend_on_peers(network: Network, place: str, written: io.StringIO, secret: Path) -> None:
    secret.unlink()
    network.announce(SHARED)
    assert network.unacknowledged("E1") == {}, "peers are not configured yet"
    shared = config(place, secret)
    network.apply(shared, ("web-0",))
    assert ask(place, "GET", "/healthz").status == 200
    assert ask(place, "POST", READY_PATH, b"{}").status == 404
    assert network.unacknowledged("E1")["web-1"].startswith(f"the peers' secret {secret} cannot be read")
    secret_file(secret)

    def joined() -> bool:
        network.apply(shared, ("web-0",))
        return ask(place, "POST", READY_PATH, b"{}").status == 401

    until(joined)
    assert "sixteen" not in written.getvalue()


def test_an_announcement_is_sent_as_soon_as_peers_are_configured(network: Network, place: str, secret: Path) -> None:
    network.announce(SHARED)
    network.apply(config(place, secret, **{"web-1": "127.0.0.1:1"}), ("web-0",))
    assert set(network.unacknowledged("E1")) == {"web-1"}
    network.announce({})
    assert network.unacknowledged("E1") == {}


def test_a_changed_secret_is_read_again_with_the_configuration(network: Network, place: str, secret: Path) -> None:
    message = Message(sender="web-1", receiver="web-0", sent_at=T0, readiness=None)
    body = msgspec.json.encode(message)

    def status(by: str) -> int:
        return ask(place, "POST", READY_PATH, body, {HEADER: Signer(by.encode()).sign(message, body)}).status

    first = config(place, secret)
    network.apply(first, ("web-0",))
    secret.write_text("known to some of them")
    network.apply(first, ("web-0",))
    assert status(SECRET) == 200
    network.apply(config(place, secret), ("web-0",))
    assert (status(SECRET), status("known to some of them")) == (401, 200)
