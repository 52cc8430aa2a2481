"""Listening, from a scope's first GET to what is kept of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.metadata import running as rig
from tests.metadata.running import APPROVAL, DB, DB_ADDRESS, PATH, WEB, WEB_VMS, Running, auto, request, running, until

from forenotice import publication
from forenotice.core import errors
from forenotice.core.timing import Timing
from forenotice.metadata.options import Limits, Options
from forenotice.publication import Publication

LONG_AGO = datetime.now(UTC) - timedelta(hours=25)
JUST_NOW = datetime.now(UTC) - timedelta(hours=1)
FAST = Timing(speed=60)
INSTANCE = "/metadata/instance?api-version=2021-02-01"


def fleet(last_heard: datetime | None = None) -> tuple[Publication, ...]:
    return (
        publication.of(auto(WEB, last_heard), vms=WEB_VMS, events=(rig.EVENT,)),
        publication.of(DB, vms=(rig.DB_VM,)),
    )


def heard(server: Running) -> float:
    return server.published.scopes[WEB.key].heard


@pytest.mark.parametrize("last_heard", [None, LONG_AGO])
def test_a_first_poll_waits_until_the_service_knows(last_heard: datetime | None) -> None:
    with running(fleet=fleet(last_heard)) as server:
        # Other requests do not start listening.
        assert [server.ask(target).status for target in ("/metadata/versions", INSTANCE)] == [200, 200]
        server.guests.gate.clear()
        with server.connect() as client, server.connect("127.1.0.22") as other:
            client.send(request())
            assert client.is_silent()
            other.send(request())
            assert other.is_silent()
            assert server.ask(source=DB_ADDRESS).status == 200
            server.guests.gate.set()
            assert [client.reply().status, other.reply().status] == [200, 200]
        (kept,) = server.guests.heards
        assert list(kept) == [WEB.key]
        assert abs(kept[WEB.key] - datetime.now(UTC)) < timedelta(seconds=10)
        assert server.ask().status == 200
        assert len(server.guests.heards) == 1


def test_a_scope_that_listens_gets_its_response_at_once_and_nothing_is_written_again() -> None:
    with running(fleet=fleet(JUST_NOW)) as server:
        server.guests.gate.clear()
        assert server.ask(INSTANCE).status == 200
        server.guests.gate.set()
        server.stop()
        assert server.guests.heards == []
    with running(fleet=fleet(JUST_NOW)) as server:
        server.guests.gate.clear()
        assert server.ask().status == 200
        server.guests.gate.set()
        # What is new is kept at the end.
        server.stop()
        assert [list(kept) for kept in server.guests.heards] == [[WEB.key]]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_store_that_is_away_or_hangs_does_not_keep_a_first_poll_waiting(hangs: bool) -> None:
    with running(fleet=fleet(), options=Options(limits=Limits(patience_seconds=0.2))) as server:
        if hangs:
            server.guests.gate.clear()
        else:
            server.guests.broken = errors.UnavailableError()
        assert [server.ask().status, server.ask().status] == [200, 200]
        server.guests.gate.set()
        server.guests.broken = None
        # The service learns it as soon as it can.
        until(lambda: bool(server.guests.heards))
        assert list(server.guests.heards[0]) == [WEB.key]


def test_the_first_response_can_be_delayed() -> None:
    with running(fleet=fleet(), options=Options(first_response_delay=0.4)) as server, server.connect() as client:
        client.send(request())
        until(lambda: bool(server.guests.heards))
        assert client.is_silent()
        assert client.reply().status == 200
        assert client.ask(request()).status == 200


def test_a_client_that_leaves_and_a_vm_that_is_removed_during_a_first_poll() -> None:
    with running(fleet=fleet()) as server:
        server.guests.gate.clear()
        with server.connect() as client, server.connect("127.1.0.22") as other:
            client.send(request())
            other.send(request())
            assert client.is_silent()
            assert other.is_silent()
            client.socket.close()
            server.publisher.scopes([Publication(key=WEB.key)])
            server.settle()
            server.guests.gate.set()
            assert other.reply().status == 404
        until(lambda: server.server.counters.open == 0)
        assert len(server.guests.heards) == 1
        assert server.ask(source=DB_ADDRESS).status == 200


def test_listening_is_kept_now_and_then() -> None:
    with running(fleet=fleet(JUST_NOW - timedelta(minutes=50)), timing=FAST) as server:
        assert server.ask().status == 200
        server.guests.heards.clear()
        until(lambda: server.ask().status == 200 and len(server.guests.heards) >= 2)
        first, second = server.guests.heards[:2]
        assert second[WEB.key] - first[WEB.key] >= timedelta(seconds=0.9)


def test_a_failed_write_is_tried_again() -> None:
    with running(fleet=fleet(datetime.now(UTC)), timing=FAST) as server:
        server.guests.broken = errors.UnavailableError()
        assert server.ask().status == 200
        scope = server.published.scopes[WEB.key]
        server.call(setattr, scope, "saved", 0.0)
        server.call(server.server.refresh)
        until(lambda: server.ask().status == 200 and server.call(lambda: scope.heard > scope.saved))
        server.guests.broken = None
        until(lambda: bool(server.guests.heards))


def test_a_scope_made_anew_under_its_name_has_not_polled() -> None:
    with running(fleet=fleet(JUST_NOW)) as server:
        assert server.ask().status == 200
        server.publisher.scopes([publication.of(replace(auto(WEB), tag="newtag"), vms=WEB_VMS)])
        server.settle()
        assert server.ask()["ETag"] == '"2-newtag"'
        assert [list(kept) for kept in server.guests.heards] == [[WEB.key]]


WAIT = ("Metadata: true", 'If-None-Match: "2-webtag"', "Prefer: wait=30")
BAD_VERSION = PATH.partition("=")[0] + "=latest"
REFUSED = [
    (request(BAD_VERSION), 400),
    (request(BAD_VERSION, headers=WAIT), 400),
    (request(headers=()), 400),
    (request(headers=("Metadata: true", "X-Forwarded-For: 10.0.0.1")), 400),
    (request(headers=(*WAIT, "Via: 1.1 proxy")), 400),
    (request().replace(b"169.254.169.254", b"example.com"), 400),
    (request(f"{PATH}&{PATH.partition('?')[2]}"), 400),
    (request().replace(b"HTTP/1.1", b"HTTP/1.7"), 400),
    (request("/metadata/scheduledevent"), 404),
    (request("/metadata/latest/scheduledevents"), 400),
    (request(method="PUT"), 405),
    (request(method="HEAD"), 405),
    (request(headers=("Metadata: true", f"Cookie: {'x' * 20_000}")), 431),
    (request(BAD_VERSION, method="POST", body=APPROVAL), 400),
    (request(method="POST", headers=(), body=APPROVAL), 400),
    (request(method="POST", body=b"{}"), 400),
    (request(method="POST", body=b"x" * 70_000), 400),
    (request(method="POST", body=APPROVAL), 400),
]


@pytest.mark.parametrize("last_heard", [None, JUST_NOW])
def test_a_refused_request_counts_for_nothing(last_heard: datetime | None) -> None:
    with running(fleet=fleet(last_heard)) as server:
        server.guests.outcome = lambda _: errors.RefusedError("no live event of this VM")
        before = heard(server)
        for sent, status in REFUSED:
            with server.connect() as client:
                assert client.ask(sent, "HEAD" if sent.startswith(b"HEAD") else "GET").status == status
            assert heard(server) == before, sent[:200]
        server.guests.broken = errors.UnavailableError()
        assert server.ask(method="POST", body=APPROVAL).status == 503
        assert heard(server) == before
        server.stop()
        assert server.guests.heards == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_poll_or_an_approval_within_the_rate_keeps_a_scope_listening(method: str) -> None:
    sent = request(method=method, body=APPROVAL if method == "POST" else None)
    with running(fleet=fleet(JUST_NOW), options=Options(rate=0.001, burst=1)) as server, server.connect() as client:
        assert client.ask(sent).status == 200
        assert heard(server) > JUST_NOW.timestamp()
        server.call(setattr, server.published.scopes[WEB.key], "heard", JUST_NOW.timestamp())
        assert client.ask(sent).status == 429
        assert heard(server) == JUST_NOW.timestamp()


# When each VM last polled, as far as this process knows


def is_recent(server: Running, vm: str) -> bool:
    polled = server.published.polled(vm)
    return polled is not None and abs(datetime.now(UTC) - polled) < timedelta(seconds=10)


def test_a_poll_is_that_of_its_vm_alone(server: Running) -> None:
    assert server.published.polled("web-0") is None
    for target in (INSTANCE, "/metadata/versions"):
        assert server.ask(target).status == 200
        assert server.published.polled("web-0") is None
    assert server.ask().status == 200
    assert is_recent(server, "web-0")
    assert server.published.polled("web-1") is None
    assert server.published.polled("nobody") is None
    # One that is made anew has not polled.
    server.publisher.scopes([publication.of(WEB, vms=WEB_VMS[1:])])
    server.publisher.scopes([publication.of(WEB, vms=WEB_VMS)])
    server.settle()
    assert server.published.polled("web-0") is None


def test_who_approves_has_polled_perhaps_the_process_before(server: Running) -> None:
    assert server.ask(method="POST", body=APPROVAL).status == 200
    assert is_recent(server, "web-0")


def test_every_poll_counts_also_the_first_the_same_again_and_the_unchanged() -> None:
    with running(fleet=(publication.of(auto(WEB), vms=WEB_VMS),)) as server, server.connect() as client:
        etag = client.ask(request())["ETag"]
        assert is_recent(server, "web-0")
        for headers in (["Metadata: true"], ["Metadata: true"], ["Metadata: true", f"If-None-Match: {etag}"]):
            server.call(setattr, server.published.by_name["web-0"], "polled", 0.0)
            client.ask(request(headers=headers))
            assert is_recent(server, "web-0"), headers
