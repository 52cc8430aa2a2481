"""`forenotice cluster check` finds what is wrong with NATS, and is content with what is right."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DiscardPolicy, RePublish, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError
from tests.cluster.users import NOW, centre, connected
from tests.nats_servers import LOOK_SECONDS, NatsServers, nats_servers

from forenotice.clock import Clock, SystemClock
from forenotice.cluster import check, monitoring, streams
from forenotice.cluster.check import Checked, Finding
from forenotice.cluster.connection import Servers
from forenotice.cluster.keys import Keys
from forenotice.cluster.monitoring import Seen, SeenServers
from forenotice.cluster.subjects import CONSUMER, DOCS, UP
from forenotice.data_directory import write_secret

SECONDS = 30.0


class Cluster:
    """Three servers, with the streams that the service makes."""

    def __init__(self, servers: NatsServers, keys: Keys) -> None:
        self.servers = servers
        self.keys = keys
        self.known = Servers(urls=servers.urls, credentials=keys.centre_credentials)

    def check(self, *, system: bool = True, clock: Clock | None = None) -> Checked:
        return run(self.known, self.keys.system_credentials if system else None, clock)

    async def ensure(self) -> None:
        """As the service does: servers that have just met may not know of each other's disks."""
        deadline = time.monotonic() + SECONDS
        async with centre(self.servers.urls, self.keys) as client:
            while True:
                try:
                    return await streams.ensure(client.jetstream(), streams.REPLICAS)
                except APIError:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(LOOK_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    keys = Keys.make(root / "keys", NOW)
    with nats_servers(root, 3, keys=keys) as servers:
        made = Cluster(servers, keys)
        asyncio.run(made.ensure())
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """One, for everybody."""
    with nats_servers(tmp_path_factory.mktemp("single")) as servers:
        yield servers


@asynccontextmanager
async def anybody(servers: NatsServers) -> AsyncIterator[Client]:
    client = Client()
    try:
        await client.connect(list(servers.urls))
        yield client
    finally:
        await client.close()


def run(servers: Servers, system: Path | None = None, clock: Clock | None = None) -> Checked:
    return asyncio.run(check.check(servers, system, clock or SystemClock()))


def wrong(checked: Checked) -> dict[str, Finding]:
    assert checked.ok == all(finding.ok is not False for finding in checked.findings)
    for finding in checked.findings:
        assert bool(finding.remedy) == (finding.ok is not True)
        assert finding.sentence.endswith(".")
        assert not finding.remedy.endswith(".")
    return {finding.id: finding for finding in checked.findings if finding.ok is False}


def test_nothing_is_wrong_with_three_servers_as_they_should_be(cluster: Cluster) -> None:
    checked = cluster.check()
    assert wrong(checked) == {}
    assert all(finding.ok for finding in checked.findings)
    ids = [finding.id for finding in checked.findings]
    assert len(set(ids)) == len(ids)
    assert {"NB_UP.replicas", "NB_DOCS.republish", "NB_UP.followers", "waiting", "servers.sync", "servers.clock"} < set(
        ids
    )


def test_without_credentials_of_the_system_account_the_servers_are_not_judged(cluster: Cluster) -> None:
    checked = cluster.check(system=False)
    assert wrong(checked) == {}
    (unknown,) = (finding for finding in checked.findings if finding.ok is None)
    assert unknown.id == "servers"
    assert "sync_interval: always" in unknown.sentence
    assert "--system-credentials" in unknown.remedy


def test_the_command_says_so_in_words_and_by_its_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    where = [word for url in cluster.known.urls for word in ("--nats", url)]
    where += ["--nats-credentials", str(cluster.keys.centre_credentials)]

    def command(*more: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "forenotice", "cluster", "check", *more]
        return subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)

    done = command(*where)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Stream NB_UP exists; its leader is n" in done.stdout
    assert "NB_UP.replicas" not in done.stdout
    assert " right, 1 unknown.\n" in done.stdout
    done = command(*where, "--system-credentials", str(cluster.keys.system_credentials), "--json")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert said["ok"] is True
    assert {"id": "servers.sync", "ok": True, "sentence": "All sync each write.", "remedy": ""} in said["findings"]

    done = command("--nats", "nats://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout.startswith("wrong   connection  No NATS server could be reached at nats://127.0.0.1:1")
    assert "To do: start the servers" in done.stdout

    done = command()
    assert (done.returncode, done.stdout) == (2, "")
    assert "no NATS server is given" in done.stderr
    done = command(*where, "--system-credentials", str(tmp_path / "missing"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing cannot be read" in done.stderr


def test_servers_that_are_down(cluster: Cluster) -> None:
    first, second, last = cluster.servers
    first.kill()
    try:
        deadline = time.monotonic() + SECONDS
        while not {"NB_UP.followers", "NB_DOCS.followers"} <= (found := wrong(cluster.check())).keys():
            assert "servers" in found
            assert time.monotonic() < deadline, found
        assert found["servers"].sentence == "2 of 3 servers answer: n1, n2."
        assert found["NB_UP.followers"].sentence.startswith("NB_UP: n0 ")
        # What is left is not a majority.
        second.kill()
        # If it leads the streams, it answers for a moment longer.
        while (found := wrong(cluster.check())).keys() != {"jetstream", "servers"}:
            assert time.monotonic() < deadline, found
        assert found["jetstream"].sentence == "JetStream does not answer the service: no answer in time."
        assert found["servers"].sentence == f"1 of 3 servers answer: {last.name}."
    finally:
        for victim in (first, second):
            victim.kill()
            victim.start()
        cluster.servers.wait_until_ready()
    deadline = time.monotonic() + SECONDS
    while found := wrong(cluster.check()):
        assert time.monotonic() < deadline, found


def test_credentials_that_are_not_the_services(cluster: Cluster, tmp_path: Path) -> None:
    enrolled = tmp_path / "host-a.creds"
    write_secret(enrolled, cluster.keys.enrol("host-a", NOW).credentials)
    found = wrong(run(replace(cluster.known, credentials=enrolled), enrolled))
    assert found.keys() == {"jetstream", "servers"}
    assert "permissions violation" in found["jetstream"].sentence.lower()
    unknown = Keys.make(tmp_path / "other", NOW).centre_credentials
    found = wrong(run(replace(cluster.known, credentials=unknown)))
    assert found.keys() == {"connection"}
    assert "authorization violation" in found["connection"].sentence.lower()


def test_credentials_that_are_not_the_system_accounts(cluster: Cluster) -> None:
    found = wrong(run(cluster.known, cluster.keys.centre_credentials))
    assert found.keys() == {"servers"}
    assert found["servers"].sentence.startswith("The servers could not be checked with ")
    assert "system.creds" in found["servers"].remedy


def test_no_server(cluster: Cluster) -> None:
    found = wrong(run(Servers(urls=("nats://127.0.0.1:1",)), cluster.keys.system_credentials))
    assert found.keys() == {"connection", "servers"}


def test_no_streams_and_no_consumer(server: NatsServers) -> None:
    known = Servers(urls=server.urls)
    found = wrong(run(known))
    assert found.keys() == {DOCS, UP}
    assert "forenotice serve" in found[UP].remedy

    async def make() -> None:
        async with anybody(server) as client:
            for wanted in streams.configurations(1):
                await client.jetstream().add_stream(wanted)

    async def remove() -> None:
        async with anybody(server) as client:
            for name in (DOCS, UP):
                await client.jetstream().delete_stream(name)

    asyncio.run(make())
    found = wrong(run(known))
    asyncio.run(remove())
    # One server is not enough, and its streams have no followers.
    assert found.keys() == {f"{DOCS}.replicas", f"{UP}.replicas", f"{UP}.{CONSUMER}"}
    assert found[f"{UP}.replicas"].sentence.startswith("NB_UP: replicas: 1, and should be 3: ")
    assert found[f"{UP}.replicas"].remedy == "nats stream edit NB_UP --replicas=3"


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "subjects": (UP, {"subjects": ["nb.up.*.approve"]}),
    "storage": (DOCS, {"storage": StorageType.MEMORY}),
    "retention": (UP, {"retention": RetentionPolicy.LIMITS}),
    "discard": (UP, {"discard": DiscardPolicy.OLD}),
    "per_subject": (DOCS, {"max_msgs_per_subject": 2}),
    "max_messages": (DOCS, {"max_msgs": 1000}),
    "max_age": (UP, {"max_age": 3600.0}),
    "direct_get": (DOCS, {"allow_direct": False}),
    "republish": (DOCS, {"republish": RePublish(src="nb.docs.*", dest="nb.other.{{wildcard(1)}}")}),
    "rollup": (UP, {"allow_rollup_hdrs": True}),
}


@pytest.mark.parametrize("aspect", WRONG)
def test_a_stream_that_is_configured_otherwise(server: NatsServers, aspect: str) -> None:
    """And what the remedy says can be changed can be; the rest cannot."""
    name, changes = WRONG[aspect]
    (right,) = (each for each in streams.configurations(1) if each.name == name)

    async def make() -> tuple[Checked, bool]:
        async with anybody(server) as client:
            js = client.jetstream()
            await js.add_stream(right.evolve(**changes))
            try:
                checked = await check.check(Servers(urls=server.urls), None, SystemClock())
                try:
                    await js.update_stream(right)
                except APIError:
                    return checked, False
                return checked, True
            finally:
                await js.delete_stream(name)

    checked, can_be_changed = asyncio.run(make())
    found = wrong(checked)
    other = DOCS if name == UP else UP
    assert found.keys() - {f"{UP}.{CONSUMER}"} == {other, f"{name}.replicas", f"{name}.{aspect}"}
    finding = found[f"{name}.{aspect}"]
    assert "and should be" in finding.sentence
    assert finding.remedy.startswith(f"nats stream edit {name} --") == can_be_changed
    assert can_be_changed or f"nats stream rm {name}" in finding.remedy


def test_a_consumer_that_gives_up(server: NatsServers) -> None:
    async def make() -> Checked:
        async with anybody(server) as client:
            js = client.jetstream()
            for wanted in streams.configurations(1):
                await js.add_stream(wanted)
            config: ConsumerConfig = streams.consumer().evolve(max_deliver=3, filter_subject="nb.up.*.approve")
            await js.add_consumer(UP, config)
            try:
                return await check.check(Servers(urls=server.urls), None, SystemClock())
            finally:
                for name in (DOCS, UP):
                    await js.delete_stream(name)

    found = wrong(asyncio.run(make()))
    assert {f"{UP}.{CONSUMER}.deliveries", f"{UP}.{CONSUMER}.filter"} < found.keys()
    assert "nats consumer rm NB_UP centre" in found[f"{UP}.{CONSUMER}.filter"].remedy


def test_servers_that_sync_now_and_then_and_take_small_messages_only(tmp_path: Path) -> None:
    keys = Keys.make(tmp_path / "keys", NOW)
    with nats_servers(tmp_path, keys=keys, sync="2m", configuration="max_payload: 64KB") as servers:
        known = Servers(urls=servers.urls, credentials=keys.centre_credentials)
        found = wrong(run(known, keys.system_credentials))
    assert found["servers.sync"].sentence == "n0 does not sync each write."
    assert "sync_interval: always" in found["servers.sync"].remedy
    assert found["servers.max_payload"].sentence == "n0 takes messages of up to 65536 bytes only."
    assert "max_payload" in found
    assert found["servers"].sentence == "1 of 3 servers answer: n0."


def test_servers_without_jetstream(tmp_path: Path) -> None:
    keys = Keys.make(tmp_path / "keys", NOW)
    with nats_servers(tmp_path, keys=keys, configuration="jetstream: disabled") as servers:
        known = Servers(urls=servers.urls, credentials=keys.centre_credentials)
        found = wrong(run(known, keys.system_credentials))
    assert found["servers.jetstream"].sentence == "n0 has no JetStream."
    assert "jetstream" in found


class Shifted(SystemClock):
    def now(self) -> datetime:
        return super().now() - timedelta(minutes=5)


def test_clocks_that_differ(cluster: Cluster) -> None:
    found = wrong(cluster.check(clock=Shifted()))
    assert found.keys() == {"clock", "servers.clock"}
    assert "n0's is 300." in found["servers.clock"].sentence
    assert "s ahead" in found["servers.clock"].sentence


# What no server can be brought to in a test: seen on real ones, and then changed.


@pytest.fixture(scope="module")
def seen(cluster: Cluster) -> tuple[Seen, SeenServers]:
    async def look() -> tuple[Seen, SeenServers]:
        async with centre(cluster.servers.urls, cluster.keys) as client:
            found = await monitoring.look(client, SystemClock())
        async with connected(cluster.servers.urls, cluster.keys.system_credentials, "_INBOX") as client:
            return found, await monitoring.look_at_servers(client, SystemClock())

    return asyncio.run(look())


def judged(seen: Seen) -> dict[str, Finding]:
    return wrong(Checked(ok=all(each.ok for each in check.judge(seen)), findings=list(check.judge(seen))))


def with_up(seen: Seen, **changes: Any) -> Seen:
    up = seen.streams[UP]
    assert up is not None
    return replace(seen, streams={**seen.streams, UP: replace(up, **changes)})


def test_followers_and_leaders_in_trouble(seen: tuple[Seen, SeenServers]) -> None:
    up = seen[0].streams[UP]
    assert up is not None
    assert up.cluster is not None
    first, second = up.cluster.replicas
    slow = replace(up.cluster, replicas=(replace(first, current=False, lag=7), replace(second, offline=True)))
    found = judged(with_up(seen[0], cluster=slow))
    assert found.keys() == {f"{UP}.followers"}
    assert found[f"{UP}.followers"].sentence == f"NB_UP: {first.name} is behind by 7 messages, {second.name} is down."
    found = judged(with_up(seen[0], cluster=replace(up.cluster, leader="")))
    assert found[f"{UP}.leader"].sentence == "NB_UP has no leader."


def test_approvals_that_nobody_takes_in(seen: tuple[Seen, SeenServers]) -> None:
    up = seen[0].streams[UP]
    assert up is not None
    waiting = replace(up.state, messages=3, bytes=1000, first_ts=up.ts - timedelta(seconds=59))
    assert judged(with_up(seen[0], state=waiting)) == {}
    found = judged(with_up(seen[0], state=replace(waiting, first_ts=up.ts - timedelta(seconds=61))))
    assert found["waiting"].sentence == "3 messages (1000 bytes) wait for the service, the oldest for 61 s."
    assert judged(with_up(seen[0], state=replace(waiting, bytes=streams.UP_BYTES))).keys() == {"waiting"}


def test_space_that_is_used_up(seen: tuple[Seen, SeenServers]) -> None:
    account = seen[0].account
    full = replace(account, storage=950, limits=replace(account.limits, max_storage=1000))
    assert judged(replace(seen[0], account=full))["account"].sentence == "The account uses 950 of 1000 bytes."
    tiered = replace(account, tiers={"R3": full})
    assert judged(replace(seen[0], account=tiered)).keys() == {"account"}
    assert judged(replace(seen[0], account=replace(full, storage=900))) == {}

    first, *others = seen[1].servers
    stats = replace(first.jetstream.stats, storage=9_500_000_000)
    servers = replace(seen[1], servers=[replace(first, jetstream=replace(first.jetstream, stats=stats)), *others])
    (found,) = (each for each in check.judge_servers(servers) if not each.ok)
    assert (found.id, found.sentence) == ("servers.space", "n0 uses 9500000000 of 10000000000 bytes.")


def test_versions_that_are_too_old(seen: tuple[Seen, SeenServers]) -> None:
    assert judged(replace(seen[0], version="2.9.25")).keys() == {"version"}
    assert judged(replace(seen[0], version="2.12.5")).keys() == {"version"}
    assert not judged(replace(seen[0], version="2.12.6"))
    first, *others = seen[1].servers
    servers = replace(seen[1], servers=[replace(first, version="2.11.3-RC.1"), *others])
    (found,) = (each for each in check.judge_servers(servers) if not each.ok)
    assert (found.id, found.sentence) == ("servers.version", "n0 has version 2.11.3-RC.1.")


def test_every_aspect_of_a_stream_is_tried() -> None:
    assert {aspect.id for aspects in check.STREAMS.values() for aspect in aspects} == {*WRONG, "replicas"}
    assert all(StreamConfig.__dataclass_fields__.keys() >= changes.keys() for _, changes in WRONG.values())
