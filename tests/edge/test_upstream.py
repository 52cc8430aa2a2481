"""What guests of an edge send is in JetStream before they are told so; and who polled is told when it matters."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.edge.running import Bus, RunningEdge, bus_at, running
from tests.edge.states import state
from tests.metadata.running import DB, DB_ADDRESS, DB_VM, EVENT, EVENT_ID, WEB, WEB_VMS, auto
from tests.nats_servers import NatsServers, nats_servers

from forenotice import publication
from forenotice.cluster.messages import Approval, EndedEvent, Heard, HostState, Question, Reply
from forenotice.edge.daemon import Pace
from forenotice.metadata.options import Limits

UNKNOWN = "00000000-0000-4000-8000-00000000ABCD"
OURS = Approval(vm="web-0", scope=WEB.key, event_ids=(EVENT_ID,))


def of(*event_ids: str) -> bytes:
    return json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]}).encode()


@contextmanager
def showing(bus: Bus, servers: NatsServers, shown: HostState, data: Path, **more: Any) -> Iterator[RunningEdge]:
    bus.publish(shown)
    with running(shown.host, servers.urls, data, **more) as edge:
        until(lambda: edge.readiness == 200 and edge.metric("connected"))
        yield edge


# Approvals


def test_an_approval_is_in_the_stream_when_it_is_answered(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    with showing(bus, servers, state(host=host), tmp_path) as edge:
        said = edge.approve()
        assert (said.status, said.body) == (200, b"")
        assert bus.approvals(host) == [OURS]
        # Also once more, by another of the scope, in other letters: the service knows that it is the same.
        assert edge.approve(of(EVENT_ID.lower()), source="127.1.0.22").status == 200
        one, other = bus.stored(host)
        assert isinstance(other.message, Approval)
        assert other.message.vm == "web-1"
        assert [each.upper() for each in other.message.event_ids] == [EVENT_ID]
        assert len(one.id) == len(other.id) == 36
        assert one.id != other.id
        assert bus.questions[host] == []


def test_a_malformed_one_is_refused_by_the_edge(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    with showing(bus, servers, state(host=host), tmp_path) as edge:
        for body in (b"", b"{}", b'{"StartRequests":[]}', of("no guid"), of(EVENT_ID, "x")):
            assert edge.approve(body).status == 400, body
        assert bus.stored(host) == []


def test_what_has_just_ended_can_be_approved(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    ended = EndedEvent(id=UNKNOWN, scope=WEB.key, ended_at=datetime.now(UTC) - timedelta(minutes=59))
    with showing(bus, servers, state(host=host, ended=(ended,)), tmp_path) as edge:
        assert edge.approve(of(UNKNOWN.lower(), EVENT_ID)).status == 200
        assert bus.questions[host] == []
        # An hour after its end, only the service can know it.
        bus.answers[host] = lambda _: Reply(refusal="there is no such event")
        edge.clock.not_below(edge.clock.now() + timedelta(minutes=2))
        assert edge.approve(of(UNKNOWN)).status == 400
        assert len(bus.approvals(host)) == 1


def test_the_service_is_asked_about_an_event_that_the_edge_does_not_know(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    with showing(bus, servers, state(host=host), tmp_path) as edge:
        bus.answers[host] = lambda _: Reply(refusal="there is no event X")
        said = edge.approve(of(EVENT_ID, UNKNOWN))
        assert (said.status, said.json) == (400, {"error": "Bad request. There is no event X"})
        assert bus.questions[host].pop() == Question(vm="web-0", scope=WEB.key, event_ids=(EVENT_ID, UNKNOWN))
        assert bus.approvals(host) == []
        bus.answers[host] = lambda _: Reply()
        assert edge.approve(of(UNKNOWN)).status == 200
        assert [each.event_ids for each in bus.approvals(host)] == [(UNKNOWN,)]


def test_an_event_of_another_scope_is_as_unknown_as_one_that_does_not_exist(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.answers[host] = lambda asked: Reply(refusal=f"not of {asked.scope}")
    with showing(bus, servers, state(host=host), tmp_path) as edge:
        answers = [edge.approve(of(event), source=DB_ADDRESS) for event in (EVENT_ID, UNKNOWN)]
        assert {(said.status, said.body) for said in answers} == {(400, answers[0].body)}
        assert {asked.scope for asked in bus.questions[host]} == {DB.key}
        assert bus.approvals(host) == []


def test_without_an_answer_it_is_to_try_again_and_no_more_wait_than_may(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    limits = Limits(approvals=1)
    with showing(bus, servers, state(host=host), tmp_path, limits=limits) as edge, ThreadPoolExecutor() as pool:
        unanswered = pool.submit(edge.approve, of(UNKNOWN))
        until(lambda: bus.questions[host])
        crowded = edge.approve()
        assert not unanswered.done()
        for said in (crowded, unanswered.result()):
            assert (said.status, said.headers["retry-after"]) == (503, "5")
        assert bus.stored(host) == []
        assert edge.approve().status == 200


def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path, host: str) -> None:
    with nats_servers(tmp_path) as servers, bus_at(servers.urls) as bus:
        bus.reply = b"rubbish"
        with showing(bus, servers, state(host=host), tmp_path) as edge:
            assert edge.approve(of(UNKNOWN)).status == 503
            assert bus.approvals(host) == []


def test_what_the_stream_does_not_take_is_not_answered_with_200(tmp_path: Path, host: str) -> None:
    with nats_servers(tmp_path) as servers, bus_at(servers.urls) as bus:
        bus.limit_what_is_sent(2)
        with showing(bus, servers, state(host=host), tmp_path, limits=Limits(patience_seconds=0.5)) as edge:
            assert [edge.approve().status for _ in range(4)] == [200, 200, 503, 503]
            assert len(bus.approvals(host)) == 2
            bus.limit_what_is_sent(5)
            assert edge.approve().status == 200
            assert len(bus.approvals(host)) == 3


def test_it_tries_again_for_a_while_with_the_same_id(tmp_path: Path, host: str) -> None:
    with (
        nats_servers(tmp_path) as servers,
        bus_at(servers.urls) as bus,
        showing(bus, servers, state(host=host), tmp_path, limits=Limits(patience_seconds=1)) as edge,
        ThreadPoolExecutor() as pool,
    ):
        bus.limit_what_is_sent(None)
        ids = bus.watch_what_is_sent(host)
        approval = pool.submit(edge.approve)
        until(lambda: ids)
        bus.limit_what_is_sent(100)
        assert approval.result().status == 200
        assert len(ids) > 1
        assert {each.id for each in bus.stored(host)} == set(ids)
        assert bus.approvals(host) == [OURS]


# Who polled

AUTO = (publication.of(auto(WEB), vms=WEB_VMS, events=(EVENT,)), publication.of(auto(DB), vms=(DB_VM,)))


def later(edge: RunningEdge, **passed: float) -> datetime:
    edge.clock.not_below(edge.clock.now() + timedelta(**passed))
    edge.refresh()
    return edge.clock.now()


def told(bus: Bus, edge: RunningEdge, number: int) -> list[Heard]:
    """All that there is, once it is so much and the edge knows that it is stored."""
    until(lambda: len(bus.heard(edge.host)) >= number)
    heard = bus.heard(edge.host)
    for scope, at in heard[-1].scopes.items():
        known = edge.edge.published.scopes[scope]
        until(partial(lambda known, at: known.saved > at.timestamp() - 0.001, known, at))
    assert len(heard) == number
    return heard


def scopes(heard: list[Heard]) -> list[set[str]]:
    return [set(each.scopes) for each in heard]


def test_a_first_poll_is_told_before_it_is_answered_and_later_ones_when_the_scope_falls_quiet(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    with showing(bus, servers, state(host=host, scopes=AUTO), tmp_path) as edge:
        before = edge.clock.now()
        assert edge.incarnation() == 2
        (heard,) = told(bus, edge, 1)
        assert before <= heard.scopes.pop(WEB.key) <= edge.clock.now()
        assert heard.scopes == {}
        polled = before
        for minutes in (2, 5, 9):
            polled = later(edge, minutes=minutes)
            assert edge.incarnation("127.1.0.22") == 2
        later(edge, minutes=9)
        assert edge.incarnation(DB_ADDRESS) == 1
        assert scopes(told(bus, edge, 2)) == [{WEB.key}, {DB.key}]
        # Ten minutes after its last poll, not after its first.
        later(edge, minutes=1.1)
        heard = told(bus, edge, 3)[2]
        assert set(heard.scopes) == {WEB.key}
        assert abs(heard.scopes[WEB.key] - polled) < timedelta(seconds=2)
        # Once only, as long as nobody polls.
        later(edge, hours=1)
        edge.incarnation(DB_ADDRESS)
        later(edge, hours=1)
        assert scopes(told(bus, edge, 4))[3:] == [{DB.key}]


def test_a_scope_that_is_never_quiet_is_told_every_six_hours(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    with showing(bus, servers, state(host=host, scopes=AUTO), tmp_path) as edge:
        start = saved = edge.clock.now()
        edge.incarnation()
        known = told(bus, edge, 1)
        while edge.clock.now() < start + timedelta(hours=13):
            polled = later(edge, minutes=8)
            edge.incarnation()
            later(edge, minutes=1.5)
            if polled - saved > timedelta(hours=6):
                known = told(bus, edge, len(known) + 1)
                saved = polled
        hours = [(each.scopes[WEB.key] - start) / timedelta(hours=1) for each in told(bus, edge, 3)]
        assert hours == [pytest.approx(expected, abs=0.4) for expected in (0, 6, 12)]


def test_a_faster_service_is_told_sooner(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    with showing(bus, servers, state(host=host, scopes=AUTO, speed=60), tmp_path) as edge:
        edge.incarnation()
        later(edge, seconds=9)
        edge.incarnation()
        later(edge, seconds=9)
        assert len(told(bus, edge, 1)) == 1
        later(edge, seconds=2)
        told(bus, edge, 2)


def test_at_the_end_everything_is_told(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    with showing(bus, servers, state(host=host, scopes=AUTO), tmp_path) as edge:
        edge.incarnation()
        edge.incarnation(DB_ADDRESS)
        polled = later(edge, minutes=1)
        edge.incarnation()
        told(bus, edge, 2)
    (heard,) = bus.heard(host)[2:]
    assert set(heard.scopes) == {WEB.key}
    assert abs(heard.scopes[WEB.key] - polled) < timedelta(seconds=2)


def test_who_polled_while_nats_was_away_is_told_when_it_is_back(tmp_path: Path, host: str) -> None:
    with (
        nats_servers(tmp_path) as servers,
        bus_at(servers.urls) as bus,
        showing(bus, servers, state(host=host, scopes=AUTO), tmp_path) as edge,
    ):
        servers[0].kill()
        until(lambda: not edge.metric("connected"))
        assert edge.incarnation() == 2
        # It has been tried in vain, and would not be for a while.
        for _ in range(6):
            later(edge, seconds=40)
        servers.start()
        until(lambda: edge.metric("connected"))
        assert scopes(told(bus, edge, 1)) == [{WEB.key}]


def test_an_edge_that_cannot_tell_who_polled_does_not_beat(tmp_path: Path, host: str) -> None:
    """Else its guests would count as silent after a day, although they poll: the service hears the edge."""
    often = Pace(read=3600, beat=0.01, started=0.01)
    limits = Limits(patience_seconds=0.5)
    with (
        nats_servers(tmp_path) as servers,
        bus_at(servers.urls) as bus,
        showing(bus, servers, state(host=host, scopes=AUTO), tmp_path, pace=often, limits=limits) as edge,
    ):

        def beats() -> bool:
            """Within half a second, in which there is time for dozens."""
            before, end = len(bus.beats[host]), time.monotonic() + 0.5
            while len(bus.beats[host]) == before and time.monotonic() < end:
                assert edge.metric("connected")
            return len(bus.beats[host]) > before

        bus.limit_what_is_sent(None)
        edge.incarnation()
        later(edge, minutes=9)
        edge.incarnation()
        assert beats()
        later(edge, minutes=2)
        until(lambda: not beats(), 10)
        bus.limit_what_is_sent(100)
        later(edge, minutes=2)
        edge.incarnation()
        until(beats)
        assert set(bus.heard(host)[0].scopes) == {WEB.key}
