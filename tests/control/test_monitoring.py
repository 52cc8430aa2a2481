"""Health, metrics, the API's description, and the server itself."""

import asyncio
import signal
import socket
import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.acceptance.running import until
from tests.control.running import Control, serving

from forenotice.control import app
from forenotice.control.metrics import Metrics
from forenotice.control.server import ControlServer
from forenotice.core import errors
from forenotice.failures import WITHIN_SECONDS, Liveness
from forenotice.service.loops import Loop


def samples(control: Control) -> dict[tuple[str, ...], float]:
    said = control.ask("GET", "/metrics", token=None)
    assert said.status == 200
    assert said.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(said.body.decode())
        for sample in family.samples
    }


def test_a_thread_that_is_stuck_makes_it_unready_and_is_named(control: Control) -> None:
    seconds = [0.0]
    control.service.liveness = Liveness(clock=lambda: seconds[0])
    entered, released = threading.Event(), threading.Event()

    def look() -> timedelta:
        entered.set()
        released.wait(60)
        return timedelta(milliseconds=5)

    loop = Loop("tick", look, threading.Event(), control.service.liveness, control.service.runtime)
    loop.start()
    try:
        assert entered.wait(60)
        assert control.ask("GET", "/readyz", token=None).status == 200
        seconds[0] += WITHIN_SECONDS + 1
        said = control.ask("GET", "/readyz", token=None)
        assert said.status == 503
        assert "the thread 'tick' has made no progress for 46 s" in said.message
        released.set()
        until(lambda: control.ask("GET", "/readyz", token=None).status == 200)
    finally:
        released.set()
        loop.stop()
    assert control.service.liveness.seconds_since() == {}


def test_a_clock_that_is_behind_the_journal_is_told(control: Control) -> None:
    assert control.ask("GET", "/healthz", token=None).json == {"status": "alive"}
    assert control.ask("GET", "/readyz", token=None).json == {"status": "ready"}
    clock = control.service.clock
    clock.not_below(clock.now() + timedelta(minutes=1))
    ready = control.ask("GET", "/readyz", token=None)
    assert ready.status == 200
    assert ready.json["clock"].startswith("The clock is 60 s behind the journal")
    clock.not_below(clock.now() + timedelta(minutes=5))
    said = control.ask("GET", "/readyz", token=None)
    assert said.status == 503
    assert "the clock is 360 s behind the journal: correct it" in said.message
    assert "forenotice clock accept" in said.message


def test_metrics_tell_what_happened(fleet: Control) -> None:
    before = samples(fleet)
    assert before[("forenotice_polls_total",)] == 0
    fleet.guests.update(polls=7, rejected=2, connections_open=5, waiting=3)
    [restart] = fleet.post("/v1/operations", {"kind": "restart", "names": ["web-0"]})["operations"]
    fleet.post("/v1/operations", {"kind": "hardware-failure", "names": ["host-b"]})
    fleet.post(f"/v1/events/{restart['events'][0]['id']}/approve")
    fleet.metrics.tick_lag(0.3)
    after = samples(fleet)
    expected = {
        ("forenotice_store_up",): 1,
        ("forenotice_polls_total",): 7,
        ("forenotice_guest_requests_total", "rejected"): 2,
        ("forenotice_guest_connections",): 5,
        ("forenotice_guest_waits",): 3,
        ("forenotice_events", "Scheduled", "Reboot"): 1,
        ("forenotice_events", "Started", "Redeploy"): 2,
        ("forenotice_events", "Started", "Preempt"): 0,
        ("forenotice_approvals_total",): before[("forenotice_approvals_total",)] + 1,
        ("forenotice_approval_latency_seconds_count",): 1,
        ("forenotice_lead_time_seconds_count", "Redeploy"): 2,
        ("forenotice_lead_time_seconds_count", "Freeze"): 0,
        ("forenotice_tick_lag_seconds_sum",): pytest.approx(0.3),
    }
    assert {name: after[name] for name in expected} == expected
    assert after[("forenotice_document_changes_total",)] > before[("forenotice_document_changes_total",)]
    # No ids or names in labels.
    text = fleet.ask("GET", "/metrics", token=None).body.decode()
    for name in ("web-0", restart["id"], restart["events"][0]["id"], fleet.token):
        assert name not in text


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


def test_the_server_leaves_signals_alone_and_its_port_free() -> None:
    async def run() -> int:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        server = ControlServer(_nothing, "127.0.0.1", 0)
        await server.start()
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        with socket.create_connection(("127.0.0.1", server.port), timeout=60):
            pass
        await server.stop()
        return server.port

    port = asyncio.run(run())
    assert port > 0
    asyncio.run(ControlServer(_nothing, "127.0.0.1", 0).stop())
    with serving(ControlServer(_nothing, "::1", 0)) as other, socket.create_connection(("::1", other), timeout=60):
        pass
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            errors.RefusedError, match=rf"cannot listen on 127\.0\.0\.1:{port} \(address already in use\)"
        ):
            asyncio.run(ControlServer(_nothing, "127.0.0.1", port).start())
    with pytest.raises(errors.RefusedError, match=r"cannot listen on 192\.0\.2\.1:1"):
        asyncio.run(ControlServer(_nothing, "192.0.2.1", 1).start())


def test_a_request_under_way_is_answered_before_the_end() -> None:
    entered = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await asyncio.sleep(0.3)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> bytes:
        server = ControlServer(slow, "127.0.0.1", 0)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(entered.wait(), 60)
        await server.stop()
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
        return answer

    assert asyncio.run(run()).startswith(b"HTTP/1.1 204")


def test_requests_at_the_same_time_share_one_look(control: Control) -> None:
    release, looks = threading.Event(), []

    def live() -> dict[tuple[str, str], int]:
        looks.append(1)
        release.wait(20)
        return {}

    metrics = Metrics(events=live, guests=dict)
    with serving(ControlServer(app.Api(control.service, metrics), "127.0.0.1", 0)) as port, ExitStack() as open_:
        open_.callback(release.set)
        connections = [
            open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(60)
        ]
        for connection in connections:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        # More than there are threads, and one is left for this.
        other = Control(control.service, metrics, port, control.token)
        assert other.get("/v1/hosts")["items"] == []
        release.set()
        assert {connection.recv(12) for connection in connections} == {b"HTTP/1.1 200"}
    assert len(looks) < 5
