"""The directory of keys: what it holds, and that servers know, refuse and forget users by it."""

import asyncio
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.errors import Error
from tests.cluster.users import NOW, Connection, account, centre, credentials, edge, signing_key, user
from tests.nats_servers import NatsServers, nats_servers

from forenotice.cluster import jwt, permissions, streams
from forenotice.cluster.connection import Servers, connect
from forenotice.cluster.keys import Keys, push
from forenotice.cluster.subjects import ALL_BEATS, ALL_QUESTIONS, DOCS, Subjects
from forenotice.core import errors

HOST, OTHER = "host-a", "host-b"
SECONDS = 10.0


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.make(tmp_path / "keys", NOW)


@pytest.fixture
def servers(tmp_path: Path, keys: Keys) -> Iterator[NatsServers]:
    with nats_servers(tmp_path, keys=keys) as made:
        yield made


def system(keys: Keys, urls: Sequence[str]) -> Servers:
    return Servers(urls=tuple(urls), credentials=keys.system_credentials)


def written(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


async def until(holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def is_known(urls: Sequence[str], credentials: Path, host: str = HOST) -> bool:
    try:
        async with edge(urls, credentials, host) as client:
            return not await client.complaint()
    except Error as error:
        if "authorization violation" not in str(error).lower():
            raise
        return False


# Files


def test_only_their_owner_can_read_the_keys(keys: Keys) -> None:
    keys.enrol(HOST, NOW)
    keys.revoke(HOST, NOW)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (keys.directory, *keys.directory.rglob("*"))}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in found.items()), found
    assert [path.name for path in keys.directory.parent.iterdir()] == ["keys"]


@pytest.mark.parametrize("existing", ["keys", "a file in it", "a file in its place"])
def test_nothing_is_overwritten(tmp_path: Path, existing: str) -> None:
    place = tmp_path / "keys"
    match existing:
        case "keys":
            Keys.make(place, NOW)
        case "a file in it":
            place.mkdir()
            (place / "notes").write_text("mine")
        case _:
            place.write_text("mine")
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(errors.ConflictError, match="already exists"):
        Keys.make(place, NOW)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o755)
    made = Keys.make(tmp_path / "keys", NOW)
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700


def test_the_servers_configuration_holds_no_secret(keys: Keys) -> None:
    text = (keys.directory / "servers.conf").read_text()
    secrets = [path.read_text().strip() for path in keys.directory.glob("*.seed")]
    assert len(secrets) == 4
    assert not [secret for secret in secrets if secret in text]
    assert "SEED" not in text


def test_keys_that_others_could_read_are_not_used(keys: Keys) -> None:
    (keys.directory / "edges.seed").chmod(0o644)
    with pytest.raises(errors.RefusedError, match="can be read by other users"):
        keys.enrol(HOST, NOW)


def test_a_directory_without_keys_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="has no keys"):
        Keys(tmp_path)


# Who is enrolled


def test_a_host_is_enrolled_once_until_it_is_revoked(keys: Keys) -> None:
    first = keys.enrol(HOST, NOW)
    with pytest.raises(errors.ConflictError, match="edge rotate host-a"):
        keys.enrol(HOST, NOW)
    assert keys.enrol_anew(HOST, NOW).key != first.key
    keys.revoke(HOST, NOW, except_newest=True)
    with pytest.raises(errors.ConflictError, match="edge rotate host-a"):
        keys.enrol(HOST, NOW)
    keys.revoke(HOST, NOW)
    keys.enrol(HOST, NOW)


def test_of_several_at_once_one_enrols_a_host(keys: Keys) -> None:
    def attempt(_: int) -> bool:
        try:
            keys.enrol(HOST, NOW)
        except errors.ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(attempt, range(8))) == 1


@pytest.mark.parametrize("work", [Keys.enrol_anew, Keys.revoke])
def test_who_is_not_enrolled_has_nothing_to_renew_or_revoke(keys: Keys, work: Callable[..., object]) -> None:
    with pytest.raises(errors.NotFoundError, match="has no credentials"):
        work(keys, HOST, NOW)


@pytest.mark.parametrize("name", ["", "a b", "../edges", "*", ">", "a" * 65, "häst"])
@pytest.mark.parametrize("work", [Keys.enrol, Keys.enrol_anew, Keys.revoke])
def test_only_names_of_hosts_are_taken(keys: Keys, work: Callable[..., object], name: str) -> None:
    with pytest.raises(errors.RefusedError, match="not a host name"):
        work(keys, name, NOW)


def test_hosts_whose_names_are_alike_have_credentials_of_their_own(keys: Keys) -> None:
    names = ("a.b", "a_b", "a-b", "a-2Eb", "A.B")
    assert len({keys.enrol(name, NOW).key for name in names}) == len(names)
    keys.revoke("a.b", NOW)
    with pytest.raises(errors.ConflictError):
        keys.enrol("a_b", NOW)


# Revocation


def test_a_revocation_ends_the_connection_and_the_next_is_refused(
    keys: Keys, servers: NatsServers, tmp_path: Path
) -> None:
    stolen = written(tmp_path / "stolen", keys.enrol(HOST, NOW).credentials)
    others = written(tmp_path / "others", keys.enrol(OTHER, NOW).credentials)

    async def revoke() -> None:
        async with edge(servers.urls, stolen, HOST) as client, edge(servers.urls, others, OTHER) as bystander:
            assert not await client.complaint()
            assert await push(keys.revoke(HOST, NOW), system(keys, servers.urls)) == ["n0"]
            await until(lambda: client.is_closed)
            assert "revoked" in str(client.last_error)
            assert not await is_known(servers.urls, stolen)
            assert not await bystander.complaint()
            assert await is_known(servers.urls, others, OTHER)

    asyncio.run(revoke())
    servers[0].stop()
    servers[0].start()
    servers.wait_until_ready()
    assert not asyncio.run(is_known(servers.urls, stolen))
    assert asyncio.run(is_known(servers.urls, others, OTHER))


def test_several_revocations_within_a_second_all_count(keys: Keys, servers: NatsServers, tmp_path: Path) -> None:
    hosts = [f"host-{number}" for number in range(5)]
    files = {host: written(tmp_path / host, keys.enrol(host, NOW).credentials) for host in hosts}

    async def revoke_all() -> None:
        for host in hosts:
            assert await is_known(servers.urls, files[host], host)
            await push(keys.revoke(host, NOW), system(keys, servers.urls))
            assert not await is_known(servers.urls, files[host], host)

    asyncio.run(revoke_all())


def test_a_clock_that_was_set_back_does_not_matter(keys: Keys, servers: NatsServers, tmp_path: Path) -> None:
    stolen = written(tmp_path / "stolen", keys.enrol(HOST, NOW + timedelta(days=9)).credentials)

    async def revoke() -> None:
        await push(keys.revoke(HOST, NOW - timedelta(days=9)), system(keys, servers.urls))
        assert not await is_known(servers.urls, stolen)

    asyncio.run(revoke())


def test_the_servers_configuration_gets_a_revocation_that_it_lacks(keys: Keys) -> None:
    """The disk was full, or the power failed, after the revocation was kept and before the configuration was."""
    file = keys.directory / "servers.conf"
    before = file.read_text()
    for host in (HOST, OTHER):
        keys.enrol(host, NOW)
        revoked = keys.revoke(host, NOW)
        file.write_text(before)
        assert keys.revoke(host, NOW) == revoked
        assert file.read_text().splitlines()[:4] == before.splitlines()[:4]
        assert revoked in file.read_text()
    file.write_text(before)
    keys.enrol("host-c", NOW)
    assert keys.revoke("host-c", NOW) in file.read_text()


def test_a_revocation_that_no_server_could_be_told_is_kept_and_told_later(
    keys: Keys, servers: NatsServers, tmp_path: Path
) -> None:
    stolen = written(tmp_path / "stolen", keys.enrol(HOST, NOW).credentials)
    servers[0].stop()
    revoked = keys.revoke(HOST, NOW)
    with pytest.raises(errors.UnavailableError, match="Connect call failed"):
        asyncio.run(push(revoked, system(keys, servers.urls)))
    servers[0].start()
    servers.wait_until_ready()
    assert asyncio.run(is_known(servers.urls, stolen))
    assert keys.revoke(HOST, NOW) == revoked
    asyncio.run(push(keys.revoke(HOST, NOW), system(keys, servers.urls)))
    assert not asyncio.run(is_known(servers.urls, stolen))


def test_a_server_that_is_set_up_later_has_the_revocations(keys: Keys, tmp_path: Path) -> None:
    stolen = written(tmp_path / "stolen", keys.enrol(HOST, NOW).credentials)
    file = keys.directory / "servers.conf"
    file.write_text(f"# mine\n{file.read_text()}")
    keys.revoke(HOST, NOW)
    assert file.read_text().startswith("# mine\n")
    text = file.read_text().replace("/var/lib/nats/accounts", str(tmp_path / "accounts"))
    with nats_servers(tmp_path, configuration=text) as servers:
        assert not asyncio.run(is_known(servers.urls, stolen))
        assert asyncio.run(
            is_known(servers.urls, written(tmp_path / "other", keys.enrol(OTHER, NOW).credentials), OTHER)
        )


# Rotation


def test_after_a_rotation_the_new_credentials_work(keys: Keys, servers: NatsServers, tmp_path: Path) -> None:
    """An edge whose file is replaced before the old ones are revoked connects again by itself."""
    file = written(tmp_path / "edge.creds", keys.enrol(HOST, NOW).credentials)
    old = written(tmp_path / "old.creds", file.read_text())

    async def rotate() -> None:
        inbox = Subjects.of(HOST).inbox
        client, until_lost = await connect(Servers(urls=servers.urls, credentials=file), "an edge", inbox)
        file.write_text(keys.enrol_anew(HOST, NOW).credentials)
        assert await is_known(servers.urls, old)
        assert await is_known(servers.urls, file)
        await push(keys.revoke(HOST, NOW, except_newest=True), system(keys, servers.urls))
        await asyncio.wait_for(until_lost(), SECONDS)
        client, _ = await connect(Servers(urls=servers.urls, credentials=file), "an edge", inbox)
        await client.close()
        assert not await is_known(servers.urls, old)
        assert await is_known(servers.urls, file)

    asyncio.run(asyncio.wait_for(rotate(), 2 * SECONDS))


# Users that were not enrolled


def foreign(keys: Keys) -> Iterator[tuple[str, str]]:
    """What they have tried, and their credentials."""
    edges = account(keys, "edges").sub
    edge_user = jwt.User(version=jwt.VERSION, issuer_account=edges)
    signer, stranger = signing_key(keys, "edges"), jwt.Key.make(jwt.ACCOUNT)
    mine, another = keys.enrol(HOST, NOW).credentials, keys.enrol(OTHER, NOW).credentials
    yield "signed by a key of no account", credentials(stranger, HOST, edge_user)
    yield "signed by the service's account", credentials(signing_key(keys, "forenotice"), HOST, edge_user)
    yield "signed by the operator", credentials(signing_key(keys, "operator"), HOST, edge_user)
    yield "signed by a user", credentials(jwt.Key(mine.splitlines()[5]), HOST, edge_user)
    everything = jwt.Allowed((">",))
    yield "permissions of its own", credentials(signer, HOST, user(permissions.EDGE, edges))
    yield "all permissions", credentials(signer, HOST, user(jwt.Permissions(pub=everything, sub=everything), edges))
    yield "without an account", credentials(signer, HOST, jwt.User(version=jwt.VERSION))
    service = account(keys, "forenotice").sub
    yield "of the service's account", credentials(signer, HOST, jwt.User(version=jwt.VERSION, issuer_account=service))
    seed, other_seed = mine.splitlines()[5], another.splitlines()[5]
    yield "with another's seed", mine.replace(seed, other_seed)
    header, body, signature = mine.splitlines()[1].split(".")
    claims = msgspec.structs.replace(jwt.read(f".{body}."), name=OTHER)
    yield "with another name", mine.replace(body, jwt.sign(claims, stranger).split(".")[1])
    unsigned = jwt.sign(claims, signer).rsplit(".", 1)[0]
    yield "not signed", mine.replace(f"{header}.{body}.{signature}", f"{unsigned}.")


def test_users_of_other_makers_are_refused(keys: Keys, servers: NatsServers, tmp_path: Path) -> None:
    async def all_refused() -> None:
        for what, text in foreign(keys):
            assert not await is_known(servers.urls, written(tmp_path / "user", text)), what
        signer, edges = signing_key(keys, "edges"), account(keys, "edges").sub
        genuine = credentials(signer, HOST, jwt.User(version=jwt.VERSION, issuer_account=edges))
        assert await is_known(servers.urls, written(tmp_path / "user", genuine))

    asyncio.run(all_refused())


def test_without_credentials_nobody_connects(servers: NatsServers) -> None:
    async def attempt() -> None:
        client = Connection()
        try:
            with pytest.raises(Error, match="Authorization Violation"):
                await client.connect(list(servers.urls), allow_reconnect=False, error_cb=_ignore)
        finally:
            await client.close()

    asyncio.run(attempt())


async def _ignore(error: Exception) -> None:
    pass


# A cluster


def test_in_a_cluster_every_server_knows_users_and_revocations(keys: Keys, tmp_path: Path) -> None:
    file = written(tmp_path / "edge.creds", keys.enrol(HOST, NOW).credentials)
    own = Subjects.of(HOST)

    async def work(servers: NatsServers) -> None:
        beats: asyncio.Queue[str] = asyncio.Queue()

        async def reply(question: Msg) -> None:
            await question.respond(b"a reply")

        def beat_at(name: str) -> Callable[[Msg], Awaitable[None]]:
            async def noted(_: Msg) -> None:
                await beats.put(name)

            return noted

        async with (
            centre([servers[0].url], keys) as one,
            centre([servers[1].url], keys) as two,
            edge([servers[2].url], file, HOST) as client,
        ):
            await until_it_works(lambda: streams.ensure(one.jetstream(), replicas=3))
            for name, service in (("one", one), ("two", two)):
                await service.subscribe(ALL_BEATS, cb=beat_at(name))
                await service.subscribe(ALL_QUESTIONS, queue="centre", cb=reply)
                assert not await service.complaint()
            # Servers tell each other of subscriptions and imports in their own time.
            await until_it_works(lambda: client.request(own.ask, b""))
            heard: set[str] = set()
            while len(heard) < 2:
                await client.publish(own.beat, b"")
                heard.add(await asyncio.wait_for(beats.get(), SECONDS))
            await one.jetstream().publish(own.docs, b"a state")
            await until_it_works(lambda: client.jetstream().get_last_msg(DOCS, own.docs, direct=True))
            await until_it_works(lambda: client.jetstream().publish(own.approve, b"", headers={"Nats-Msg-Id": "0"}))
            for number in range(20):
                await client.jetstream().publish(own.approve, b"", headers={"Nats-Msg-Id": str(number)})
            assert (await two.jetstream().stream_info("NB_UP")).state.messages == 20
            assert not await client.complaint()
            assert await push(keys.revoke(HOST, NOW), system(keys, servers.urls)) == ["n0", "n1", "n2"]
            await until(lambda: client.is_closed)
        for server in servers:
            assert not await is_known([server.url], file)

    with nats_servers(tmp_path, 3, keys=keys) as servers:
        asyncio.run(asyncio.wait_for(work(servers), 6 * SECONDS))


async def until_it_works(attempt: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            await attempt()
            return
        except (Error, TimeoutError):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


def test_a_server_that_was_away_learns_of_revocations(keys: Keys, tmp_path: Path) -> None:
    file = written(tmp_path / "edge.creds", keys.enrol(HOST, NOW).credentials)

    async def learns(url: str) -> None:
        deadline = time.monotonic() + SECONDS
        while await is_known([url], file):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)

    with nats_servers(tmp_path, 3, keys=keys) as servers:
        servers[2].kill()
        with pytest.raises(errors.UnavailableError, match="only n0, n1 of 3 servers have confirmed it"):
            asyncio.run(push(keys.revoke(HOST, NOW), system(keys, servers.urls[:2])))
        for server in servers[:2]:
            assert not asyncio.run(is_known([server.url], file))
        servers[2].start()
        servers[2].wait_until_ready(3)
        asyncio.run(learns(servers[2].url))
        for server in servers:
            assert not asyncio.run(is_known([server.url], file))
