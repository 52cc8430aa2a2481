"""The program `forenotice edge run`: killed, stopped, without a disk, without NATS, with other credentials."""

import asyncio
import random
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.acceptance.running import PROGRAMS, environment, run, until
from tests.edge.running import NOWHERE, Asking, Bus, EdgeProcess, bus_at, process
from tests.edge.states import state
from tests.edge.test_upstream import AUTO
from tests.metadata.running import DB, DB_ADDRESS, WEB
from tests.nats_servers import NatsServers, nats_servers

from forenotice.cluster.connection import Servers
from forenotice.cluster.keys import Keys, push
from forenotice.edge import daemon

ROUNDS = 4


def long_poll(edge: Asking) -> int:
    headers = {"Metadata": "true", "Prefer": "wait=50", "If-None-Match": edge.ask().headers["etag"]}
    return edge.ask(headers=headers).status


def shown(edge: Asking) -> int:
    """The incarnation that a guest is told; 0: it is not answered."""
    try:
        return edge.incarnation()
    except (OSError, HTTPException):
        return 0


# Its disk


def test_however_it_is_killed_it_never_shows_an_older_document_than_before(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    """Started again without NATS, it has only its disk."""
    connected, alone = (EdgeProcess(tmp_path, host, urls) for urls in (servers.urls, (NOWHERE,)))
    published, moments, ending = 0, random.Random(17), threading.Event()

    def publish() -> None:
        nonlocal published
        while not ending.is_set():
            published += 1
            bus.publish(state(0, published, host=host, incarnation=published))

    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(publish)
        for _ in range(ROUNDS):
            connected.start()
            seen = until(lambda: shown(connected))
            killing = pool.submit(threading.Timer(moments.uniform(0, 0.1), connected.kill).run)
            while not killing.done():
                seen = max(seen, shown(connected))
            killing.result()
            alone.start()
            assert shown(alone) >= seen
            alone.kill()
        ending.set()
        publishing.result()
    assert published > ROUNDS


def test_with_a_full_disk_it_shows_the_newest_and_after_a_restart_nothing_older(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(0, 1, host=host, incarnation=4))
    edge = EdgeProcess(tmp_path, host, servers.urls).start()
    try:
        until(lambda: edge.incarnation() == 4)
        assert edge.process is not None
        resource.prlimit(edge.process.pid, resource.RLIMIT_FSIZE, (0, 0))
        bus.publish(state(0, 2, host=host, incarnation=5))
        until(lambda: edge.incarnation() == 5)
        assert (edge.metric("states_unsaved_total"), edge.readiness) == (1, 200)
        bus.publish(state(0, 3, host=host, incarnation=6))
        until(lambda: edge.incarnation() == 6)
        assert edge.metric("states_unsaved_total") == 2
    finally:
        edge.kill()
    with process(tmp_path, host, (NOWHERE,)) as alone:
        assert alone.ask().status == 503
    with process(tmp_path, host, servers.urls) as again:
        until(lambda: again.incarnation() == 6)
    with process(tmp_path, host, (NOWHERE,)) as alone:
        assert alone.incarnation() == 6


def test_two_edges_do_not_share_a_directory(servers: NatsServers, host: str, tmp_path: Path) -> None:
    with process(tmp_path, host, servers.urls) as edge:
        command = (str(PROGRAMS / "forenotice"), "edge", "run", "--host", host, "--nats", NOWHERE, "--data")
        second = run(*command, str(edge.data), env=environment(tmp_path))
    assert (second.returncode, second.stdout) == (1, "")
    assert second.stderr.startswith("forenotice: another `forenotice edge run` uses the data directory")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "an edge needs edge_host: give it"),
        (("--host", "h"), "an edge needs nats: give it"),
        (("--host", "a b", "--nats", NOWHERE), "'a b'"),
        (("--host", "h", "--nats", NOWHERE, "--stale-after", "soon"), "'soon'"),
    ],
)
def test_what_is_missing_is_said(flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert daemon.main(flags) == daemon.USAGE
    said = capsys.readouterr().err
    assert said.startswith("forenotice: ")
    assert told in said


# Its end


def test_when_it_is_told_to_stop_guests_get_their_answers_and_the_service_hears_who_polled(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path
) -> None:
    bus.publish(state(0, 1, host=host, scopes=AUTO, speed=0.01))
    with process(tmp_path, host, servers.urls) as edge, ThreadPoolExecutor() as pool:
        until(lambda: edge.incarnation() == 2)
        assert edge.incarnation(DB_ADDRESS) == 1
        assert [set(each.scopes) for each in bus.heard(host)] == [{WEB.key}, {DB.key}]
        # Times are told to the second.
        told = edge.ask(source=DB_ADDRESS).headers["date"]
        until(lambda: edge.ask(source=DB_ADDRESS).headers["date"] != told)
        waiting = pool.submit(long_poll, edge)
        until(lambda: 'kind="waiting"} 1' in edge.metrics)
        before = datetime.now(UTC) - timedelta(seconds=3)
        assert edge.terminate() == 0
        assert waiting.result() == 304
    (last,) = bus.heard(host)[2:]
    assert {scope for scope, at in last.scopes.items() if at > before} == {WEB.key, DB.key}


# NATS


def test_while_nats_is_away_polls_go_on_and_nothing_is_kept_for_later(tmp_path: Path, host: str) -> None:
    with nats_servers(tmp_path) as servers, bus_at(servers.urls) as bus, ThreadPoolExecutor() as pool:
        bus.publish(state(0, 1, host=host))
        with process(tmp_path, host, servers.urls) as edge:
            until(lambda: edge.incarnation() == 2)
            assert edge.approve().status == 200
            waiting = pool.submit(long_poll, edge)
            servers[0].kill()
            refused = [edge.approve() for _ in range(5)]
            assert {(said.status, said.headers["retry-after"]) for said in refused} == {(503, "5")}
            assert (edge.incarnation(), edge.readiness, edge.metric("connected")) == (2, 200, 0)
            beats = len(bus.beats[host])
            servers.start()
            until(lambda: edge.metric("connected"))
            until(lambda: len(bus.beats[host]) > beats)
            # What was refused is nowhere.
            assert len(bus.approvals(host)) == 1
            assert not waiting.done()
            bus.publish(state(0, 2, host=host, incarnation=3))
            assert waiting.result() == 200
            assert edge.incarnation() == 3
            assert edge.approve().status == 200
            assert len(bus.approvals(host)) == 2


# Credentials


def test_refused_credentials_do_not_keep_it_from_serving_and_renewed_ones_are_used(tmp_path: Path, host: str) -> None:
    now = datetime.now(UTC)
    keys = Keys.make(tmp_path / "keys", now)
    file = tmp_path / "edge.creds"
    file.touch(0o600)
    file.write_text(keys.enrol(host, now).credentials)
    with (
        nats_servers(tmp_path, keys=keys) as servers,
        bus_at(servers.urls, keys.centre_credentials) as bus,
        process(tmp_path, host, servers.urls, "--nats-credentials", str(file)) as edge,
    ):
        bus.publish(state(0, 1, host=host))
        until(lambda: edge.incarnation() == 2)
        assert edge.approve().status == 200
        renewed = keys.enrol_anew(host, now).credentials
        system = Servers(urls=servers.urls, credentials=keys.system_credentials)
        asyncio.run(push(keys.revoke(host, now, except_newest=True), system))
        refused, *_ = until(lambda: edge.logged("nats.failed"))
        assert "authorization violation" in refused["reason"].lower()
        assert edge.metric("connected") == 0
        # Cut off while they are written, and without a JWT.
        for wrong in (renewed[:-80], renewed[renewed.index("-----BEGIN USER") :]):
            failures = len(edge.logged("nats.failed"))
            file.write_text(wrong)
            until(partial(lambda failures: len(edge.logged("nats.failed")) > failures, failures))
            assert (edge.incarnation(), edge.approve().status) == (2, 503)
        bus.publish(state(0, 2, host=host, incarnation=3))
        file.write_text(renewed)
        until(lambda: edge.incarnation() == 3)
        assert edge.approve().status == 200
