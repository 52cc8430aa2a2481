"""What a client sees of each fault, byte by byte where it matters; how faults are switched, and how long they last."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.emulator.faulty import SHORT, Faulty, MovingClock, faulty
from tests.metadata.running import APPROVAL, EVENT, Client, Reply, request, until

from forenotice.core import errors
from forenotice.core.operations import Status
from forenotice.emulator import faults
from forenotice.emulator.active_faults import NO_FAULTS, Faults
from forenotice.emulator.faults import On
from forenotice.wire import dates

TRUE = b'{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC'
LATER = replace(EVENT, status=Status.STARTED)
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def server() -> Iterator[Faulty]:
    with faulty() as server:
        yield server


@pytest.fixture
def waiting(server: Faulty) -> Iterator[Client]:
    """A guest for requests that are delayed."""
    with server.connect() as client:
        yield client


def poll(server: Faulty, *headers: str) -> Reply:
    return server.ask(headers=("Metadata: true", *headers))


def poll_after(server: Faulty, known: Reply) -> Reply:
    return poll(server, f"If-None-Match: {known['ETag']}")


def approve(server: Faulty) -> Reply:
    return server.ask(method="POST", body=APPROVAL)


def event(reply: Reply) -> dict[str, object]:
    (found,) = json.loads(reply.body)["Events"]
    assert isinstance(found, dict)
    return found


def incarnation(reply: Reply) -> object:
    return json.loads(reply.body)["DocumentIncarnation"]


@pytest.mark.parametrize("status", [500, 503, 410, 429])
def test_an_error_is_answered_and_nothing_is_carried_out(server: Faulty, status: int) -> None:
    server.switch_on(f"error-{status}", times=2)
    for reply in (poll(server), approve(server)):
        assert reply.status == status
        assert json.loads(reply.body).keys() == {"error"}
        assert reply.headers.get("retry-after") == {429: "1", 503: "5"}.get(status)
    assert not server.guests.approvals
    assert poll(server).status == 200


def test_errors_in_their_order_on_the_requests_they_are_meant_for(server: Faulty) -> None:
    server.switch_on("error-503", amount=timedelta(seconds=7.2), times=1)
    server.switch_on("error-410", times=1)
    first = poll(server)
    assert (first.status, first["Retry-After"], poll(server).status, poll(server).status) == (503, "8", 410, 200)
    server.switch_on("error-500", on="approvals")
    assert (poll(server).status, approve(server).status) == (200, 500)
    server.switch_on("error-500", on="polls")
    assert (poll(server).status, approve(server).status, server.ask("/metadata/versions").status) == (500, 200, 200)
    server.switch_on("error-500", on="all")
    assert server.ask("/metadata/versions").status == 500
    # The checks of the endpoint stay real.
    server.switch_on("empty-body")
    assert server.ask(headers=()).status == server.ask("/metadata/scheduledevents").status == 400
    assert server.ask("/elsewhere").status == 404


def test_a_reset_is_a_real_one(server: Faulty, waiting: Client) -> None:
    server.switch_on("reset", times=1)
    waiting.send(request(method="POST", body=APPROVAL))
    with pytest.raises(ConnectionResetError):
        waiting.socket.recv(1)
    assert not server.guests.approvals
    assert [(asked.status, asked.fault) for asked in server.requests] == [(None, "reset")]
    assert approve(server).status == 200


def test_an_empty_body_has_no_tag_and_no_304_hides_it(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("empty-body", times=1)
    reply = poll_after(server, true)
    assert (reply.status, reply.body, reply["Content-Length"]) == (200, b"", "0")
    assert "etag" not in reply.headers
    assert poll(server).body.startswith(TRUE)


def test_half_a_document_promises_the_whole(server: Faulty, waiting: Client) -> None:
    whole = poll(server)
    server.switch_on("half-document", times=1)
    waiting.send(request(headers=("Metadata: true", f"If-None-Match: {whole['ETag']}")))
    head, _, body = b"".join(iter(lambda: waiting.socket.recv(65536), b"")).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(whole.body)}".encode() in head
    assert b"Connection: close" not in head
    # As when it is really cut off: a client that remembers this tag is at fault.
    assert f"ETag: {whole['ETag']}".encode() in head
    assert body == whole.body[: len(whole.body) // 2]
    assert poll(server).body == whole.body


def test_latency_delays_every_response(server: Faulty) -> None:
    server.switch_on("latency", amount=SHORT, times=2)
    for ask in (poll, approve):
        before = monotonic()
        assert ask(server).status == 200
        assert monotonic() - before >= 0.05
    assert server.faults.active == ()


def test_polls_wait_together_for_a_slow_first_answer(server: Faulty, waiting: Client) -> None:
    server.switch_on("slow-first-answer", amount=SECOND)
    assert approve(server).status == 200
    before = monotonic()
    waiting.send(request())
    assert waiting.is_silent(0.05)
    with server.connect() as second:
        second.send(request())
        for client in (waiting, second):
            assert client.reply().body.startswith(TRUE)
    assert monotonic() - before >= 0.95
    until(lambda: server.faults.active == ())
    assert poll(server).status == 200


def test_a_frozen_vm_is_answered_when_that_is_over_or_the_clock_is_moved(server: Faulty, waiting: Client) -> None:
    before = monotonic()
    server.switch_on("frozen", amount=SECOND)
    waiting.send(request(method="POST", body=APPROVAL))
    assert waiting.is_silent(0.05)
    assert not server.guests.approvals
    assert waiting.reply().status == 200
    assert monotonic() - before >= 0.95
    assert server.guests.approvals
    until(lambda: server.faults.active == ())
    server.switch_on("frozen", lasts=5 * MINUTE)
    waiting.send(request())
    assert waiting.is_silent(0.03)
    server.advance(5 * MINUTE)
    assert waiting.reply().status == 200


def test_switching_off_ends_a_delay_and_a_request_delayed_twice_waits_for_both(server: Faulty, waiting: Client) -> None:
    for name in ("latency", None):
        server.switch_on("latency", amount=MINUTE, times=1)
        waiting.send(request())
        assert waiting.is_silent(0.03)
        server.faults.switch_off(name)
        assert waiting.reply().status == 200
    server.switch_on("latency", amount=MINUTE)
    server.switch_on("frozen", amount=2 * SHORT)
    before = monotonic()
    waiting.send(request())
    until(lambda: server.faults.delayed > 0)
    server.faults.switch_off("latency")
    assert waiting.reply().status == 200
    assert monotonic() - before >= 0.05


def test_a_skewed_clock_moves_date_and_not_before(server: Faulty) -> None:
    for amount in (5 * MINUTE, -timedelta(hours=1)):
        server.switch_on("clock-skew", amount=amount)
        reply = poll(server)
        assert dates.parse(str(event(reply)["NotBefore"])) == EVENT.not_before + amount
        for date in (reply["Date"], approve(server)["Date"], server.ask("/elsewhere")["Date"]):
            shown = dates.parse(date)
            assert shown is not None
            assert abs(shown - server.moving.now() - amount) < 2 * SECOND


def test_a_restarted_incarnation_counts_from_one(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("incarnation-restart")
    server.show(7, EVENT)
    server.show(8, LATER)
    server.settle()
    fell = poll_after(server, true)
    assert incarnation(fell) == 7
    assert poll_after(server, fell).status == 304
    server.switch_on("incarnation-restart")
    again = poll_after(server, fell)
    assert (again.status, incarnation(again), event(again)["EventStatus"]) == (200, 1, "Started")
    server.show(9)
    server.settle()
    assert json.loads(poll_after(server, again).body) == {"DocumentIncarnation": 2, "Events": []}


def test_a_stale_document_stays_for_a_while(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("stale-document")
    server.show(3, LATER)
    server.settle()
    stale = poll(server)
    assert (stale.body, stale["ETag"], poll_after(server, true).status) == (true.body, true["ETag"], 304)
    server.advance(49 * SECOND)
    assert poll(server).body == true.body
    server.advance(SECOND)
    assert incarnation(poll_after(server, true)) == 3


def test_other_key_orders_and_dates(server: Faulty) -> None:
    true = poll(server)
    server.switch_on("other-key-order", times=1)
    other = event(poll(server))
    assert other == event(true)
    assert list(other) == sorted(other) != list(event(true))
    server.switch_on("iso-dates", times=2)
    iso = poll_after(server, true)
    assert event(iso)["NotBefore"] == "2026-03-09T12:15:00Z"
    assert poll_after(server, iso).status == 304
    oldest = "/metadata/scheduledevents?api-version=2017-03-01"
    assert event(server.ask(oldest))["NotBefore"] == "2026-03-09T12:15:00Z"
    server.switch_on("rfc1123-dates")
    for found in (server.ask(oldest), poll(server)):
        assert event(found)["NotBefore"] == "Mon, 09 Mar 2026 12:15:00 GMT"


def test_faults_of_documents_combine(server: Faulty) -> None:
    for name in ("iso-dates", "other-key-order", "incarnation-restart", "stale-document"):
        server.switch_on(name)
    server.switch_on("clock-skew", amount=MINUTE)
    server.switch_on("latency", amount=SHORT)
    server.show(3, LATER)
    server.settle()
    before = monotonic()
    reply = poll(server)
    assert monotonic() - before >= 0.05
    assert (incarnation(reply), event(reply)["NotBefore"]) == (1, "2026-03-09T12:16:00Z")
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


def test_a_long_poll_ends_when_a_fault_begins(server: Faulty, waiting: Client) -> None:
    tag = poll(server)["ETag"]
    wait = request(headers=("Metadata: true", f"If-None-Match: {tag}", "Prefer: wait=60"))
    waiting.send(wait)
    assert waiting.is_silent(0.03)
    server.switch_on("iso-dates")
    assert waiting.reply().status == 304
    waiting.send(wait)
    assert waiting.reply().status == 200
    server.faults.switch_off()
    server.settle()
    waiting.send(wait.replace(tag.encode(), b'"2-webtag"'))
    assert waiting.is_silent(0.03)


# Switching


class Switched(Faults):
    def __init__(self, speed: float = 1) -> None:
        self.clock = MovingClock()
        super().__init__(self.clock, speed=speed)

    def on(self, name: str, **options: Any) -> None:
        self.switch_on(name, now=self.clock.now(), **options)

    @property
    def names(self) -> list[str]:
        return [active.fault.name for active in self.active]


@pytest.mark.parametrize("fault", faults.ALL, ids=lambda fault: fault.name)
def test_every_fault_can_be_switched(fault: faults.Fault) -> None:
    switched = Switched()
    switched.on(fault.name)
    (active,) = switched.active
    assert (active.on, active.amount) == (fault.on, fault.amount or timedelta(0))
    assert switched.apply(On.POLLS).names == fault.name
    switched.switch_off(fault.name)
    assert switched.apply(On.POLLS) is NO_FAULTS


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("latency", {"amount": 11 * MINUTE}, "give at most 10m"),
        ("latency", {"amount": -MINUTE}, "cannot be negative"),
        ("frozen", {"lasts": 60 * MINUTE}, "give at most 10m"),
        ("frozen", {"amount": timedelta(0)}, "frozen cannot last no time: give a duration such as 5s"),
        ("frozen", {"amount": MINUTE, "lasts": MINUTE}, "frozen lasts for its amount: give one of the two"),
        ("clock-skew", {"amount": -timedelta(days=367)}, "give at most 366d"),
        ("reset", {"amount": MINUTE}, "reset has no amount: leave it out"),
        ("reset", {"times": 0}, "give 1 or more"),
        ("reset", {"lasts": timedelta(0)}, "give a duration such as 30s"),
        ("reset", {"on": "puts"}, "requests are polls, approvals, all, not 'puts'"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, object], message: str) -> None:
    switched = Switched()
    with pytest.raises(errors.RefusedError, match=message):
        switched.on(name, **options)
    assert not switched.active


def test_times_are_counted_by_requests_that_meet_the_fault() -> None:
    switched = Switched()
    switched.on("error-500", times=2, on="approvals")
    switched.on("iso-dates", times=1)
    kinds = (On.ALL, On.APPROVALS, On.POLLS, On.APPROVALS, On.POLLS)
    assert [switched.apply(kind).names for kind in kinds] == [None, "error-500", "iso-dates", "error-500", None]
    assert switched.active == ()
    # A poll that gets an error sees no document.
    switched.on("iso-dates", times=1)
    switched.on("error-500", times=1)
    assert [switched.apply(On.POLLS).names for _ in range(2)] == ["error-500", "iso-dates"]


def test_a_fault_lasts_by_the_emulators_clock_and_begins_anew_when_it_is_switched_on_again() -> None:
    switched = Switched()
    switched.on("reset", lasts=MINUTE)
    switched.on("stale-document")
    switched.clock.moved += 50 * SECOND
    assert switched.names == ["reset"]
    switched.clock.moved += 10 * SECOND
    assert (switched.apply(On.POLLS).names, switched.names) == (None, [])
    switched.on("latency", times=1)
    switched.on("reset")
    switched.on("latency", amount=SHORT)
    assert (switched.names, switched.active[1].times) == (["reset", "latency"], None)
    switched.switch_off()
    assert switched.names == []


@pytest.mark.parametrize("speed", [0.5, 60])
def test_defaults_and_limits_follow_the_speed_and_given_amounts_do_not(speed: float) -> None:
    switched = Switched(speed=speed)
    switched.on("slow-first-answer")
    switched.on("latency", amount=SHORT)
    switched.on("stale-document")
    first, second, third = switched.active
    assert (first.amount, second.amount) == (2 * MINUTE / speed, SHORT)
    assert third.until is not None
    assert third.until - switched.clock.now() <= 50 * SECOND / speed
    switched.on("frozen", amount=10 * MINUTE / speed)
    with pytest.raises(errors.RefusedError, match="give at most 10m"):
        switched.on("latency", amount=11 * MINUTE / speed)


def test_amounts_are_read_with_their_sign() -> None:
    for text, span in (("2s", 2 * SECOND), ("-5m", -5 * MINUTE)):
        assert faults.Amount.read(text) == span
        with pytest.raises(ValueError, match="is not a duration"):
            faults.Amount.read(f"-{text}x")


def test_the_page_is_the_table() -> None:
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{fault.name}` | {fault.symptom} | {fault.evidence} |" for fault in faults.ALL]
    for_polls = ", ".join(f"`{fault.name}`" for fault in faults.ALL if fault.on is On.POLLS)
    assert f"are on `polls`: {for_polls}. The others are on `all`." in text
    assert not [fault.name for fault in faults.ALL if fault.on is On.APPROVALS]
