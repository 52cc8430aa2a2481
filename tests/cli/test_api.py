"""How a command reaches the control plane, and what it says when it cannot."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.cli.samples import encoded, fleet
from tests.cli.stranger import answer, asked_header, stranger
from tests.control.running import Control, running

from forenotice import control_socket
from forenotice.cli import api

EMPTY = b'{"items": [], "next": null}'


def test_no_service_no_token_and_a_wrong_token(run: Run, module_control: Control, tmp_path: Path) -> None:
    ran = run("vm", "list", "--control-url", "http://127.0.0.1:9", "--token", "t")
    reached = "cannot reach the control plane at http://127.0.0.1:9: is `forenotice serve` running?"
    assert (ran.code, ran.err) == (1, f"forenotice: {reached}\n")
    ran = run("vm", "list", "--data", str(tmp_path))
    assert ran.code == 1
    assert f"none is in {tmp_path}" in ran.err
    assert "`forenotice token create NAME --offline`" in ran.err
    (tmp_path / "admin.token").mkdir()
    assert "cannot be read" in run("vm", "list", "--data", str(tmp_path)).err
    ran = run("vm", "list", "--control-url", module_control.url, "--token", "fn_wrong")
    advised = "A valid bearer token is needed: give another with --token or in FORENOTICE_TOKEN"
    assert (ran.code, ran.err) == (1, f"forenotice: {advised}\n")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Control]:
    """One that holds a data directory; its token is in a file there."""
    with running(tmp_path) as control:
        (tmp_path / "admin.token").write_text(control.token + "\n")
        yield control


def test_the_service_of_the_data_directory_is_reached_at_its_socket(run: Run, service: Control, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path))
    assert run("host", "add", "a", *where).code == 0
    [entry] = run("history", "--action", "host.added", "--json", *where).json
    assert entry["origin"] == "127.0.0.1"
    assert "give another with --token" in run("vm", "list", "--token", "fn_wrong", *where).err
    assert run("vm", "list", "--token", service.token, *where).code == 0


def test_the_demo_has_a_socket_of_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with running(tmp_path / "demo") as control:
        (tmp_path / "demo" / "admin.token").write_text(control.token + "\n")
        assert run("vm", "list", "--data", str(tmp_path)).code == 0
        # Left behind by a service that was killed, with a token that only it knows.
        (tmp_path / "admin.token").write_text("fn_of-another-service\n")
        control_socket.listen(tmp_path).close()
        assert run("vm", "list", "--data", str(tmp_path)).code == 0


def test_a_service_that_was_killed_is_not_reached(run: Run, tmp_path: Path) -> None:
    (tmp_path / "admin.token").write_text("fn_secret\n")
    ran = run("vm", "list", "--data", str(tmp_path))
    assert (ran.code, f"no `forenotice serve` uses the data directory {tmp_path};" in ran.err) == (1, True)
    control_socket.listen(tmp_path).close()
    ran = run("vm", "list", "--data", str(tmp_path))
    assert ran.err == (
        f"forenotice: cannot reach the control plane at {tmp_path}/control.sock: is `forenotice serve` running?\n"
    )


def test_a_program_that_holds_the_port_does_not_get_the_token_of_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin.token").write_text("fn_secret\n")
    with stranger(answer("200 OK", EMPTY)) as thief:
        monkeypatch.setattr(api, "DEFAULT", thief.url)
        for where in ((), ("--control-url", thief.url)):
            ran = run("vm", "list", "--data", str(tmp_path), *where)
            assert ran.code == 1
        assert thief.asked == []
        assert ran.err == (
            "forenotice: a token from a file is only sent to the service in the same directory: leave --control-url "
            "out, so that the socket in the data directory is used, or give --token\n"
        )
        # A token that is given is for the address that is given.
        assert run("vm", "list", "--data", str(tmp_path), "--token", "t").code == 0
        assert len(thief.asked) == 1


@pytest.mark.parametrize("url", ["http://192.0.2.1:8255", "https://control.example", "http://127.0.0.1.example"])
def test_a_token_from_a_file_stays_on_this_machine(run: Run, tmp_path: Path, url: str) -> None:
    (tmp_path / "admin.token").write_text("fn_secret\n")
    ran = run("vm", "list", "--control-url", url, "--data", str(tmp_path))
    assert (ran.code, f"in the same directory: for {url} give --token\n" in ran.err) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is played by root alone")
def test_a_service_of_another_user_needs_a_token(run: Run, service: Control, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        ran = run("vm", "list", "--data", str(tmp_path))
    finally:
        os.seteuid(0)
    refused = f"the control plane's socket in {tmp_path} cannot be used (permission denied): run this as the user that"
    assert (ran.code, ran.err.startswith(f"forenotice: {refused} runs")) == (1, True)


def test_no_proxy_is_used_and_no_token_crosses_a_network_in_the_clear(
    run: Run, module_control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert run("vm", "list", "--control-url", module_control.url, "--token", module_control.token).code == 0
    where = ("--token", "t", "--control-url", "http://192.0.2.1:8255")
    refused = run("vm", "list", *where).err
    assert refused.startswith("forenotice: the token would reach http://192.0.2.1:8255 unencrypted: give an address")
    assert "--control-without-tls" in refused


STRANGERS = [
    (answer("200 OK", b"<html>"), "responded 200 OK, but not as a control plane does"),
    (answer("200 OK", b"[]"), "as a control plane does: is --control-url right, and `forenotice serve` running there?"),
    (answer("502 Bad Gateway", b"<html>"), "responded 502 Bad Gateway, but not as a control plane does"),
    (answer("400 Bad Request", b'{"error": "text"}'), "responded 400 Bad Request"),
    (answer("500 Oops", b"[1]"), "does: the log of `forenotice serve` there may say why; try again"),
    (answer("503 Away", b'{"error": {"code": "unavailable", "message": "no room", "facts": {}}}'), "no room"),
    (b"", "did not finish its response (RemoteDisconnected): try again"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "did not finish its response (IncompleteRead): try again"),
    (b"HTTP/1.1 502 Bad\r\nContent-Length: 50\r\n\r\n{", "responded 502 Bad"),
    (b"SSH-2.0\r\n", "did not finish its response (BadStatusLine)"),
]


@pytest.mark.parametrize(("response", "sentence"), STRANGERS)
def test_strange_responses(run: Run, response: bytes, sentence: str) -> None:
    with stranger(response) as server:
        ran = run("vm", "list", "--control-url", server.url, "--token", "t")
    assert (ran.code, ran.err.count("\n"), sentence in ran.err) == (1, 1, True)


def test_a_redirect_does_not_carry_the_token_away(run: Run) -> None:
    with (
        stranger(answer("200 OK", EMPTY)) as thief,
        stranger(answer("302 Found", b"", f"Location: {thief.url}/v1/vms")) as server,
    ):
        ran = run("vm", "list", "--control-url", server.url, "--token", "t")
    assert ran.code == 1
    assert "responded 302 Found" in ran.err
    assert thief.asked == []


def test_a_request_whose_response_was_lost_is_sent_again_under_its_key(run: Run) -> None:
    with stranger(b"", answer("200 OK", encoded(fleet.Host))) as server:
        ran = run("host", "cordon", "a", "--control-url", server.url, "--token", "t", "--json")
    assert ran.code == 0
    first, second = server.asked
    assert first == second
    [key] = asked_header(first, "Idempotency-Key")
    assert len(key) == 36
    assert asked_header(first, "Authorization") == ["Bearer t"]
    assert first.startswith(b"PATCH /v1/hosts/a HTTP/1.1")
    assert first.endswith(b'{"cordoned":true}')


def test_a_request_that_was_refused_for_its_rate_is_sent_again(run: Run) -> None:
    busy = b'{"error": {"code": "too_many", "message": "wait %d s", "facts": {"retry_after": %d}}}'
    again = answer("429 Busy", busy % (0, 0))
    with stranger(again, again, answer("200 OK", encoded(fleet.Host))) as server:
        assert run("host", "cordon", "a", "--control-url", server.url, "--token", "t", "--json").code == 0
    first, second, third = server.asked
    assert first == second == third
    with stranger(answer("429 Busy", busy % (3600, 3600))) as server:
        assert run("host", "list", "--control-url", server.url, "--token", "t").err == "forenotice: wait 3600 s\n"


def test_a_list_is_read_to_its_end(run: Run) -> None:
    with stranger(
        answer("200 OK", b'{"items": [%b], "next": "a"}' % encoded(fleet.Host, name="a")),
        answer("200 OK", b'{"items": [%b], "next": null}' % encoded(fleet.Host, name="b")),
    ) as server:
        ran = run("host", "list", "--control-url", server.url, "--token", "t", "--json")
    assert [item["name"] for item in ran.json] == ["a", "b"]
    assert server.asked[1].startswith(b"GET /v1/hosts?after=a&limit=500 HTTP/1.1")


def test_https_needs_trust(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond_in_plain_text() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"not a record of TLS at all\n")

        thread = threading.Thread(target=respond_in_plain_text)
        thread.start()
        ran = run("vm", "list", "--control-url", f"https://127.0.0.1:{server.getsockname()[1]}", "--token", "t")
        thread.join()
    assert ran.code == 1
    assert "no TLS with the control plane" in ran.err


def test_a_defect_ends_in_a_sentence_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("name")

    monkeypatch.setattr(api, "find", broken)
    ran = run("host", "show", "a")
    sentence = "this is a defect in forenotice, please report it (KeyError: 'name')"
    assert (ran.code, ran.err) == (1, f"forenotice: {sentence}\n")
