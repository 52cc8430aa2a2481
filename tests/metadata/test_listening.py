"""PROTOCOL.md: listening, from a scope's first GET to what is kept of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.metadata.running import DB, DB_ADDRESS, DB_VM, EVENT, WEB, WEB_VMS, Running, auto, request, running, until

from forenotice.core import errors
from forenotice.core.timing import Timing
from forenotice.metadata.options import Limits, Options
from forenotice.service.publishing import Members

LONG_AGO = datetime.now(UTC) - timedelta(hours=25)
JUST_NOW = datetime.now(UTC) - timedelta(hours=1)
FAST = Timing(speed=60)


def fleet(last_heard: datetime | None = None) -> tuple[Members, ...]:
    return (
        Members(key=WEB.key, scope=auto(WEB, last_heard), vms=WEB_VMS, events=(EVENT,)),
        Members(key=DB.key, scope=DB, vms=(DB_VM,)),
    )


@pytest.mark.parametrize("last_heard", [None, LONG_AGO])
def test_a_first_poll_is_answered_after_the_service_knows(last_heard: datetime | None) -> None:
    with running(fleet=fleet(last_heard)) as server:
        server.guests.gate.clear()
        with server.connect() as client, server.connect("127.1.0.22") as other:
            client.send(request())
            assert client.is_silent()
            other.send(request())
            assert other.is_silent()
            assert server.ask(source=DB_ADDRESS).status == 200
            server.guests.gate.set()
            assert [client.reply().status, other.reply().status] == [200, 200]
        (heard,) = server.guests.heards
        assert list(heard) == [WEB.key]
        assert abs(heard[WEB.key] - datetime.now(UTC)) < timedelta(seconds=10)
        assert server.ask().status == 200
        assert len(server.guests.heards) == 1


def test_a_scope_that_listens_is_answered_at_once() -> None:
    with running(fleet=fleet(JUST_NOW)) as server:
        server.guests.gate.clear()
        assert server.ask().status == 200
        server.guests.gate.set()


@pytest.mark.parametrize("target", ["/metadata/versions", "/metadata/instance?api-version=2021-02-01"])
def test_other_requests_do_not_start_listening(target: str) -> None:
    with running(fleet=fleet()) as server:
        assert server.ask(target).status == 200
        server.stop()
        assert server.guests.heards == []


def test_the_store_being_away_does_not_keep_a_first_poll_waiting() -> None:
    with running(fleet=fleet()) as server:
        server.guests.broken = errors.UnavailableError()
        assert server.ask().status == 200
        assert server.ask().status == 200
        server.guests.broken = None
        # The service is told as soon as it can be.
        until(lambda: bool(server.guests.heards))
        assert list(server.guests.heards[0]) == [WEB.key]


def test_a_store_that_hangs_does_not_keep_a_first_poll_waiting() -> None:
    with running(fleet=fleet(), options=Options(limits=Limits(patience_seconds=0.2))) as server:
        server.guests.gate.clear()
        assert server.ask().status == 200
        assert server.ask().status == 200
        server.guests.gate.set()
        until(lambda: bool(server.guests.heards))


def test_the_first_answer_can_be_delayed() -> None:
    with running(fleet=fleet(), options=Options(first_answer_delay=0.4)) as server, server.connect() as client:
        client.send(request())
        until(lambda: bool(server.guests.heards))
        assert client.is_silent()
        assert client.reply().status == 200
        client.send(request())
        assert client.reply().status == 200


def test_a_client_that_leaves_during_its_first_poll_harms_nobody() -> None:
    with running(fleet=fleet()) as server:
        server.guests.gate.clear()
        with server.connect() as client:
            client.send(request())
            assert client.is_silent()
        server.guests.gate.set()
        until(lambda: server.server.counters.open == 0)
        assert len(server.guests.heards) == 1
        assert server.ask().status == 200


def test_a_vm_that_is_removed_during_its_first_poll_is_not_found() -> None:
    with running(fleet=fleet()) as server, server.connect() as client:
        server.guests.gate.clear()
        client.send(request())
        assert client.is_silent()
        server.publisher.members([Members(key=WEB.key, scope=None)])
        server.settle()
        server.guests.gate.set()
        assert client.reply().status == 404


def test_what_was_heard_is_kept_now_and_then() -> None:
    with running(fleet=fleet(JUST_NOW - timedelta(minutes=50)), timing=FAST) as server:
        assert server.ask().status == 200
        server.guests.heards.clear()
        until(lambda: server.ask().status == 200 and len(server.guests.heards) >= 2)
        first, second = server.guests.heards[:2]
        assert second[WEB.key] - first[WEB.key] >= timedelta(seconds=0.9)


def test_what_was_heard_is_kept_at_the_end(server: Running) -> None:
    assert server.ask().status == 200
    server.stop()
    (heard,) = server.guests.heards
    assert list(heard) == [WEB.key]


def test_nothing_new_is_not_written_again() -> None:
    with running(fleet=fleet(JUST_NOW)) as server:
        server.stop()
        assert server.guests.heards == []


def test_a_failed_write_is_tried_again() -> None:
    with running(fleet=fleet(datetime.now(UTC)), timing=FAST) as server:
        server.guests.broken = errors.UnavailableError()
        assert server.ask().status == 200
        server.call(server.board.notices[WEB.key].__setattr__, "saved", 0.0)
        server.call(server.server.refresh)
        until(lambda: server.ask().status == 200 and server.call(_flush_failed, server))
        server.guests.broken = None
        until(lambda: bool(server.guests.heards))


def _flush_failed(server: Running) -> bool:
    notice = server.board.notices[WEB.key]
    return notice.heard > notice.saved


def test_a_scope_made_anew_under_its_name_has_not_been_heard() -> None:
    with running(fleet=fleet(JUST_NOW)) as server:
        assert server.ask().status == 200
        server.publisher.members([Members(key=WEB.key, scope=replace(auto(WEB), tag="newtag"), vms=WEB_VMS)])
        server.settle()
        assert server.ask()["ETag"] == '"2-newtag"'
        assert [list(heard) for heard in server.guests.heards] == [[WEB.key]]
