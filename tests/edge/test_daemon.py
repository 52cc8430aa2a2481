"""An edge at a real NATS: which states it shows, how old it says they are, and what it tells the service of itself."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.acceptance.running import Said, ask, until
from tests.edge.running import NOWHERE, SELDOM, Bus, RunningEdge, bus_at, running
from tests.edge.states import state
from tests.metadata.running import APPROVAL, DB_ADDRESS
from tests.nats_servers import NatsServers, nats_servers

from forenotice import __version__
from forenotice.cluster import messages
from forenotice.cluster.messages import NOTHING, Beat, Fence
from forenotice.core import errors
from forenotice.core.operations import Status
from forenotice.edge.state_file import StateFile
from forenotice.settings import table


def shows(edge: RunningEdge, incarnation: int) -> None:
    until(lambda: edge.incarnation() == incarnation)


def long_poll(edge: RunningEdge, source: str = "127.1.0.21") -> Said:
    headers = {"Metadata": "true", "Prefer": "wait=50", "If-None-Match": edge.ask(source=source).headers["etag"]}
    return edge.ask(headers=headers, source=source)


# States


def test_a_state_reaches_a_guest_that_waits_as_soon_as_it_is_published(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(0, 1, host=host))
    with running(host, servers.urls, tmp_path) as edge, ThreadPoolExecutor() as pool:
        shows(edge, 2)
        waiting = pool.submit(long_poll, edge)
        until(lambda: edge.edge.server.counters.waiting)
        bus.publish(state(0, 2, host=host, incarnation=3))
        said = waiting.result()
        assert (said.status, said.json["DocumentIncarnation"]) == (200, 3)
        assert edge.metric("states_applied_total") == 2


def test_what_it_was_not_told_of_is_found_when_it_reads_anew(host: str, tmp_path: Path) -> None:
    with nats_servers(tmp_path) as servers, bus_at(servers.urls) as bus:
        bus.stop_telling()
        with running(host, servers.urls, tmp_path, pace=replace(SELDOM, retry=0.02, read=0.05)) as edge:
            # Soon, while it has none at all.
            until(lambda: edge.metric("connected"))
            for incarnation in (1, 2, 3):
                bus.publish(state(0, incarnation, host=host, incarnation=incarnation))
                shows(edge, incarnation)


def test_by_whatever_path_a_state_comes_an_older_one_is_ignored(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(1, 5, host=host, incarnation=5))
    with running(host, servers.urls, tmp_path, pace=replace(SELDOM, read=0.02)) as edge:
        shows(edge, 5)
        # What it reads anew all the time is older than this, and is never shown again.
        bus.send(host, messages.encode_state(state(1, 9, host=host, incarnation=9)))
        shows(edge, 9)
        for epoch, position in ((1, 8), (0, 99), (1, 9)):
            bus.send(host, messages.encode_state(state(epoch, position, host=host, incarnation=99)))
        # A greater epoch counts, also with a lower position.
        bus.send(host, messages.encode_state(state(2, 1, host=host, incarnation=10)))
        shows(edge, 10)
        assert (edge.metric("states_applied_total"), edge.metric("states_refused_total")) == (3, 0)
        assert (edge.metric("epoch"), edge.metric("position")) == (2, 1)


def test_a_malformed_state_is_told_to_the_service_and_guests_see_the_last_good_one(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(0, 1, host=host, incarnation=4))
    with running(host, servers.urls, tmp_path) as edge:
        shows(edge, 4)
        bus.put(host, b"rubbish")
        until(lambda: bus.beats[host][-1].refused)
        beat = bus.beats[host][-1]
        assert (beat.refused, beat.fence) == (1, Fence(0, 1))
        assert "not compressed" in beat.refusal
        assert (edge.metric("states_refused_total"), edge.readiness, edge.incarnation()) == (1, 200, 4)
        bus.publish(state(0, 2, host=host, incarnation=5))
        shows(edge, 5)


# Without NATS, and without a state


def test_it_serves_from_disk_without_nats(host: str, tmp_path: Path) -> None:
    (tmp_path / "edge").mkdir()
    StateFile(tmp_path / "edge").write(messages.encode_state(state(0, 1, host=host, incarnation=6)))
    with running(host, (NOWHERE,), tmp_path) as edge:
        assert (edge.incarnation(), edge.readiness, edge.metric("connected")) == (6, 200, 0)
        refused = edge.approve()
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")


def test_until_it_has_a_state_everybody_is_told_to_try_again(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    with running(host, servers.urls, tmp_path) as edge:
        for method, body in (("GET", None), ("POST", APPROVAL)):
            said = edge.ask(method=method, body=body)
            assert (said.status, said.headers["retry-after"]) == (503, "5")
        assert edge.readiness == 503
        assert edge.metric("position") == -1
        until(lambda: edge.metric("connected"))
        bus.publish(state(0, 1, host=host))
        shows(edge, 2)
        assert edge.readiness == 200
        # Now whoever is not in the state is nobody.
        assert edge.ask(source="127.9.9.9").status == 404


# Its age


def test_a_guest_is_told_how_old_the_knowledge_is_once_it_is_too_old(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(0, 1, host=host))
    with running(host, servers.urls, tmp_path, pace=replace(SELDOM, age=0.01), stale_after="90s") as edge:
        shows(edge, 2)

        def age(**headers: str) -> int | None:
            edge.refresh()
            found = edge.ask(headers={"Metadata": "true", **headers}).headers.get("age")
            return None if found is None else int(found)

        assert age() is None
        edge.clock.not_below(edge.clock.now() + timedelta(seconds=80))
        until(lambda: edge.metric("state_age_seconds") >= 80)
        assert age() is None
        edge.clock.not_below(edge.clock.now() + timedelta(minutes=5))
        assert 380 <= (until(age) or 0) < 440
        etag = edge.ask().headers["etag"]
        assert until(lambda: age(**{"If-None-Match": etag}))
        assert edge.ask("/metadata/nowhere").headers["age"]
        # The same state once more: it is still the newest.
        bus.publish(state(0, 1, host=host))
        until(lambda: age() is None)
        assert edge.metric("state_age_seconds") < 60


# Beats


def test_it_beats_when_it_is_connected_and_whenever_it_has_applied_a_state(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    beats = bus.beats[host]
    with running(host, servers.urls, tmp_path) as edge:
        until(lambda: beats)
        assert beats[0] == Beat(version=__version__)
        assert beats[0].fence == NOTHING
        published = state(3, 7, host=host)
        bus.publish(published)
        until(lambda: beats[-1].fence == Fence(3, 7))
        assert beats[-1].at == published.at
        assert beats[-1].polls == {}
        assert len(beats) == 2
        shows(edge, 2)


@pytest.mark.parametrize(("pace", "has_state"), [("beat", True), ("started", False)])
def test_otherwise_it_beats_now_and_then_and_often_without_a_state(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path, pace: str, has_state: bool
) -> None:
    if has_state:
        bus.publish(state(0, 1, host=host))
    with running(host, servers.urls, tmp_path, pace=replace(SELDOM, **{pace: 0.01})):
        until(lambda: len(bus.beats[host]) > 5)


def test_while_a_vm_is_acted_on_it_tells_often_when_that_polled_and_its_long_polls_are_short(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(0, 1, host=host))
    beats = bus.beats[host]
    pace = replace(SELDOM, started=0.01, long_polls=0.02)
    with running(host, servers.urls, tmp_path, pace=pace) as edge, ThreadPoolExecutor() as pool:
        shows(edge, 2)
        others = pool.submit(long_poll, edge, "127.1.0.22")
        until(lambda: edge.edge.server.counters.waiting)
        # Before it had a state it beat often, too.
        until(lambda: bool(beats) and beats[-1].fence == Fence(0, 1))
        at_rest = len(beats)
        shows(edge, 2)
        assert len(beats) - at_rest <= 1
        bus.publish(state(0, 2, host=host, incarnation=3, status=Status.STARTED))
        until(lambda: len(beats) > 10 and set(beats[-1].polls) == {"web-0"})
        assert others.result().status == 200
        # Of the VM that is acted on; those of others in its scope last.
        others = pool.submit(long_poll, edge, "127.1.0.22")
        until(lambda: edge.edge.server.counters.waiting)
        assert long_poll(edge).status == 304
        polled = beats[-1].polls["web-0"]
        edge.clock.not_below(edge.clock.now() + timedelta(minutes=1))
        edge.refresh()
        edge.incarnation()
        until(lambda: beats[-1].polls["web-0"] > polled)
        assert not others.done()
        bus.publish(state(0, 3, host=host, incarnation=4))
        assert others.result().status == 200
        until(lambda: beats[-1].fence == Fence(0, 3))
        assert beats[-1].polls == {}


# What it says of itself


def test_metrics_and_readiness(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    bus.publish(state(4, 2, host=host))
    with running(host, servers.urls, tmp_path) as edge:
        shows(edge, 2)
        edge.ask(source=DB_ADDRESS)
        said = ask(edge.metrics_at, "GET", "/metrics")
        assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = said.body.decode().splitlines()
        assert f'forenotice_edge_build_info{{version="{__version__}"}} 1' in lines
        names = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
        assert names == {line.split()[2] for line in lines if line.startswith("# HELP ")}
        assert names == {line.partition(" ")[0].partition("{")[0] for line in lines if not line.startswith("#")}
        assert [edge.metric(name) for name in ("connected", "epoch", "position", "guests")] == [1, 4, 2, 3]
        assert edge.metric("polls_total") >= 2
        assert ask(edge.metrics_at, "GET", "/readyz").body == b"ready\n"
        for method, target in (("GET", "/"), ("POST", "/metrics"), ("GET", "/metadata/versions")):
            assert ask(edge.metrics_at, method, target).status == 404
        place, _, port = edge.metrics_at.rpartition(":")
        # What is not HTTP, too long or not finished does no harm.
        for sent in (b"\r\n\r\n", b"GET /metrics " + b"x" * 10_000, b"GET"):
            with socket.create_connection((place, int(port)), 10) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
        assert edge.readiness == 200


def test_it_needs_a_place_for_its_metrics(servers: NatsServers, host: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.ConflictError, match="choose another with --metrics"):
            RunningEdge(host, servers.urls, tmp_path, edge_metrics=place)


def test_the_time_until_it_says_how_old_it_is_can_be_set() -> None:
    (found,) = [setting for setting in table.EDGE if setting.name == "stale_after"]
    assert found.default == "5m"
