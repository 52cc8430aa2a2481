"""What NATS lets an edge and the service do, and nothing else: every attempt against a real server."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError
from tests.cluster.users import (
    NOW,
    REFUSED,
    Connection,
    account,
    centre,
    connected,
    credentials,
    edge,
    signing_key,
    user,
)
from tests.nats_servers import nats_servers

from forenotice.cluster import jwt, permissions, streams
from forenotice.cluster.keys import Keys
from forenotice.cluster.subjects import ALL_BEATS, ALL_QUESTIONS, CENTRE_INBOX, CONSUMER, DOCS, UP, Subjects, token

HOST, VICTIM = "rack1.host-a", "victim"
OWN, OTHERS = Subjects.of(HOST), Subjects.of(VICTIM)
STATE, STATE_OF_VICTIM = b"state of the host", b"state of the victim"
API = "$JS.API"
EVERYTHING = jwt.Allowed((">",))


class Place(NamedTuple):
    """A server, and files with credentials for it."""

    urls: Sequence[str]
    keys: Keys
    edge: Path
    victim: Path
    anything: Path
    """May do everything in the edges' account."""
    beside_streams: Path
    """May do what an edge may, but in the account that has the streams."""
    anything_beside_streams: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("nats")
    keys = Keys.make(root / "keys", NOW)
    service = signing_key(keys, "forenotice")
    edges = account(keys, "edges").sub
    unlimited = msgspec.structs.replace(permissions.EDGE, pub=EVERYTHING, sub=EVERYTHING)
    template = msgspec.json.encode(permissions.EDGE).replace(permissions.HOST.encode(), token(HOST).encode())
    found = {
        "anything": credentials(_add_signing_key(keys, unlimited), HOST, jwt.User(version=2, issuer_account=edges)),
        "beside_streams": credentials(service, HOST, user(msgspec.json.decode(template, type=jwt.Permissions))),
        "anything_beside_streams": credentials(service, HOST, user(unlimited)),
        "edge": keys.enrol(HOST, NOW).credentials,
        "victim": keys.enrol(VICTIM, NOW).credentials,
    }
    for name, text in found.items():
        (root / name).write_text(text)
    with nats_servers(root, keys=keys) as servers:
        made = Place(servers.urls, keys, **{name: root / name for name in found})
        asyncio.run(_publish_states(made))
        yield made


def _add_signing_key(keys: Keys, template: jwt.Permissions) -> jwt.Key:
    """To the edges' account, beside the one that it has."""
    signer, claims = jwt.Key.make(jwt.ACCOUNT), account(keys, "edges")
    assert isinstance(claims.nats, jwt.Account)
    signing_keys = (*claims.nats.signing_keys, jwt.SigningKey(key=signer.public, role="another", template=template))
    changed = msgspec.structs.replace(claims, nats=msgspec.structs.replace(claims.nats, signing_keys=signing_keys))
    (keys.directory / "edges.jwt").write_text(jwt.sign(changed, signing_key(keys, "operator")))
    return signer


async def _publish_states(place: Place) -> None:
    async with centre(place.urls, place.keys) as client:
        stream = client.jetstream()
        await streams.ensure(stream, replicas=1)
        await stream.publish(OWN.docs, STATE)
        await stream.publish(OTHERS.docs, STATE_OF_VICTIM)


# What an edge may do


def test_an_edge_may_do_its_work(place: Place) -> None:
    async def work() -> None:
        heard: asyncio.Queue[Msg] = asyncio.Queue()

        async def reply(question: Msg) -> None:
            await question.respond(b"reply to " + question.data)

        async with centre(place.urls, place.keys) as service, edge(place.urls, place.edge, HOST) as client:
            await service.subscribe(ALL_QUESTIONS, queue="centre", cb=reply)
            await service.subscribe(ALL_BEATS, cb=heard.put)
            await client.subscribe(OWN.live, cb=heard.put)
            assert not await service.complaint() + await client.complaint()
            stream = client.jetstream()

            await client.publish(OWN.beat, b"a beat")
            beat = await asyncio.wait_for(heard.get(), 5)
            assert (beat.subject, beat.data) == (OWN.beat, b"a beat")
            assert (await client.request(OWN.ask, b"a question")).data == b"reply to a question"
            for subject in (OWN.approve, OWN.heard):
                stored = await stream.publish(subject, b"up", headers={"Nats-Msg-Id": subject})
                again = await stream.publish(subject, b"up", headers={"Nats-Msg-Id": subject})
                assert (stored.stream, stored.duplicate, again.duplicate) == (UP, None, True)
            assert (await stream.get_last_msg(DOCS, OWN.docs, direct=True)).data == STATE
            await service.jetstream().publish(OWN.docs, STATE)
            live = await asyncio.wait_for(heard.get(), 5)
            assert (live.subject, live.data) == (OWN.live, STATE)
            assert not await service.complaint() + await client.complaint()

    asyncio.run(work())


# What it may not

NOT_PUBLISHED = (
    OTHERS.approve,
    OTHERS.heard,
    OTHERS.beat,
    OTHERS.ask,
    f"{API}.DIRECT.GET.{DOCS}.{OTHERS.docs}",
    f"nb.up.{token(HOST)}",
    f"nb.up.{token(HOST)}.other",
    f"nb.up.{token(HOST)}.approve.more",
    f"nb.beat.{HOST}",
    OWN.docs,
    OTHERS.docs,
    OWN.live,
    OTHERS.live,
    "nb.other",
    # With a body these name any message of the stream.
    f"{API}.DIRECT.GET.{DOCS}",
    f"{API}.DIRECT.GET.{UP}",
    f"{API}.DIRECT.GET.{UP}.{OWN.approve}",
    f"{API}.INFO",
    f"{API}.STREAM.NAMES",
    f"{API}.STREAM.LIST",
    f"{API}.STREAM.CREATE.OWN",
    *(
        f"{API}.STREAM.{verb}.{name}"
        for verb in ("INFO", "UPDATE", "PURGE", "DELETE", "SNAPSHOT", "MSG.GET", "MSG.DELETE", "LEADER.STEPDOWN")
        for name in (DOCS, UP)
    ),
    f"{API}.CONSUMER.CREATE.{DOCS}",
    f"{API}.CONSUMER.CREATE.{DOCS}.own.{OWN.docs}",
    f"{API}.CONSUMER.DURABLE.CREATE.{DOCS}.own",
    f"{API}.CONSUMER.CREATE.{UP}.{CONSUMER}",
    *(f"{API}.CONSUMER.{verb}.{UP}.{CONSUMER}" for verb in ("INFO", "DELETE", "PAUSE", "MSG.NEXT", "LEADER.STEPDOWN")),
    f"{API}.CONSUMER.LIST.{UP}",
    f"{API}.ACCOUNT.PURGE.EDGES",
    f"{API}.SERVER.REMOVE",
    f"$JS.ACK.{UP}.{CONSUMER}.1.1.1.1.0",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$KV.bucket.key",
    f"{OTHERS.inbox}.1",
    f"{OWN.inbox}.1",
    f"{CENTRE_INBOX}.1",
    "_INBOX.1",
)
NOT_SUBSCRIBED = (
    ">",
    "*",
    "*.>",
    "nb.>",
    "nb.*.>",
    f"nb.*.{token(HOST)}",
    "nb.live.>",
    "nb.live.*",
    OTHERS.live,
    f"nb.live.{HOST}",
    OWN.docs,
    OTHERS.docs,
    "nb.docs.*",
    OWN.approve,
    OTHERS.approve,
    "nb.up.>",
    OWN.beat,
    ALL_BEATS,
    OWN.ask,
    ALL_QUESTIONS,
    OTHERS.inbox,
    f"{OTHERS.inbox}.>",
    f"{OTHERS.inbox}.1.*",
    OWN.inbox,
    f"{OWN.inbox}1.>",
    "_INBOX_.>",
    "_INBOX.>",
    "_INBOX.1",
    f"{CENTRE_INBOX}.>",
    "_R_.>",
    "$JS.>",
    "$JS.EVENT.>",
    f"$JS.ACK.{UP}.>",
    f"{API}.>",
    "$SYS.>",
)
TRACED = (OTHERS.docs, OWN.docs, OTHERS.live, OTHERS.beat)
ATTEMPTS = (
    *(("publish", subject) for subject in NOT_PUBLISHED),
    *(("subscribe", subject) for subject in NOT_SUBSCRIBED),
    *(("subscribe in a queue", subject) for subject in (">", OTHERS.live, "nb.live.*", f"{OTHERS.inbox}.>")),
    *(("trace", subject) for subject in TRACED),
)


async def attempt(client: Connection, how: str, subject: str) -> str:
    """What the server says to it."""
    match how:
        case "publish":
            await client.publish(subject, b"")
        case "trace":
            # The server publishes there what became of a message.
            await client.publish(OWN.beat, b"", headers={"Nats-Trace-Dest": subject, "Nats-Trace-Only": "true"})
        case "subscribe":
            await client.subscribe(subject)
        case "subscribe in a queue":
            await client.subscribe(subject, queue="queue")
    return await client.complaint()


@pytest.mark.parametrize(("how", "subject"), ATTEMPTS)
def test_an_edge_is_refused(place: Place, how: str, subject: str) -> None:
    async def refused() -> None:
        async with edge(place.urls, place.edge, HOST) as client:
            assert REFUSED in await attempt(client, how, subject)

    asyncio.run(refused())


@pytest.mark.parametrize(("how", "subject"), ATTEMPTS)
def test_the_same_is_allowed_with_the_permission(place: Place, how: str, subject: str) -> None:
    """So it is the permission that refuses it, and not something else."""

    async def allowed() -> None:
        async with edge(place.urls, place.anything, HOST) as client:
            assert not await attempt(client, how, subject)

    asyncio.run(allowed())


# Replies: the server sends them wherever a request says

DEPUTIES = (f"{API}.DIRECT.GET.{DOCS}.{OWN.docs}", OWN.approve, OWN.ask)
"""What an edge can ask for."""
TARGETS = (OTHERS.docs, OWN.docs, OTHERS.approve, OTHERS.beat, OTHERS.ask)


async def _arrivals(place: Place, attacker: Path, subject: str, reply: str) -> set[tuple[str, bytes]]:
    """What the service and its streams have after a request whose reply is to go there."""
    found: set[tuple[str, bytes]] = set()

    async def note(message: Msg) -> None:
        found.add((message.subject, message.data))

    async def respond(question: Msg) -> None:
        await note(question)
        await question.respond(b"a reply")

    async with centre(place.urls, place.keys) as service, edge(place.urls, attacker, HOST) as client:
        stream = service.jetstream()
        await _taken(stream)
        await stream.publish(OWN.docs, STATE)
        await stream.publish(OTHERS.docs, STATE_OF_VICTIM)
        await service.subscribe(ALL_QUESTIONS, cb=respond)
        await service.subscribe(ALL_BEATS, cb=note)
        await service.complaint()
        await client.publish(subject, b"an attack", reply=reply)
        # Whoever replies does so in order: with these replies that one is out, too.
        for _ in range(2):
            await client.request(subject, b"")
        assert REFUSED not in await client.complaint()
        await service.complaint()
        found |= {(each, (await stream.get_last_msg(DOCS, each)).data or b"") for each in (OWN.docs, OTHERS.docs)}
        return found | await _taken(stream)


async def _taken(stream: JetStreamContext) -> set[tuple[str, bytes]]:
    """All that has come up, taken off the stream."""
    found: set[tuple[str, bytes]] = set()
    waiting = await stream.pull_subscribe_bind(CONSUMER, UP)
    while (await stream.consumer_info(UP, CONSUMER)).num_pending:
        for message in await waiting.fetch(100):
            found.add((message.subject, message.data))
            await message.ack_sync()
    return found


@pytest.mark.parametrize("reply", TARGETS)
@pytest.mark.parametrize("subject", DEPUTIES)
def test_no_reply_goes_where_an_edge_may_not_publish(place: Place, subject: str, reply: str) -> None:
    own = {(subject, b"an attack"), (subject, b"")} if subject != DEPUTIES[0] else set()
    expected = {*own, (OWN.docs, STATE), (OTHERS.docs, STATE_OF_VICTIM)}
    assert asyncio.run(_arrivals(place, place.edge, subject, reply)) == expected


@pytest.mark.parametrize("subject", DEPUTIES)
def test_in_the_account_of_the_streams_it_would(place: Place, subject: str) -> None:
    """This is why edges have an account of their own."""
    found = asyncio.run(_arrivals(place, place.beside_streams, subject, OTHERS.docs))
    assert (OTHERS.docs, STATE_OF_VICTIM) not in found


def test_an_edge_gets_a_reply_that_another_one_misdirects_only_as_live(place: Place) -> None:
    """What comes is never the other's choice, and a state says whose it is: the edge refuses it."""

    async def misdirected() -> None:
        got: asyncio.Queue[Msg] = asyncio.Queue()
        async with edge(place.urls, place.victim, VICTIM) as victim, edge(place.urls, place.edge, HOST) as client:
            await victim.subscribe(OTHERS.live, cb=got.put)
            await victim.complaint()
            await client.publish(DEPUTIES[0], b"", reply=OTHERS.live)
            assert (await asyncio.wait_for(got.get(), 5)).data == STATE

    asyncio.run(misdirected())


def test_an_edge_cannot_empty_the_stream_of_approvals(place: Place) -> None:
    async def roll_up() -> None:
        async with edge(place.urls, place.edge, HOST) as client:
            stream = client.jetstream()
            await stream.publish(OWN.approve, b"")
            for what in ("all", "sub"):
                with pytest.raises(APIError, match="rollup not permitted"):
                    await stream.publish(OWN.approve, b"", headers={"Nats-Rollup": what})
            with pytest.raises(APIError, match="TTL"):
                await stream.publish(OWN.approve, b"", headers={"Nats-TTL": "1s"})

    asyncio.run(roll_up())


# The service

NOT_OF_THE_SERVICE = (
    *(("publish", subject) for subject in (OWN.approve, OWN.heard, OWN.beat, OWN.ask, OWN.live, "nb.docs.a.b")),
    *(("publish", subject) for subject in (f"{OWN.inbox}.1", "_INBOX.1", "$SYS.REQ.SERVER.PING", "$KV.bucket.key")),
    *(
        ("publish", f"{API}.STREAM.{verb}.{name}")
        for verb in ("UPDATE", "DELETE", "PURGE", "SNAPSHOT", "MSG.DELETE", "LEADER.STEPDOWN")
        for name in (DOCS, UP)
    ),
    ("publish", f"{API}.STREAM.CREATE.ANOTHER"),
    ("publish", f"{API}.STREAM.MSG.GET.{UP}"),
    ("publish", f"{API}.CONSUMER.DELETE.{UP}.{CONSUMER}"),
    ("publish", f"{API}.CONSUMER.CREATE.{UP}.another"),
    ("publish", f"{API}.CONSUMER.CREATE.{DOCS}.another"),
    ("publish", f"$JS.ACK.{UP}.another.1.1.1.1.0"),
    *(("subscribe", subject) for subject in (">", "nb.>", "nb.live.*", "nb.docs.*", "nb.up.>", "nb.up.*.approve")),
    *(("subscribe", subject) for subject in ("_INBOX.>", f"{OWN.inbox}.>", "_R_.>", "$JS.>", "$SYS.>")),
)


@pytest.mark.parametrize(("how", "subject"), NOT_OF_THE_SERVICE)
def test_the_service_is_refused(place: Place, how: str, subject: str) -> None:
    async def refused() -> None:
        async with centre(place.urls, place.keys) as client:
            assert REFUSED in await attempt(client, how, subject)

    asyncio.run(refused())


def test_the_same_is_allowed_to_the_service_with_the_permission(place: Place, tmp_path: Path) -> None:
    async def allowed(urls: Sequence[str]) -> None:
        for how, subject in NOT_OF_THE_SERVICE:
            # Each with a connection of its own: what one has subscribed to would reach the next.
            async with connected(urls, place.anything_beside_streams, CENTRE_INBOX) as client:
                assert not await attempt(client, how, subject), (how, subject)

    # On a server of its own, whose streams it may delete.
    with nats_servers(tmp_path, keys=place.keys) as servers:
        asyncio.run(allowed(servers.urls))


def test_the_service_may_do_its_work(place: Place) -> None:
    async def work() -> None:
        async with centre(place.urls, place.keys) as client, edge(place.urls, place.edge, HOST) as guests:
            stream = client.jetstream()
            await stream.account_info()
            await streams.ensure(stream, replicas=1)
            last = await stream.get_msg(DOCS, subject=OWN.docs)
            assert await stream.get_msg(DOCS, seq=last.seq) == last
            expected = {"Nats-Expected-Last-Subject-Sequence": str(last.seq)}
            await stream.publish(OWN.docs, STATE, headers=expected)
            with pytest.raises(APIError, match="wrong last sequence"):
                await stream.publish(OWN.docs, STATE, headers=expected)
            await guests.jetstream().publish(OWN.approve, b"an approval")
            assert (OWN.approve, b"an approval") in await _taken(stream)
            assert (await stream.stream_info(UP)).state.messages == 0
            assert not await client.complaint()

    asyncio.run(work())


def test_the_service_replies_to_a_question_only_once(place: Place) -> None:
    async def reply_twice() -> None:
        asked: asyncio.Queue[Msg] = asyncio.Queue()
        async with centre(place.urls, place.keys) as client, edge(place.urls, place.edge, HOST) as guests:
            await client.subscribe(ALL_QUESTIONS, cb=asked.put)
            await client.complaint()
            await guests.publish(OWN.ask, b"", reply=f"{OWN.inbox}.1")
            question = await asyncio.wait_for(asked.get(), 5)
            await question.respond(b"")
            assert not await client.complaint()
            await question.respond(b"")
            assert REFUSED in await client.complaint()

    asyncio.run(reply_twice())
