"""The journal as it happens, over server-sent events."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.control.running import Control, running

from forenotice.control import stream as streams_module
from forenotice.core.draft import World
from forenotice.service import tokens
from forenotice.service.calls import SYSTEM
from forenotice.service.service import UnitOfWork


@dataclass
class Told:
    id: int
    event: str
    data: dict[str, Any]


class Stream:
    def __init__(self, control: Control, query: str = "", *, token: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=60)
        headers |= {"Authorization": f"Bearer {token or control.token}"}
        self._connection.request("GET", f"/v1/stream{query}", headers=headers)
        self.answer = self._connection.getresponse()

    def lines(self) -> list[str]:
        """Of one block; empty: it has ended."""
        found = []
        while line := self.answer.readline().decode().rstrip("\n"):
            found.append(line)
        return found

    def blocks(self) -> Iterator[list[str]]:
        while block := self.lines():
            yield block

    def told(self, number: int) -> list[Told]:
        found: list[Told] = []
        while len(found) < number:
            block = self.lines()
            assert block, "it ended"
            if block[0].startswith("id: "):
                position, event, data = (line.partition(": ")[2] for line in block)
                found.append(Told(int(position), event, json.loads(data)))
        return found

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def streaming(control: Control, query: str = "", *, token: str = "", **headers: str) -> Iterator[Stream]:
    stream = Stream(control, query, token=token, **headers)
    assert stream.answer.status == 200, stream.answer.read()
    try:
        yield stream
    finally:
        stream.close()


def add_host(control: Control, name: str) -> None:
    control.post("/v1/hosts", {"name": name})


def test_what_happens_comes_as_it_happens_and_as_the_history_has_it(control: Control) -> None:
    with streaming(control) as stream, streaming(control) as other:
        assert stream.answer.headers["Content-Type"].startswith("text/event-stream")
        assert stream.lines()[0].startswith(": ")
        add_host(control, "host-a")
        (told,) = stream.told(1)
        assert told.event == told.data["action"] == "host.added"
        assert [told.data] == control.get("/v1/history?action=host.added")["items"]
        assert told.id == told.data["seq"]
        assert other.told(1) == [told]


def test_it_resumes_with_nothing_lost_and_nothing_twice(control: Control) -> None:
    stop = threading.Event()

    def keep_adding() -> None:
        number = 0
        while not stop.is_set():
            add_host(control, f"host-{number}")
            number += 1

    adding = threading.Thread(target=keep_adding)
    adding.start()
    found: list[int] = []
    try:
        headers = {"Last-Event-ID": "0"}
        for _ in range(5):
            with streaming(control, **headers) as stream:
                found += [told.id for told in stream.told(7)]
            headers = {"Last-Event-ID": str(found[-1])}
    finally:
        stop.set()
        adding.join()
    assert found == list(range(1, 36))


def test_a_stream_begins_where_it_is_asked_to_from_the_store_or_from_memory(control: Control) -> None:
    with streaming(control) as near:
        for number in range(5):
            add_host(control, f"host-{number}")
        newest = near.told(5)[-1].id
        for query, headers, first in (
            ("?after=0", {}, 1),
            (f"?after={newest - 2}", {}, newest - 1),
            ("?after=0", {"Last-Event-ID": str(newest - 1)}, newest),
        ):
            expected = list(range(first, newest + 1))
            with streaming(control, query, **headers) as stream:
                assert [told.id for told in stream.told(len(expected))] == expected


def test_filters(fleet: Control) -> None:
    with streaming(fleet, "?after=0&action=vm.") as stream:
        assert [told.data["vm"] for told in stream.told(4)] == ["web-0", "web-1", "db", "batch"]
    with streaming(fleet, "?after=0&scope=group:web&action=vm.added") as stream:
        assert [told.data["vm"] for told in stream.told(2)] == ["web-0", "web-1"]
    made = fleet.post("/v1/operations", {"kind": "restart", "names": ["db"]})["operations"][0]
    event = made["events"][0]["id"]
    with streaming(fleet, f"?after=0&event={event.lower()}") as stream:
        assert stream.told(1)[0].data["event"] == event


def test_a_token_of_some_scopes_is_told_of_those(fleet: Control) -> None:
    token = str(tokens.create(fleet.service, SYSTEM, name="shop", role="tenant", scopes="web").token)
    with streaming(fleet, "?after=0", token=token) as stream:
        told = stream.told(3)
        assert {each.data["scope"] for each in told} == {"group:web"}
        assert [each.data for each in told] == fleet.ask("GET", "/v1/history", token=token).json["items"]
        fleet.post("/v1/operations", {"kind": "restart", "names": ["db"]})
        fleet.post("/v1/operations", {"kind": "restart", "names": ["web-0"]})
        assert stream.told(1)[0].data["scope"] == "group:web"


def test_the_next_holder_of_a_name_is_told_nothing_of_before(fleet: Control) -> None:
    def token(name: str, scopes: str) -> str:
        return str(tokens.create(fleet.service, SYSTEM, name=name, role="tenant", scopes=scopes).token)

    named, fitting = token("named", "vm:db"), token("fitting", "vm:*")
    # The third follows all, so that what the others ask for is in memory.
    with streaming(fleet, "?after=0", token=named) as old, streaming(fleet) as all_of_it:
        fleet.ask("DELETE", "/v1/vms/db")
        assert [told.event for told in old.told(3)] == ["vm.added", "scope.policy_changed", "vm.removed"]
        added = fleet.post("/v1/vms", {"name": "db", "host": "host-b"})
        assert len(added["warnings"]) == 1
        assert not [block for block in old.blocks() if block[0].startswith("id:")]
        begun = all_of_it.told(2)[-1].id
        for after in (0, begun - 2):
            with streaming(fleet, f"?after={after}&scope=vm:db", token=fitting) as new:
                assert new.told(1)[0].id == begun


def test_it_ends_when_the_token_is_revoked_or_expires(control: Control) -> None:
    made = control.post("/v1/tokens", {"name": "other", "role": "admin"})
    soon = timedelta(seconds=0.3)
    expiring = str(tokens.create(control.service, SYSTEM, name="guest", expires_in=soon).token)
    begin = monotonic()
    with streaming(control, token=made["token"]) as stream:
        control.ask("DELETE", f"/v1/tokens/{made['id']}")
        assert not [block for block in stream.blocks() if block[0].startswith("id:")]
    with streaming(control, token=expiring) as stream:
        assert all(block[0].startswith(":") for block in stream.blocks())
    # An entry that its filter leaves out is enough to notice.
    silent = control.post("/v1/tokens", {"name": "silent", "role": "admin"})
    with streaming(control, "?action=nothing", token=silent["token"]) as stream:
        assert stream.lines()[0].startswith(": ")
        with control.service.store.write() as transaction:
            transaction.tokens.revoke(silent["id"], control.service.clock.now())
        add_host(control, "host-a")
        assert stream.lines() == []
    assert monotonic() - begin < streams_module.HEARTBEAT_SECONDS


def test_heartbeats_show_that_it_lives_and_find_out_who_may_no_longer_read(tmp_path: Path) -> None:
    with running(tmp_path, heartbeat=0.02) as control:
        made = control.post("/v1/tokens", {"name": "other", "role": "admin"})
        with streaming(control, "?action=nothing", token=made["token"]) as stream:
            assert [next(stream.blocks()) for _ in range(3)][1:] == [[": alive"], [": alive"]]
            with control.service.store.write() as transaction:
                transaction.tokens.revoke(made["id"], control.service.clock.now())
            assert len(list(islice(stream.blocks(), 100))) < 100


def test_it_ends_at_once_when_the_server_stops(tmp_path: Path) -> None:
    with running(tmp_path) as control:
        stream = Stream(control)
        begin = monotonic()
    assert monotonic() - begin < streams_module.HEARTBEAT_SECONDS
    assert stream.lines()[0].startswith(": ")
    assert stream.lines() == []
    stream.close()


@pytest.mark.parametrize(
    ("query", "headers", "status", "said"),
    [
        ("", {"Last-Event-ID": "x"}, 400, "Last-Event-ID is not a position"),
        ("", {"Last-Event-ID": "-1"}, 400, "Last-Event-ID is not a position"),
        ("?after=-1", {}, 400, "after in the query must be at least 0"),
        ("?after=99999", {}, 409, "the journal ends at"),
        ("?vm=a", {}, 400, "vm in the query is not known"),
    ],
)
def test_what_cannot_be_is_refused(
    unchanged: Control, query: str, headers: dict[str, str], status: int, said: str
) -> None:
    answer = unchanged.ask("GET", f"/v1/stream{query}", headers=headers)
    assert (answer.status, said in answer.message) == (status, True), answer.message


def test_there_is_an_end_to_how_many_follow_and_leaving_makes_room(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_FOLLOWERS", 10)
    other = str(tokens.create(control.service, SYSTEM, name="other").token)
    streams = [Stream(control) for _ in range(streams_module.MOST_OF_ONE)]
    refused = control.ask("GET", "/v1/stream")
    assert (refused.status, "8 streams of this token are open already" in refused.message) == (429, True)
    streams += [Stream(control, token=other) for _ in range(2)]
    refused = control.ask("GET", "/v1/stream", token=other)
    assert (refused.status, "10 streams are open already" in refused.message) == (503, True)
    for stream in streams:
        stream.close()
    deadline = monotonic() + 60
    while (opened := Stream(control)).answer.status != 200:
        opened.close()
        assert monotonic() < deadline
    add_host(control, "host-a")
    assert opened.told(1)
    opened.close()


def test_a_slow_reader_loses_nothing(control: Control) -> None:
    def happen(unit: UnitOfWork) -> None:
        draft = unit.draft(World())
        for _ in range(2000):
            draft.note("host.looked_at", said="x" * 1500)
        unit.keep(draft)

    with streaming(control) as stream:
        control.service.transact(happen)
        add_host(control, "host-a")
        told = stream.told(2001)
    assert told[-1].event == "host.added"
    assert [each.id - told[0].id for each in told] == list(range(2001))
