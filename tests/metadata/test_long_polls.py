"""ETag, If-None-Match and long polls."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from time import monotonic

import pytest
from tests.metadata import running as rig
from tests.metadata.running import APPROVAL, DB, DB_VM, EVENT, WEB, WEB_VMS, Client, Running, request, running, until

from forenotice import publication
from forenotice.metadata.long_poll import wait_seconds
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
            reply = client.ask(conditional(tag))
            assert (reply.status, reply.body, reply["ETag"]) == (304, b"", TAG)
            assert reply["Forenotice-Epoch"] == "webtag"
            assert reply["Date"]


@pytest.mark.parametrize("tag", ['"1-webtag"', '"2-other"', "2", "", '"2-webtag-"', f"{TAG}, {'x,' * 600}"])
def test_another_tag_gets_the_document_at_once(shared: Running, tag: str) -> None:
    with shared.connect() as client:
        assert client.ask(conditional(tag)).status == 200
        assert client.ask(conditional(tag, wait="wait=30")).status == 200


def test_the_tag_of_another_scope_and_a_tag_on_a_post_have_no_effect(server: Running) -> None:
    tag = server.ask(source=rig.DB_ADDRESS)["ETag"]
    with server.connect() as client:
        assert client.ask(conditional(tag)).status == 200
        post = request(method="POST", headers=("Metadata: true", f"If-None-Match: {TAG}"), body=APPROVAL)
        assert client.ask(post).status == 200
        # Waiting needs a tag.
        assert client.ask(request(headers=("Metadata: true", "Prefer: wait=30"))).status == 200


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
    "driver wants a poll": (lambda server, _: server.publisher.end_long_polls("web-0"), 304, {}),
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
            assert client.ask(request("/metadata/nowhere")).status == 404


def test_a_driver_that_wants_a_poll_of_one_vm_ends_the_waits_of_no_other(server: Running) -> None:
    with server.connect() as client:
        client.send(conditional(wait="wait=30"))
        waiting(server)
        for vm in ("web-1", "db", "unknown"):
            server.publisher.end_long_polls(vm)
        assert client.is_silent()
        server.publisher.end_long_polls("web-0")
        assert client.reply().status == 304


def test_a_wait_ends_with_its_time(shared: Running) -> None:
    with shared.connect() as client:
        began = monotonic()
        reply = client.ask(conditional(wait='respond-async, foo="a" , wait = 1'))
        assert (reply.status, reply.body) == (304, b"")
        assert 0.9 <= monotonic() - began < 20


@pytest.mark.parametrize("seconds", ["3600", "9999999999", "9" * 1000])
def test_a_wait_is_capped(seconds: str) -> None:
    with running(options=Options(wait_cap=0.2)) as server, server.connect() as client:
        assert client.ask(conditional(wait=f"wait={seconds}")).status == 304
        assert server.server.counters.waits == 1


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=1", 1),
        ("respond-async, Wait=1", 1),
        ('handling=lenient; wait="1"', 1),
        ("wait=1;x=y", 1),
        ('foo="a,\\"wait=30" , wait = 1', 1),
        ("wait=1, wait=30", 1),
        ("wait=0", 0),
        *(
            (prefer, None)
            for prefer in (
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
            )
        ),
    ],
)
def test_what_is_a_wait(shared: Running, prefer: str, seconds: float | None) -> None:
    assert wait_seconds(prefer) == seconds
    if not seconds:
        with shared.connect() as client:
            before = shared.server.counters.waits
            assert client.ask(conditional(wait=prefer)).status == 304
            assert shared.server.counters.waits == before


def test_a_change_that_does_not_concern_a_wait_leaves_it(server: Running) -> None:
    with server.connect() as client:
        client.send(conditional(wait="wait=30"))
        waiting(server)
        server.show(7, scope=DB)
        server.show(2, EVENT)
        server.publisher.scopes(rig.FLEET)
        server.settle()
        assert client.is_silent()
        assert server.server.counters.waiting == 1
    # A client that leaves is not waited for.
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
        assert client.statuses(3) == [200, 200, 200]


def test_all_of_many_waits_end(server: Running) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect(rig.WEB_ADDRESSES[number % 2])) for number in range(300)]
        for client in clients:
            client.send(conditional(wait="wait=30"))
        waiting(server, 300)
        server.show(3)
        assert {client.reply().status for client in clients} == {200}
        waiting(server, 0)
