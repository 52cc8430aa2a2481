"""/live tells those who look that something has changed, and nobody else."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
from tests.control.running import DEADLINE
from tests.portal.running import Portal, Visitor, running

from forenotice.core.draft import World
from forenotice.core.journal import OF_TOKENS
from forenotice.core.operations import Kind
from forenotice.core.roles import Role
from forenotice.portal import live
from forenotice.service import calls, maintenance, sessions
from forenotice.service.service import UnitOfWork

BEGIN = b"retry: 3000\n\n"
CHANGED = b"data: changed"
LAST = b"0\r\n\r\n"
"""The end of an answer that came in chunks."""


@dataclass
class Stream:
    connection: socket.socket
    rest: bytes = b""
    """What has come and was not asked for yet."""

    def until(self, wanted: bytes, seconds: float = DEADLINE) -> bytes:
        """All that comes up to it; a heartbeat does not put the deadline off."""
        end = monotonic() + seconds
        while wanted not in self.rest:
            self.connection.settimeout(max(end - monotonic(), 0.001))
            more = self.connection.recv(65536)
            assert more, self.rest
            self.rest += more
        told, self.rest = self.rest, b""
        return told


@contextmanager
def following(portal: Portal, visitor: Visitor, after: int | None = None, more: str = "") -> Iterator[Stream]:
    if after is None:
        after = position(portal)
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    with socket.create_connection(("127.0.0.1", portal.port), DEADLINE) as connection:
        head = f"Host: 127.0.0.1:{portal.port}\r\nCookie: {cookies}\r\n{more}"
        connection.sendall(f"GET /live?after={after} HTTP/1.1\r\n{head}\r\n".encode())
        stream = Stream(connection)
        told = stream.until(BEGIN)
        assert b"text/event-stream" in told
        stream.rest = told.partition(BEGIN)[2]
        yield stream


def position(portal: Portal) -> int:
    with portal.service.store.read() as reader:
        last = reader.journal.last()
    assert last is not None
    return last[0]


def restart(portal: Portal, name: str) -> None:
    maintenance.schedule(portal.service, calls.SYSTEM, kind=Kind.RESTART, names=[name])


def test_a_change_is_told_at_once_even_if_it_came_before(portal: Portal) -> None:
    visitor, before = portal.visitor(), position(portal)
    with following(portal, visitor) as stream:
        restart(portal, "db")
        stream.until(CHANGED)
    with following(portal, visitor, before) as stream:
        stream.until(CHANGED)
    # A browser goes on where it was.
    more = f"Last-Event-ID: {position(portal)}\r\n"
    with following(portal, visitor, before, more) as stream, pytest.raises(TimeoutError):
        stream.until(CHANGED, 0.4)


def test_what_is_somebody_elses_is_not_told(portal: Portal) -> None:
    with following(portal, portal.visitor_as("tenant", "web")) as stream:
        restart(portal, "db")
        before = position(portal)
        # The one who sees everything has been told by then.
        with following(portal, portal.visitor(), before - 1) as all_told:
            all_told.until(CHANGED)
        restart(portal, "web-0")
        assert min(int(each) for each in re.findall(rb"id: (\d+)", stream.until(CHANGED))) > before


def test_strangers_and_nonsense_are_refused(unchanged: Portal) -> None:
    assert Visitor(unchanged.port).ask("GET", "/live?after=0", headers={"Accept": "text/event-stream"}).status == 401
    for after in ("", "x", "-1", "9" * 30):
        assert unchanged.visitor().get(f"/live?after={after}", 400)


def test_whoever_is_far_behind_is_told_without_a_look_at_everything(portal: Portal) -> None:
    portal.service.transact(lambda unit: _note(unit, 450))
    with following(portal, portal.visitor_as("tenant", "web"), 0) as stream:
        told = stream.until(CHANGED)
        assert b"id: %d\n" % position(portal) in told


@pytest.mark.parametrize("busy", [False, True])
def test_it_ends_with_the_session(tmp_path: Path, busy: bool) -> None:
    """Also while others are busy with what this one may not see."""
    with running(tmp_path, heartbeat=0.05) as portal:
        visitor = portal.visitor_as("tenant", "web")
        with following(portal, visitor) as stream:
            stream.until(b": alive")
            [secret] = visitor.cookies.values()
            sessions.end(portal.service, secret)
            end = monotonic() + DEADLINE
            while not _ends(stream):
                assert monotonic() < end
                if busy:
                    portal.service.transact(lambda unit: _note(unit, 1))


def test_too_many_streams_are_refused_as_everything_is(portal: Portal) -> None:
    visitors = [portal.visitor() for _ in range(3)]
    with ExitStack() as streams:
        for visitor in visitors[:2]:
            for _ in range(live.MOST_OF_ONE):
                streams.enter_context(following(portal, visitor))
        for visitor, words in (
            (visitors[0], "pages of yours are live"),
            (visitors[2], "streams of this token are open"),
        ):
            said = visitor.ask("GET", "/live?after=0", headers={"Accept": "text/event-stream"})
            assert said.status == 429
            assert words in said.text
            assert "content-security-policy" in said.headers


@pytest.mark.parametrize("role", [role for role in Role if role not in (Role.ADMIN, Role.TENANT)])
def test_sign_ins_are_told_to_administrators_alone(portal: Portal, role: Role) -> None:
    looks, administers = portal.visitor_as(role), portal.visitor()
    with following(portal, looks) as others, following(portal, administers) as own:
        portal.visitor()
        signed_in = position(portal)
        with portal.service.store.read() as reader:
            [(_, entry)] = reader.journal.page(after=signed_in - 1)
        assert entry.action.startswith(OF_TOKENS)
        # One loop tells both: when the administrator knows, the other has been passed over.
        own.until(CHANGED)
        restart(portal, "db")
        told = re.search(rb"id: (\d+)\ndata: changed", others.until(CHANGED + b"\n"))
        assert told is not None
        assert int(told[1]) > signed_in


def _ends(stream: Stream) -> bool:
    """Within the time that passes between two things that others do."""
    with suppress(TimeoutError):
        return LAST in stream.until(LAST, 0.02)
    return False


def _note(unit: UnitOfWork, entries: int) -> None:
    draft = unit.draft(World())
    for _ in range(entries):
        draft.note("command.unchanged", asked="test")
    unit.keep(draft)
