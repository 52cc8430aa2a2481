"""TLS to NATS, with certificates on both sides."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.cluster.users import NOW
from tests.control import certificates
from tests.control.certificates import Certificate
from tests.nats_servers import HOST as ADDRESS
from tests.nats_servers import NatsServers, nats_servers

from forenotice.cluster import streams
from forenotice.cluster.connection import Servers, close, connect, once
from forenotice.cluster.keys import Keys, push
from forenotice.cluster.subjects import CENTRE_INBOX, DOCS, Subjects
from forenotice.core import errors

HOST = "host-a"
OWN = Subjects.of(HOST)
SECONDS, IN_VAIN_SECONDS = 10.0, 0.7


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.make(tmp_path_factory.mktemp("server"), ADDRESS)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.make(tmp_path_factory.mktemp("client"))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.make(tmp_path / "keys", NOW)


@pytest.fixture
def servers(tmp_path: Path, keys: Keys, server: Certificate, client: Certificate) -> Iterator[NatsServers]:
    tls = (
        f'tls {{ cert_file: "{server.file}", key_file: "{server.key}", ca_file: "{client.ca}", '
        "verify: true, handshake_first: true }"
    )
    with nats_servers(tmp_path, keys=keys, configuration=tls) as made:
        yield made


def test_the_service_and_edges_connect_with_certificates(
    keys: Keys, servers: NatsServers, server: Certificate, client: Certificate, tmp_path: Path
) -> None:
    file = tmp_path / "edge.creds"
    file.touch(0o600)
    file.write_text(keys.enrol(HOST, NOW).credentials)

    def by(credentials: Path) -> Servers:
        return Servers(
            urls=servers.urls, credentials=credentials, ca=server.ca, certificate=client.file, key=client.key
        )

    async def work() -> None:
        service, _ = await connect(by(keys.centre_credentials), "the service", CENTRE_INBOX)
        edge, _ = await connect(by(file), "an edge", OWN.inbox)
        try:
            await streams.ensure(service.jetstream(), replicas=1)
            await service.jetstream().publish(OWN.docs, b"a state")
            assert (await edge.jetstream().get_last_msg(DOCS, OWN.docs, direct=True)).data == b"a state"
            assert await push(keys.revoke(HOST, NOW), by(keys.system_credentials)) == ["n0"]
        finally:
            await service.close()
            await edge.close()

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_a_visit_with_tls_logs_nothing_of_its_own_end(
    keys: Keys, servers: NatsServers, server: Certificate, client: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async def visit() -> None:
        known = Servers(
            urls=servers.urls,
            credentials=keys.system_credentials,
            ca=server.ca,
            certificate=client.file,
            key=client.key,
        )
        async with once(known):
            pass
        # The server may end it before we do.
        await asyncio.sleep(0.1)

    asyncio.run(visit())
    assert caplog.messages == []


def connects(servers: Servers, seconds: float = SECONDS) -> None:
    """TimeoutError: it still tries."""

    async def attempt() -> None:
        client, _ = await asyncio.wait_for(connect(servers, "an edge", OWN.inbox), seconds)
        await close(client)

    asyncio.run(attempt())


def test_without_the_right_certificates_nobody_connects(
    keys: Keys, servers: NatsServers, server: Certificate, client: Certificate
) -> None:
    valid = Servers(
        urls=servers.urls,
        credentials=keys.centre_credentials,
        ca=server.ca,
        certificate=client.file,
        key=client.key,
    )
    connects(valid)
    for wrong in (
        replace(valid, certificate=None, key=None),
        replace(valid, certificate=server.file, key=server.key),
        replace(valid, ca=client.ca),
    ):
        with pytest.raises(TimeoutError):
            connects(wrong, IN_VAIN_SECONDS)


def test_a_handshake_that_failed_is_tried_again(
    keys: Keys, servers: NatsServers, server: Certificate, client: Certificate, tmp_path: Path
) -> None:
    """NATS's client itself would wait for ever for the end of such a connection."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(client.ca.read_bytes())

    async def attempt() -> None:
        renewed = Servers(
            urls=servers.urls,
            credentials=keys.centre_credentials,
            ca=ca,
            certificate=client.file,
            key=client.key,
        )
        with capture_logs() as logged:
            connecting = asyncio.create_task(connect(renewed, "an edge", OWN.inbox))
            deadline = asyncio.get_running_loop().time() + SECONDS
            while not logged:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
            ca.write_bytes(server.ca.read_bytes())
            made, _ = await asyncio.wait_for(connecting, SECONDS)
        await close(made)

    asyncio.run(attempt())


def test_a_server_without_tls_does_not_get_our_credentials(keys: Keys, server: Certificate, tmp_path: Path) -> None:
    """Else whoever is in between could say that the server does without."""
    with nats_servers(tmp_path, keys=keys) as plain:
        valid = Servers(urls=plain.urls, credentials=keys.centre_credentials)
        connects(valid)
        by_url = tuple(url.replace("nats:", "tls:") for url in plain.urls)
        for wanted in (replace(valid, ca=server.ca), replace(valid, urls=by_url)):
            with pytest.raises(TimeoutError):
                connects(wanted, IN_VAIN_SECONDS)


def test_certificates_that_cannot_be_used_are_refused(server: Certificate, client: Certificate) -> None:
    for wrong, what in (
        (Servers(urls=(), ca=Path("/nowhere.pem")), "the CA for NATS /nowhere.pem"),
        (Servers(urls=(), certificate=client.file, key=server.key), f"the certificate for NATS {client.file}"),
    ):
        with pytest.raises(errors.RefusedError, match=f"{what} .*cannot be used: "):
            wrong.options()


def test_secrets_that_others_could_read_are_refused(keys: Keys, client: Certificate, tmp_path: Path) -> None:
    credentials, key = tmp_path / "shared.creds", tmp_path / "shared.key"
    credentials.write_text(keys.enrol(HOST, NOW).credentials)
    key.write_bytes(client.key.read_bytes())
    for path in (credentials, key):
        path.chmod(0o644)
    for wrong in (
        Servers(urls=(), credentials=credentials),
        Servers(urls=(), certificate=client.file, key=key),
    ):
        with pytest.raises(errors.RefusedError, match="can be read by other users"):
            wrong.options()
