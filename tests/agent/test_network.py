"""What others see of the agent, as soon as that is possible."""

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.acceptance.running import Said, ask, until
from tests.agent.rules.builders import T0

from forenotice.agent.config import READY_PATH, Config
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.network import Network, Sources
from forenotice.agent.signature import HEADER, Message, Signer
from forenotice.agent.status import Health
from forenotice.clock import MachineClock
from forenotice.settings import LogFormat, LogLevel

FINE = Health(polling_ok=True, polling_why="", ready=True, ready_why="")


@pytest.fixture
def place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def shown(said: io.StringIO) -> Iterator[Network]:
    sources = Sources(standing=lambda: FINE, heard=lambda _event, _name, _at: None, now=lambda: T0)
    made = Network(sources, Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, said), Metrics(), pause=0.05)
    yield made
    made.close()


def get(place: str, path: str = "/healthz") -> Said:
    return ask(place, "GET", path)


def test_nothing_listens_unless_asked_for(shown: Network, said: io.StringIO) -> None:
    shown.keep_up(Config(), ("web-0",))
    assert said.getvalue() == ""


def test_pages_and_their_end(shown: Network, place: str) -> None:
    shown.keep_up(Config(listen=place), ())
    assert [get(place, path).status for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    assert ask(place, "POST", READY_PATH, b"{}").status == 404
    shown.keep_up(Config(), ())
    with pytest.raises(OSError, match="refused"):
        get(place)


def test_an_address_that_is_taken_is_tried_again(shown: Network, place: str, said: io.StringIO) -> None:
    host, _, port = place.rpartition(":")
    with socket.create_server((host, int(port))):
        shown.keep_up(Config(listen=place), ())
        assert "listen.failed" in said.getvalue()

    def answers() -> bool:
        shown.keep_up(Config(listen=place), ())
        return "listen.started" in said.getvalue()

    until(answers)
    assert get(place).status == 200


def test_peers_that_cannot_be_joined_take_no_page_away(
    shown: Network, place: str, said: io.StringIO, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    config = Config(listen=place, peers=PeersConfig(secret_file=str(secret)))
    shown.tell({"E1": (("web-0", "web-1"), None)})
    assert shown.untold("E1") == {}, "nobody asked for peers yet"
    shown.keep_up(config, ("web-0",))
    assert get(place).status == 200
    assert ask(place, "POST", READY_PATH, b"{}").status == 404
    assert shown.untold("E1")["web-1"].startswith(f"the peers' secret {secret} cannot be read")
    secret.touch(0o600)
    secret.write_text("sixteen or more bytes")

    def joined() -> bool:
        shown.keep_up(config, ("web-0",))
        return ask(place, "POST", READY_PATH, b"{}").status == 401

    until(joined)
    assert "sixteen" not in said.getvalue()


def test_peers_are_told_as_soon_as_they_are_joined(shown: Network, place: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("sixteen or more bytes")
    config = Config(listen=place, peers=PeersConfig(secret_file=str(secret), addresses={"web-1": "127.0.0.1:1"}))
    shown.tell({"E1": (("web-0", "web-1"), None)})
    shown.keep_up(config, ("web-0",))
    assert set(shown.untold("E1")) == {"web-1"}
    shown.tell({})
    assert shown.untold("E1") == {}


def test_a_secret_that_was_changed_is_read_again_with_the_configuration(
    shown: Network, place: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    read = {"listen": place, "peers": {"secret_file": str(secret)}}
    message = Message(sender="web-1", receiver="web-0", said_at=T0, readiness=None)
    body = msgspec.json.encode(message)

    def heard(by: str) -> int:
        headers = {HEADER: Signer(by.encode()).sign(message, body)}
        return ask(place, "POST", READY_PATH, body, headers).status

    secret.touch(0o600)
    secret.write_text("known to all of them")
    config = msgspec.convert(read, Config)
    shown.keep_up(config, ("web-0",))
    assert heard("known to all of them") == 200
    secret.write_text("known to some of them")
    shown.keep_up(config, ("web-0",))
    assert heard("known to all of them") == 200
    shown.keep_up(msgspec.convert(read, Config), ("web-0",))
    assert (heard("known to all of them"), heard("known to some of them")) == (401, 200)
