"""/live tells those who look that something has changed, and nobody else."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.control.running import DEADLINE
from tests.portal.running import Portal, Visitor, running

from notbefore.core.operations import Kind
from notbefore.service import calls, maintenance, sessions

CHANGED = b"data: changed"


@contextmanager
def following(portal: Portal, visitor: Visitor, after: int | None = None) -> Iterator[socket.socket]:
    if after is None:
        after = position(portal)
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    with socket.create_connection(("127.0.0.1", portal.port), DEADLINE) as connection:
        connection.sendall(
            f"GET /live?after={after} HTTP/1.1\r\nHost: 127.0.0.1:{portal.port}\r\nCookie: {cookies}\r\n\r\n".encode()
        )
        assert b"text/event-stream" in until(connection, b"retry: 3000")
        yield connection


def until(connection: socket.socket, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        more = connection.recv(65536)
        assert more, found
        found += more
    return found


def position(portal: Portal) -> int:
    with portal.service.store.read() as reader:
        last = reader.last_entry()
    assert last is not None
    return last[0]


def restart(portal: Portal, name: str) -> None:
    maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.RESTART, names=[name])


def test_a_change_is_told(portal: Portal) -> None:
    with following(portal, portal.visitor()) as stream:
        restart(portal, "db")
        until(stream, CHANGED)


def test_what_changed_since_the_page_was_made_is_told_at_once(portal: Portal) -> None:
    visitor = portal.visitor()
    before = position(portal)
    restart(portal, "db")
    with following(portal, visitor, before) as stream:
        until(stream, CHANGED)


def test_what_is_somebody_elses_is_not_told(portal: Portal) -> None:
    with following(portal, portal.visitor_as("tenant", "web")) as stream:
        restart(portal, "db")
        restart(portal, "web-0")
        told = until(stream, CHANGED)
        # One message, whose id is behind both: had the first been told, there would have been two.
        assert told.count(CHANGED) == 1
        stream.settimeout(0.4)
        with pytest.raises(TimeoutError):
            until(stream, CHANGED)


def test_it_ends_with_the_session(tmp_path: Path) -> None:
    with running(tmp_path, heartbeat=0.05) as portal:
        visitor = portal.visitor()
        with following(portal, visitor) as stream:
            until(stream, b": alive")
            [secret] = visitor.cookies.values()
            sessions.end(portal.service, secret)
            while stream.recv(65536):
                pass


def test_strangers_and_nonsense_are_refused(unchanged: Portal) -> None:
    assert Visitor(unchanged.port).ask("GET", "/live?after=0", headers={"Accept": "text/event-stream"}).status == 401
    for after in ("", "x", "-1", "9" * 30):
        assert unchanged.visitor().get(f"/live?after={after}", 400)
