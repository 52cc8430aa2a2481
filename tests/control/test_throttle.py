"""Whoever shows no valid token waits when its address asks often; nobody else does."""

import select
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from urllib.parse import urlencode

import pytest
from tests.control.running import Control, serving

from forenotice.control import app, limits
from forenotice.control.server import ControlServer
from forenotice.portal import app as portal


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


def test_strangers_who_ask_often_wait_and_operators_do_not(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
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
