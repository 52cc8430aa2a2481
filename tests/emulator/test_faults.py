"""What a client sees of each fault, byte by byte where it matters."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from time import monotonic

import pytest
from tests.emulator.faulty import SHORT, Faulty, faulty
from tests.metadata.running import APPROVAL, EVENT, NOON, Reply, request, until

from forenotice.core.operations import Status
from forenotice.wire import dates

TRUE = b'{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC'
LATER = replace(EVENT, status=Status.STARTED)


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty() as server:
        yield server


def poll(server: Faulty, *headers: str) -> Reply:
    return server.ask(headers=("Metadata: true", *headers))


def approve(server: Faulty) -> Reply:
    return server.ask(method="POST", body=APPROVAL)


def event(reply: Reply) -> dict[str, object]:
    (found,) = json.loads(reply.body)["Events"]
    assert isinstance(found, dict)
    return found


def test_without_faults_nothing_is_different(server: Faulty) -> None:
    reply = poll(server)
    assert reply.status == 200
    assert reply.body.startswith(TRUE)
    assert poll(server, f"If-None-Match: {reply['ETag']}").status == 304
    assert abs((dates.parse(reply["Date"]) or NOON) - server.moving.now()) < timedelta(seconds=2)
    assert approve(server).status == 200
    assert server.guests.approvals


@pytest.mark.parametrize("status", [500, 503, 410, 429])
def test_an_error_is_answered_and_nothing_is_carried_out(server: Faulty, status: int) -> None:
    server.switch_on(f"error-{status}", times=2)
    for reply in (poll(server), approve(server)):
        assert reply.status == status
        assert json.loads(reply.body).keys() == {"error"}
        assert ("retry-after" in reply.headers) == (status in (429, 503))
    assert not server.guests.approvals
    assert poll(server).status == 200


def test_retry_after_is_the_amount_in_whole_seconds(server: Faulty) -> None:
    server.switch_on("error-503", amount=timedelta(seconds=7.2))
    assert poll(server)["Retry-After"] == "8"
    server.switch_on("error-429")
    server.faults.switch_off("error-503")
    assert poll(server)["Retry-After"] == "1"


def test_of_errors_the_oldest_comes_first(server: Faulty) -> None:
    server.switch_on("error-500", times=1)
    server.switch_on("error-410", times=1)
    assert [poll(server).status for _ in range(3)] == [500, 410, 200]


def test_the_gates_stay_real(server: Faulty) -> None:
    server.switch_on("error-500")
    server.switch_on("empty-body")
    assert server.ask(headers=()).status == 400
    assert server.ask("/metadata/scheduledevents").status == 400
    assert server.ask("/elsewhere").status == 404


def test_polls_and_approvals_meet_what_is_meant_for_them(server: Faulty) -> None:
    server.switch_on("error-500", on="approvals")
    assert poll(server).status == 200
    assert approve(server).status == 500
    server.switch_on("error-500", on="polls")
    assert poll(server).status == 500
    assert approve(server).status == 200
    assert server.ask("/metadata/versions").status == 200
    server.switch_on("error-500", on="all")
    assert server.ask("/metadata/versions").status == 500


def test_a_reset_is_a_real_one(server: Faulty) -> None:
    server.switch_on("reset", times=1)
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL))
        with pytest.raises(ConnectionResetError):
            client.socket.recv(1)
    assert not server.guests.approvals
    assert approve(server).status == 200


def test_an_empty_body_has_no_tag_and_no_304_hides_it(server: Faulty) -> None:
    tag = poll(server)["ETag"]
    server.switch_on("empty-body", times=1)
    reply = poll(server, f"If-None-Match: {tag}")
    assert (reply.status, reply.body, reply["Content-Length"]) == (200, b"", "0")
    assert "etag" not in reply.headers
    assert poll(server).body.startswith(TRUE)


def test_half_a_document_promises_the_whole(server: Faulty) -> None:
    whole = poll(server)
    server.switch_on("half-document", times=1)
    with server.connect() as client:
        client.send(request(headers=("Metadata: true", f"If-None-Match: {whole['ETag']}")))
        got = b"".join(iter(lambda: client.socket.recv(65536), b""))
    head, _, body = got.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(whole.body)}".encode() in head
    assert b"Connection: close" not in head
    # As when it is really cut off: whoever remembers this tag is at fault.
    assert f"ETag: {whole['ETag']}".encode() in head
    assert body == whole.body[: len(whole.body) // 2]
    assert poll(server).body == whole.body


def test_latency_holds_every_answer(server: Faulty) -> None:
    server.switch_on("latency", amount=SHORT, times=2)
    for ask in (poll, approve):
        before = monotonic()
        assert ask(server).status == 200
        assert monotonic() - before >= 0.05
    assert server.faults.active == ()


def test_polls_wait_together_for_a_slow_first_answer(server: Faulty) -> None:
    server.switch_on("slow-first-answer", amount=2 * SHORT)
    assert approve(server).status == 200
    before = monotonic()
    with server.connect() as first, server.connect() as second:
        first.send(request())
        assert first.is_silent(0.05)
        second.send(request())
        for client in (first, second):
            assert client.reply().body.startswith(TRUE)
        assert monotonic() - before >= 0.1
    until(lambda: server.faults.active == ())
    assert poll(server).status == 200


def test_a_frozen_vm_is_answered_when_that_is_over(server: Faulty) -> None:
    before = monotonic()
    server.switch_on("frozen", amount=2 * SHORT)
    with server.connect() as client:
        client.send(request(method="POST", body=APPROVAL))
        assert client.is_silent(0.05)
        assert not server.guests.approvals
        assert client.reply().status == 200
    assert monotonic() - before >= 0.09
    assert server.guests.approvals
    assert server.faults.active == ()


def test_a_frozen_vm_thaws_when_the_clock_is_moved(server: Faulty) -> None:
    server.switch_on("frozen", lasts=timedelta(minutes=5))
    with server.connect() as client:
        client.send(request())
        assert client.is_silent(0.03)
        server.advance(timedelta(minutes=5))
        assert client.reply().status == 200


@pytest.mark.parametrize("name", ["latency", None])
def test_switching_off_answers_who_is_held(server: Faulty, name: str | None) -> None:
    server.switch_on("latency", amount=timedelta(minutes=1), times=1)
    with server.connect() as client:
        client.send(request())
        assert client.is_silent(0.03)
        server.faults.switch_off(name)
        assert client.reply().status == 200


def test_who_is_held_twice_waits_for_both(server: Faulty) -> None:
    server.switch_on("latency", amount=timedelta(minutes=1))
    server.switch_on("frozen", amount=2 * SHORT)
    with server.connect() as client:
        before = monotonic()
        client.send(request())
        until(lambda: server.call(lambda: len(server.faults.interceptors)) == 1)
        server.faults.switch_off("latency")
        assert client.reply().status == 200
        assert monotonic() - before >= 0.05


def test_a_skewed_clock_moves_date_and_not_before(server: Faulty) -> None:
    for amount in (timedelta(minutes=5), -timedelta(hours=1)):
        server.switch_on("clock-skew", amount=amount)
        reply = poll(server)
        assert dates.parse(str(event(reply)["NotBefore"])) == EVENT.not_before + amount
        for date in (reply["Date"], approve(server)["Date"], server.ask("/elsewhere")["Date"]):
            shown = dates.parse(date)
            assert shown is not None
            assert abs(shown - server.moving.now() - amount) < timedelta(seconds=2)


def test_a_restarted_incarnation_counts_from_one(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("incarnation-restart")
    server.show(7, EVENT)
    server.show(8, LATER)
    server.settle()
    fell = poll(server, f"If-None-Match: {true['ETag']}")
    assert json.loads(fell.body)["DocumentIncarnation"] == 7
    assert poll(server, f"If-None-Match: {fell['ETag']}").status == 304
    server.switch_on("incarnation-restart")
    again = poll(server, f"If-None-Match: {fell['ETag']}")
    assert (again.status, json.loads(again.body)["DocumentIncarnation"]) == (200, 1)
    assert event(again)["EventStatus"] == "Started"
    server.show(9)
    server.settle()
    assert json.loads(poll(server, f"If-None-Match: {again['ETag']}").body) == {"DocumentIncarnation": 2, "Events": []}


def test_a_stale_document_stays_for_a_while(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("stale-document")
    server.show(3, LATER)
    server.settle()
    stale = poll(server)
    assert (stale.body, stale["ETag"]) == (true.body, true["ETag"])
    assert poll(server, f"If-None-Match: {true['ETag']}").status == 304
    server.advance(timedelta(seconds=49))
    assert poll(server).body == true.body
    server.advance(timedelta(seconds=1))
    assert json.loads(poll(server, f"If-None-Match: {true['ETag']}").body)["DocumentIncarnation"] == 3


def test_keys_in_another_order_are_the_same_keys(server: Faulty) -> None:
    true = event(poll(server))
    server.switch_on("other-key-order")
    other = event(poll(server))
    assert other == true
    assert list(other) == sorted(true) != list(true)


def test_iso_dates_are_seen_in_spite_of_a_known_tag(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("iso-dates")
    reply = poll(server, f"If-None-Match: {true['ETag']}")
    assert event(reply)["NotBefore"] == "2026-03-09T12:15:00Z"
    assert poll(server, f"If-None-Match: {reply['ETag']}").status == 304


def test_the_first_version_is_seen_with_the_dates_of_the_real_service(server: Faulty) -> None:
    def first() -> object:
        return event(server.ask("/metadata/scheduledevents?api-version=2017-03-01"))["NotBefore"]

    assert first() == "2026-03-09T12:15:00Z"
    server.switch_on("rfc1123-dates")
    assert first() == event(poll(server))["NotBefore"] == "Mon, 09 Mar 2026 12:15:00 GMT"


def test_faults_of_documents_combine(server: Faulty) -> None:
    for name in ("iso-dates", "other-key-order", "incarnation-restart", "stale-document"):
        server.switch_on(name)
    server.switch_on("clock-skew", amount=timedelta(minutes=1))
    server.switch_on("latency", amount=SHORT)
    server.show(3, LATER)
    server.settle()
    before = monotonic()
    reply = poll(server)
    assert monotonic() - before >= 0.05
    assert event(reply)["NotBefore"] == "2026-03-09T12:16:00Z"
    assert json.loads(reply.body)["DocumentIncarnation"] == 1
    assert next(iter(event(reply))) == "Description"
    assert server.requests[-1].fault == (
        "latency+stale-document+incarnation-restart+clock-skew+other-key-order+iso-dates"
    )


def test_faults_of_documents_leave_the_rest_alone(server: Faulty) -> None:
    for name in ("empty-body", "half-document", "iso-dates"):
        server.switch_on(name, on="all")
    assert approve(server).status == 200
    assert server.ask("/metadata/versions").status == 200
    assert server.ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text").text == "web-0"


def test_a_long_poll_ends_when_a_fault_begins(server: Faulty) -> None:
    tag = poll(server)["ETag"]
    wait = request(headers=("Metadata: true", f"If-None-Match: {tag}", "Prefer: wait=60"))
    with server.connect() as client:
        client.send(wait)
        assert client.is_silent(0.03)
        server.switch_on("iso-dates")
        assert client.reply().status == 304
        client.send(wait)
        assert client.reply().status == 200
        server.faults.switch_off()
        server.settle()
        client.send(wait.replace(tag.encode(), b'"2-webtag"'))
        assert client.is_silent(0.03)
