"""What one token may take, however much it asks for."""

import select
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.acceptance.running import until
from tests.control.running import Control, running

from forenotice.control import limits

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


def test_those_who_wait_too_long_are_told_so(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_is_done_for_a_client_that_has_gone_away(control: Control) -> None:
    line = control.service.store.writer
    names = [f"host-{number}" for number in range(limits.AT_WORK + 2)]
    assert control.get("/v1/hosts")["items"] == []
    with ExitStack() as open_, line.turn():
        connections = [open_.enter_context(adding(control, name, control.token)) for name in names]
        # Some wait for the writer, each with a thread, the others for a place among those that are worked on.
        until(lambda: len(line._waiting) == limits.AT_WORK)
        for connection in connections:
            connection.close()
        until(lambda: len(line._waiting) == 0)
    assert control.get("/v1/hosts")["items"] == []
    for name in names:
        headers = {"Idempotency-Key": name}
        assert control.ask("POST", "/v1/hosts", {"name": name}, headers=headers).status == 201
