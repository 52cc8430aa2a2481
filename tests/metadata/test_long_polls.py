"""ETag, If-None-Match and long polls."""

import socket
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import pytest
from tests.metadata.running import (
    APPROVAL,
    DB,
    DB_ADDRESS,
    DB_VM,
    EVENT,
    FLEET,
    WEB,
    WEB_VMS,
    Client,
    Running,
    request,
    running,
    until,
)

from forenotice import publication
from forenotice.metadata.options import Options
from forenotice.publication import Publication

TAG = '"2-webtag"'


def conditional(tag: str = TAG, wait: str | None = None) -> bytes:
    prefer = () if wait is None else (f"Prefer: {wait}",)
    return request(headers=("Metadata: true", f"If-None-Match: {tag}", *prefer))


def waiting(server: Running, count: int = 1) -> None:
    until(lambda: server.server.counters.waiting == count)


@pytest.mark.parametrize("tag", [TAG, "2-webtag", f"W/{TAG}", f'"1-webtag", {TAG}', "*", f'"other" , W/{TAG}'])
def test_an_unchanged_document_is_not_sent_again(shared: Running, tag: str) -> None:
    with shared.connect() as client:
        for _ in range(2):
            client.send(conditional(tag))
            reply = client.reply()
            assert (reply.status, reply.body, reply["ETag"]) == (304, b"", TAG)
            assert reply["Forenotice-Epoch"] == "webtag"
            assert reply["Date"]


@pytest.mark.parametrize("tag", ['"1-webtag"', '"2-other"', "2", "", '"2-webtag-"', f"{TAG}, {'x,' * 600}"])
def test_another_tag_gets_the_document(shared: Running, tag: str) -> None:
    with shared.connect() as client:
        client.send(conditional(tag))
        assert client.reply().status == 200


def test_the_tag_of_one_scope_never_fits_another(shared: Running) -> None:
    tag = shared.ask(source=DB_ADDRESS)["ETag"]
    with shared.connect() as client:
        client.send(conditional(tag))
        assert client.reply().status == 200


def test_a_condition_on_a_post_is_ignored(server: Running) -> None:
    with server.connect() as client:
        client.send(request(method="POST", headers=("Metadata: true", f"If-None-Match: {TAG}"), body=APPROVAL))
        assert client.reply().status == 200


WITHOUT_WEB_0 = publication.of(WEB, vms=WEB_VMS[1:], events=(EVENT,))
ENDS: dict[str, tuple[Callable[[Running, Client], object], int, dict[str, str]]] = {
    "document changes": (lambda server, _: server.show(3), 200, {"etag": '"3-webtag"'}),
    "VM changes scope": (
        lambda server, _: server.publisher.scopes(
            [WITHOUT_WEB_0, publication.of(DB, vms=(DB_VM, replace(WEB_VMS[0], scope=DB.key)))]
        ),
        200,
        {"etag": '"1-dbtag"'},
    ),
    "VM is removed": (lambda server, _: server.publisher.scopes([WITHOUT_WEB_0]), 404, {}),
    "scope is removed": (lambda server, _: server.publisher.scopes([Publication(key=WEB.key)]), 404, {}),
    "server stops": (lambda server, _: server.stop(), 304, {"connection": "close"}),
    "client sends no more": (lambda _, client: client.socket.shutdown(socket.SHUT_WR), 304, {}),
}


@pytest.mark.parametrize("when", ENDS)
def test_a_wait_ends_when_the(when: str, server: Running) -> None:
    end, status, headers = ENDS[when]
    with server.connect() as client:
        client.send(conditional(wait="wait=30"))
        waiting(server)
        assert client.is_silent()
        end(server, client)
        reply = client.reply()
        assert (reply.status, {**reply.headers, **headers}) == (status, reply.headers)
        assert (server.server.counters.waits, server.server.counters.waiting) == (1, 0)
        if when in ("server stops", "client sends no more"):
            assert client.is_closed()
        else:
            client.send(request("/metadata/nowhere"))
            assert client.reply().status == 404


def test_what_is_already_different_is_not_waited_for(shared: Running) -> None:
    with shared.connect() as client:
        client.send(conditional('"1-webtag"', wait="wait=30"))
        assert client.reply().status == 200


@pytest.mark.parametrize(
    "wait",
    [
        "wait=1",
        "respond-async, Wait=1",
        'handling=lenient; wait="1"',
        "wait=1;x=y",
        'foo="a,\\"wait=30" , wait = 1',
        "wait=1, wait=30",
    ],
)
def test_a_wait_ends_with_its_time(shared: Running, wait: str) -> None:
    with shared.connect() as client:
        began = monotonic()
        client.send(conditional(wait=wait))
        reply = client.reply()
        assert (reply.status, reply.body) == (304, b"")
        assert 0.9 <= monotonic() - began < 20


@pytest.mark.parametrize("seconds", ["3600", "9999999999", "9" * 1000])
def test_a_wait_is_capped(seconds: str) -> None:
    with running(options=Options(wait_cap=0.2)) as server, server.connect() as client:
        client.send(conditional(wait=f"wait={seconds}"))
        assert client.reply().status == 304
        assert server.server.counters.waits == 1


@pytest.mark.parametrize(
    "wait",
    [
        "wait=0",
        "wait",
        "wait=soon",
        "wait=-1",
        "await=3",
        "wait=1e3",
        'wait="3',
        'foo="a,wait=3"',
        'foo="a\\",wait=3"',
        'foo="a,wait=3,',
        'foo="a,wait=3\\',
    ],
)
def test_what_is_no_wait_is_answered_at_once(shared: Running, wait: str) -> None:
    before = shared.server.counters.waits
    with shared.connect() as client:
        client.send(conditional(wait=wait))
        assert client.reply().status == 304
    assert shared.server.counters.waits == before


def test_waiting_needs_a_tag(shared: Running) -> None:
    with shared.connect() as client:
        client.send(request(headers=("Metadata: true", "Prefer: wait=30")))
        assert client.reply().status == 200


def test_a_change_that_does_not_concern_a_wait_leaves_it(server: Running) -> None:
    with server.connect() as client:
        client.send(conditional(wait="wait=30"))
        waiting(server)
        server.show(7, scope=DB)
        server.show(2, EVENT)
        server.publisher.scopes(FLEET)
        server.settle()
        assert client.is_silent()
        assert server.server.counters.waiting == 1


def test_a_client_that_leaves_is_not_waited_for(server: Running) -> None:
    with server.connect() as client:
        client.send(conditional(wait="wait=30"))
        waiting(server)
    waiting(server, 0)
    until(lambda: server.server.counters.open == 0)
    server.show(3)
    server.settle()
    assert server.ask().status == 200


def test_later_requests_wait_behind_a_wait(server: Running) -> None:
    with server.connect() as client:
        client.send(conditional(wait="wait=30") + conditional(wait="wait=30"))
        waiting(server)
        client.send(request("/metadata/versions"))
        assert client.is_silent()
        server.show(3)
        assert [client.reply().status for _ in range(3)] == [200, 200, 200]


def test_many_waiters_are_all_told(server: Running) -> None:
    clients: list[Client] = []
    try:
        for number in range(300):
            clients.append(server.connect(("127.1.0.21", "127.1.0.22")[number % 2]))
            clients[-1].send(conditional(wait="wait=30"))
        waiting(server, 300)
        server.show(3)
        assert {client.reply().status for client in clients} == {200}
        waiting(server, 0)
    finally:
        for client in clients:
            client.socket.close()
