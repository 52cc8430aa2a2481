"""TLS of the control plane: what is served, what is refused, and what commands make of it."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import pytest
from starlette.types import Receive, Scope, Send
from tests.acceptance.running import until
from tests.control import certificates
from tests.control.certificates import Certificate
from tests.control.running import serving

from forenotice.cli.main import main
from forenotice.control import connection_limits, tls
from forenotice.control.responses import JsonResponse
from forenotice.control.server import ControlServer
from forenotice.core import errors


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.make(tmp_path_factory.mktemp("certificates"), "127.0.0.1")


@pytest.fixture(scope="module")
def port(certificate: Certificate) -> Iterator[int]:
    """A server whose responses are all the same short list, over TLS."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await JsonResponse({"items": [], "next": None})(scope, receive, send)

    context = tls.context(certificate.file, certificate.key)
    with serving(ControlServer(answer, "127.0.0.1", 0, tls=context)) as found:
        yield found


def _asked(port: int, trusting: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return secured.recv(65536)


def test_it_answers_clients_that_trust_it(port: int, certificate: Certificate) -> None:
    assert _asked(port, ssl.create_default_context(cafile=certificate.ca)).startswith(b"HTTP/1.1 200")
    with pytest.raises(ssl.SSLCertVerificationError):
        _asked(port, ssl.create_default_context())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_are_refused(port: int, certificate: Certificate) -> None:
    old = ssl.create_default_context(cafile=certificate.ca)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _asked(port, old)
    newer = ssl.create_default_context(cafile=certificate.ca)
    newer.maximum_version = ssl.TLSVersion.TLSv1_2
    assert _asked(port, newer).startswith(b"HTTP/1.1 200")


def test_commands_speak_it(
    port: int, certificate: Certificate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORENOTICE_TOKEN", "t")
    where = ("vm", "list", "--control-url", f"https://localhost:{port}")
    assert main((*where, "--control-ca", str(certificate.ca))) == 0
    monkeypatch.setenv("FORENOTICE_CONTROL_CA", str(certificate.ca))
    assert main(where) == 0
    monkeypatch.delenv("FORENOTICE_CONTROL_CA")
    capsys.readouterr()
    assert main(where) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"forenotice: the certificate of https://localhost:{port} is not trusted (")
    assert "--control-ca" in said
    assert main(("vm", "list", "--control-url", f"http://localhost:{port}")) == 1
    assert "or with https:// if it has a certificate" in capsys.readouterr().err
    for wrong in ("/nowhere.pem", str(certificate.key)):
        assert main((*where, "--control-ca", wrong)) == 1
        assert f"no certificates can be read from {wrong}" in capsys.readouterr().err


def test_what_cannot_be_served(certificate: Certificate, tmp_path: Path) -> None:
    garbage, encrypted, missing = tmp_path / "garbage.pem", tmp_path / "encrypted.pem", tmp_path / "missing.pem"
    garbage.write_text("nothing of that kind")
    garbage.chmod(0o600)
    shared = tmp_path / "shared.pem"
    shared.write_bytes(certificate.key.read_bytes())
    shared.chmod(0o644)
    subprocess.run(
        ["openssl", "ec", "-in", certificate.key, "-aes128", "-passout", "pass:secret", "-out", encrypted],
        check=True,
        capture_output=True,
    )
    other = certificate.ca.with_name("ca-key.pem")
    for file, key, said in (
        (missing, certificate.key, f"the control plane's certificate {missing} cannot be read: no such file"),
        (certificate.file, missing, f"the control plane's key {missing} cannot be read"),
        (certificate.file, shared, f"the control plane's key {shared} can be read by other users (mode 0644)"),
        (certificate.file, tmp_path, "it is not a file"),
        (certificate.file, other, f"the key {other} is not the one of the certificate {certificate.file}"),
        (garbage, certificate.key, "are not a certificate and its key in PEM"),
        (certificate.file, garbage, "are not a certificate and its key in PEM"),
        (certificate.file, encrypted, f"the key {encrypted} is encrypted"),
    ):
        with pytest.raises(errors.RefusedError) as refused:
            tls.context(file, key)
        assert said in refused.value.message


def test_without_it_only_this_machine_is_answered(certificate: Certificate) -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        tls.require(host, None, without=False)
    context = tls.context(certificate.file, certificate.key)
    for host in ("0.0.0.0", "::", "192.0.2.1", "control.example", "localhost.example"):
        with pytest.raises(errors.RefusedError) as refused:
            tls.require(host, None, without=False)
        assert all(way in refused.value.message for way in ("--control-certificate", "--control-without-tls"))
        tls.require(host, None, without=True)
        tls.require(host, context, without=False)


def test_a_silent_client_does_not_keep_it_from_stopping(certificate: Certificate) -> None:
    server = ControlServer(_never, "127.0.0.1", 0, tls=tls.context(certificate.file, certificate.key))
    with serving(server) as port, ExitStack() as held:
        held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        begun = monotonic()
        held = held.pop_all()
    held.close()
    assert monotonic() - begun < 10


def test_clients_that_never_shake_hands_make_room(
    port: int, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS", 4)
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 120)
    trusting = ssl.create_default_context(cafile=certificate.ca)
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.2", 0))) for _ in range(9)
        ]
        for cut in silent[:5]:
            assert _end(cut)
        assert _asked(port, trusting).startswith(b"HTTP/1.1 200")
        silent[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert _end(silent[-1])


def test_a_client_without_room_leaves_nothing_behind(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS_OF_ONE", 2)
    asked: list[Scope] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)
        while (await receive())["type"] != "http.disconnect":
            pass

    server = ControlServer(answer, "127.0.0.1", 0, tls=tls.context(certificate.file, certificate.key))
    trusting = ssl.create_default_context(cafile=certificate.ca)
    with serving(server) as port, ExitStack() as held:

        def connect(source: str) -> socket.socket:
            return held.enter_context(socket.create_connection(("127.0.0.1", port), 30, (source, 0)))

        for source in ("127.0.0.1", "127.0.0.2") * 2:
            secured = held.enter_context(trusting.wrap_socket(connect(source), server_hostname="localhost"))
            secured.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: len(asked) == 4)
        monkeypatch.setattr(connection_limits, "CONNECTIONS", 3)
        assert _end(connect("127.0.0.1"))
        held.close()
        until(lambda: not server._server.server_state.connections)


def _end(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nobody was let in")
