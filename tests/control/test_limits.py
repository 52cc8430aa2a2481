"""What one token may take, however much it asks for, and how long clients without one wait."""

import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.acceptance.running import until
from tests.control.running import Control, running, serving

from forenotice.control import app, limits
from forenotice.control.server import ControlServer
from forenotice.portal import app as portal

FLOOD = limits.MOST_OF_ONE + 2
"""More than there are threads, and more than may be under way."""


def adding(control: Control, host: str, token: str) -> socket.socket:
    """A connection that has asked for a host, under the key of its name."""
    made = socket.create_connection(("127.0.0.1", control.port), timeout=60)
    body = f'{{"name": "{host}"}}'
    head = f"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: {host}\r\n"
    made.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return made


def test_a_token_that_floods_with_what_takes_long_leaves_room_for_others(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 20)
    flooding = control.post("/v1/tokens", {"name": "flooding", "role": "admin"})["token"]
    for token in (control.token, flooding):
        assert control.ask("GET", "/v1/hosts", token=token).status == 200
    release, held = threading.Event(), threading.Event()

    def hold_the_writer() -> None:
        with control.service.store.write():
            held.set()
            release.wait(60)

    writer = threading.Thread(target=hold_the_writer)
    writer.start()
    assert held.wait(60)
    with ExitStack() as open_:
        open_.callback(writer.join)
        open_.callback(release.set)
        connections = [open_.enter_context(adding(control, f"host-{number}", flooding)) for number in range(FLOOD)]
        # The last of them are refused, because all the others are under way.
        for _ in range(FLOOD - limits.MOST_OF_ONE):
            [refused, *_], _, _ = select.select(connections, [], [], 20)
            assert refused.recv(12) == b"HTTP/1.1 429"
            connections.remove(refused)
        # None of them can end now: whoever is answered found room beside them.
        assert control.get("/v1/vms")["items"] == []
        release.set()
        said = [connection.recv(12) for connection in connections]
    assert set(said) <= {b"HTTP/1.1 201", b"HTTP/1.1 429"}
    assert b"HTTP/1.1 201" in said


def test_a_request_that_waits_too_long_is_refused(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(limits, "AT_WORK", 0)
    said = control.ask("GET", "/v1/hosts")
    assert (said.status, said.headers["retry-after"], said.json["error"]["code"]) == (429, "1", "too_many")


def test_a_token_has_a_rate_and_others_have_theirs(tmp_path: Path) -> None:
    with running(tmp_path, token_rate=0.5) as control:
        other = control.ask("POST", "/v1/tokens", {"name": "other", "role": "viewer"}).json["token"]
        end = time.monotonic() + 20
        while (said := control.ask("GET", "/v1/hosts")).status != 429:
            assert time.monotonic() < end
        assert 1 <= int(said.headers["retry-after"]) <= 2
        assert "more than 0.5 requests a second" in said.message
        assert control.ask("GET", "/v1/hosts", token=other).status == 200
        assert b'forenotice_refused_total{status="429"} 1.0' in control.metrics.render()


def test_nothing_is_done_for_a_client_that_has_gone_away(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    line = control.service.store.writer
    names = [f"host-{number}" for number in range(limits.AT_WORK + 2)]
    assert control.get("/v1/hosts")["items"] == []
    with ExitStack() as open_, line.turn():
        connections = [open_.enter_context(adding(control, name, control.token)) for name in names]
        # Some wait for the writer, each with a thread, the others for a place among those that are worked on.
        until(lambda: len(line._waiting) == limits.AT_WORK)
        with monkeypatch.context() as patch:
            patch.setattr(limits, "PATIENCE_SECONDS", 0.05)
            assert control.ask("GET", "/v1/hosts").status == 429
        for connection in connections:
            connection.close()
        until(lambda: len(line._waiting) == 0)
    assert control.get("/v1/hosts")["items"] == []
    for name in names:
        headers = {"Idempotency-Key": name}
        assert control.ask("POST", "/v1/hosts", {"name": name}, headers=headers).status == 201


def test_one_token_cannot_have_everything_under_way(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OF_ONE", 2)
    other = control.post("/v1/tokens", {"name": "other", "role": "admin"})["token"]
    with ExitStack() as open_:
        for _ in range(2):
            connection = open_.enter_context(socket.create_connection(("127.0.0.1", control.port), timeout=60))
            head = f"POST /v1/hosts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {control.token}\r\n"
            connection.sendall(f"{head}Content-Length: 9\r\nExpect: 100-continue\r\n\r\n".encode())
            # It is asked for its body, so it is counted.
            assert connection.recv(12) == b"HTTP/1.1 100"
        said = control.ask("GET", "/v1/hosts")
        assert (said.status, said.headers["retry-after"]) == (429, "1")
        assert "2 requests of this token" in said.message
        assert control.ask("GET", "/v1/hosts", token=other).status == 200
    until(lambda: control.ask("GET", "/v1/hosts").status == 200)


# Clients without a valid token


def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    source: str = "127.0.0.1",
    body: str = "",
    seconds: float = 20,
    headers: Mapping[str, str] | None = None,
) -> str:
    """The head of the answer; empty: it does not come soon."""
    sent = {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    with socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0)) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        readable, _, _ = select.select([connection], [], [], seconds)
        return connection.recv(65536).decode() if readable else ""


def test_strangers_with_many_requests_wait_alone(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNKNOWN_A_SECOND", 0.001)
    monkeypatch.setattr(limits, "UNKNOWN_AT_ONCE", 4)
    monkeypatch.setattr(limits, "DELAY_SECONDS", 60)
    api = app.Api(control.service, control.metrics)
    served = limits.Throttle(portal.beside(api, control.service))
    token = {"Authorization": f"Bearer {control.token}"}
    with ExitStack() as running:
        port = running.enter_context(serving(ControlServer(served, "127.0.0.1", 0, grace=1)))
        assert " 200 " in ask(port, "/v1/hosts", headers=token)
        signed_in = ask(port, "/sign-in", method="POST", body=urlencode({"token": control.token}))
        cookie = {"Cookie": signed_in.partition("set-cookie: ")[2].partition(";")[0]}
        assert " 200 " in ask(port, "/", headers=cookie)
        assert " 401 " in ask(port, "/v1/hosts", headers={"Authorization": "Bearer fn_guessed"})
        for path in ("/healthz", "/sign-in", "/v1/hosts"):
            assert ask(port, path, seconds=0.3) == ""
        for _ in range(5):
            assert " 200 " in ask(port, "/v1/hosts", headers=token)
            assert " 200 " in ask(port, "/", headers=cookie)
        assert " 200 " in ask(port, "/healthz", source="127.0.0.2")
        with monkeypatch.context() as few:
            few.setattr(limits, "MOST_OF_ONE", 0)
            assert " 429 " in ask(port, "/v1/hosts", headers=token)
        assert ask(port, "/v1/hosts", seconds=0.3, headers=token) == ""


def test_few_are_known_at_once(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_KNOWN", 3)
    found = limits.Throttle(app.Api(control.service, control.metrics))
    for shown in (b"1", b"2", b"3", b"1", b"4"):
        found._recognise(shown)
    assert list(found._known) == [b"3", b"1", b"4"]
