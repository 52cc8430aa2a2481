"""What guests are promised holds at an edge: to every request it answers, byte for byte, what the service answers."""

import hashlib
import hmac
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import Said, ask, until
from tests.edge.running import Bus, RunningEdge, running
from tests.edge.states import state
from tests.metadata import running as service
from tests.metadata.running import (
    APPROVAL,
    DB_ADDRESS,
    DB_VM,
    FLEET,
    PATH,
    WEB,
    WEB_ADDRESSES,
    Client,
    Running,
    request,
)
from tests.nats_servers import NatsServers
from tests.wire.samples import DOCUMENTS, GOLDEN_FILES

from forenotice.cluster.messages import Reply
from forenotice.core import errors
from forenotice.core.fleet import Listening
from forenotice.publication import Member, Publication
from forenotice.wire import versions

INSTANCE = "/metadata/instance?api-version=2021-02-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
METADATA = {"Metadata": "true"}
UNKNOWN = "there is no such event"
SECRET = "a secret of many proxies"
PROXY_ADDRESS = "127.5.0.1"


@contextmanager
def serving(bus: Bus, servers: NatsServers, host: str, data: Path, **more: Any) -> Iterator[RunningEdge]:
    bus.publish(state(host=host, **{"scopes": FLEET, **more.pop("shown", {})}))
    with running(host, servers.urls, data, **more) as edge:
        until(lambda: edge.readiness == 200 and edge.metric("connected"))
        yield edge


@pytest.fixture(scope="module")
def edge(bus: Bus, servers: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEdge]:
    bus.answers["guests"] = lambda asked: Reply(refusal=UNKNOWN)
    with serving(bus, servers, "guests", tmp_path_factory.mktemp("edge")) as edge:
        yield edge


@pytest.fixture(scope="module")
def centre() -> Iterator[Running]:
    with service.running(options=service.UNLIMITED) as centre:
        centre.guests.outcome = lambda asked: None if asked.scope == WEB.key else errors.RefusedError(UNKNOWN)
        yield centre


# Byte for byte

GETS = [
    *(f"/metadata/scheduledevents?api-version={version.name}" for version in versions.ALL),
    "/metadata/scheduledevents?api-version=latest",
    "/metadata/scheduledevents?api-version=2020-07-01&api-version=2020-07-01",
    "/metadata/latest/scheduledevents",
    "/metadata/scheduledEvents?api-version=2020-07-01",
    "/metadata/scheduledevents",
    "/metadata/versions",
    "/metadata/nothing",
    INSTANCE,
    NAME,
    "/metadata/instance/compute/vmId?api-version=2021-02-01",
    "/metadata/instance/network?api-version=2021-02-01",
    "/metadata/instance/compute/nothing?api-version=2021-02-01&format=text",
    "/metadata/instance?api-version=2016-01-01",
]
HEADERS: list[Mapping[str, str]] = [
    METADATA,
    {},
    {"Metadata": "false"},
    {"METADATA": "TRUE"},
    {**METADATA, "X-Forwarded-For": "10.0.0.1"},
    {**METADATA, "Via": "1.1 somebody"},
    {**METADATA, "Host": "evil.example"},
    {**METADATA, "If-None-Match": '"2-webtag"'},
    {**METADATA, "If-None-Match": '"1-dbtag"'},
    {**METADATA, "If-None-Match": 'W/"1-x", "2-webtag"', "Prefer": "wait=0"},
]
OTHERS = [
    ("HEAD", PATH, None),
    ("PUT", PATH, b"x"),
    ("DELETE", INSTANCE, None),
    ("POST", INSTANCE, b"{}"),
    ("POST", PATH, APPROVAL),
    ("POST", PATH.replace("2020-07-01", "2017-03-01"), APPROVAL),
    ("POST", PATH, b"{}"),
    ("POST", PATH, b"rubbish"),
    ("POST", PATH, b'{"StartRequests":[]}'),
    ("POST", PATH, b'{"StartRequests":[{"EventId":"no guid"}]}'),
    ("POST", PATH, b"x" * 100_000),
]


def both(edge: RunningEdge, centre: Running, method: str, target: str, body: bytes | None = None, **how: Any) -> Said:
    """What both answer, apart from the second in which they do."""
    answers = [ask(place, method, target, body, **how) for place in (edge.guests, f"127.0.0.1:{centre.port}")]
    for said in answers:
        assert said.headers.pop("date")  # type: ignore[attr-defined]
    assert answers[0] == answers[1], (method, target, how)
    return answers[0]


@pytest.mark.parametrize("source", [*WEB_ADDRESSES, DB_ADDRESS, "127.9.9.9"])
def test_every_request_is_answered_as_by_the_service(edge: RunningEdge, centre: Running, source: str) -> None:
    statuses = {
        both(edge, centre, "GET", target, headers=headers, source=source).status
        for target in GETS
        for headers in HEADERS
    }
    statuses |= {
        both(edge, centre, method, target, body, headers=headers, source=source).status
        for method, target, body in OTHERS
        for headers in HEADERS[:5]
    }
    assert statuses == ({400, 404, 405} | (set() if source == "127.9.9.9" else {200, 304}))


def test_the_tag_of_one_is_known_to_the_other(edge: RunningEdge, centre: Running) -> None:
    tag = both(edge, centre, "GET", PATH, headers=METADATA, source=DB_ADDRESS).headers["etag"]
    said = both(edge, centre, "GET", PATH, headers={**METADATA, "If-None-Match": tag}, source=DB_ADDRESS)
    assert (said.status, said.body, said.headers["etag"]) == (304, b"", tag)
    # Another scope's, and an older one of its own.
    for other in (
        both(edge, centre, "GET", PATH, headers=METADATA, source=WEB_ADDRESSES[0]).headers["etag"],
        '"0-dbtag"',
    ):
        assert edge.ask(headers={**METADATA, "If-None-Match": other}, source=DB_ADDRESS).status == 200


def documents() -> tuple[Publication, ...]:
    return tuple(
        Publication(
            key=f"vm:{name}",
            document=document,
            members=(Member(name=name, vm_id=name, addresses=(f"127.2.0.{number}",)),),
            listening=Listening.ALWAYS,
        )
        for number, (name, document) in enumerate(DOCUMENTS.items(), 1)
    )


@pytest.mark.parametrize("dates", ["iso", "rfc1123"])
def test_every_version_is_as_in_the_golden_files(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path, dates: str
) -> None:
    shown = documents()
    wanted = [file for file, version in GOLDEN_FILES.items() if (version in versions.ALL) == (dates == "iso")]
    with serving(bus, servers, host, tmp_path, shown={"scopes": shown}, first_version_dates=dates) as edge:
        for file in wanted:
            lines = []
            for number, scope in enumerate(shown, 1):
                said = edge.ask(PATH.replace("2020-07-01", GOLDEN_FILES[file].name), source=f"127.2.0.{number}")
                lines.append(b"%b %b\n" % (scope.key.removeprefix("vm:").encode(), said.body))
            assert b"".join(lines) == file.read_bytes()


# Limits


def test_the_rate_of_a_guest_is_limited(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    with serving(bus, servers, host, tmp_path, guest_rate="0.5") as edge:
        # Two at once, and one of them for approvals apart.
        answers = [edge.ask() for _ in range(3)]
        assert [said.status for said in answers] == [200, 200, 429]
        assert int(answers[2].headers["retry-after"]) in (1, 2)
        assert edge.approve().status == 200
        assert edge.ask(source=DB_ADDRESS).status == 200


def test_a_guest_waits_no_longer_than_is_set(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    with serving(bus, servers, host, tmp_path, wait_cap="0.05") as edge:
        tag = edge.ask().headers["etag"]
        assert edge.ask(headers={**METADATA, "If-None-Match": tag, "Prefer": "wait=3000"}).status == 304


# Who asks


def sign(message: str) -> str:
    return hmac.new(SECRET.encode(), message.encode(), hashlib.sha256).hexdigest()


def by_name(name: str) -> dict[str, str]:
    at, nonce = str(int(datetime.now(UTC).timestamp())), secrets.token_urlsafe()
    return {
        **METADATA,
        "X-Forenotice-VM": name,
        "X-Forenotice-Time": at,
        "X-Forenotice-Nonce": nonce,
        "X-Forenotice-Signature": sign("\n".join((name, at, nonce, "GET", NAME))),
    }


def by_id(vm_id: str) -> dict[str, str]:
    forwarded = {**METADATA, "X-Forwarded-For": "10.0.0.4", "X-Tenant-ID": "1", "X-Instance-ID": vm_id}
    return {**forwarded, "X-Instance-ID-Signature": sign(vm_id)}


def name_of(edge: RunningEdge, source: str, headers: Mapping[str, str] = METADATA) -> str:
    said = edge.ask(NAME, source=source, headers=headers)
    return said.body.decode() if said.status == 200 else str(said.status)


@pytest.mark.parametrize(
    ("style", "db", "forged"),
    [
        ("forenotice", lambda: by_name("db"), lambda: {**by_name("db"), "X-Forenotice-VM": "web-0"}),
        ("openstack", lambda: by_id(DB_VM.vm_id), lambda: {**by_id(DB_VM.vm_id), "X-Instance-ID": "x"}),
    ],
)
def test_a_caller_is_known_in_each_of_the_four_ways(
    bus: Bus, servers: NatsServers, host: str, tmp_path: Path, style: str, db: Any, forged: Any
) -> None:
    secret, own = tmp_path / "secret", tmp_path / "web.sock"
    secret.touch(0o600)
    secret.write_text(SECRET)
    flags = {
        "metadata": ["127.0.0.1:0", f"unix:{own}=web-0"],
        "as": "web-1",
        "proxy_trusted": ["127.5.0.0/24"],
        "proxy_style": style,
        "proxy_secret_file": str(secret),
    }
    with serving(bus, servers, host, tmp_path, **flags) as edge:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(own))
            assert Client(connected).ask(request(NAME)).text == "web-0"
        assert name_of(edge, PROXY_ADDRESS, db()) == "db"
        assert name_of(edge, PROXY_ADDRESS, forged()) == "403"
        assert name_of(edge, DB_ADDRESS) == "db"
        assert name_of(edge, WEB_ADDRESSES[0]) == "web-0"
        assert name_of(edge, "127.9.9.9") == "web-1"
        # Only a proxy can speak for others.
        assert name_of(edge, "127.6.0.1", by_name("db")) == "web-1"


def test_a_vm_of_another_host_is_nobody_here(bus: Bus, servers: NatsServers, host: str, tmp_path: Path) -> None:
    with serving(bus, servers, host, tmp_path, shown={"scopes": FLEET[:1]}) as edge:
        assert name_of(edge, WEB_ADDRESSES[0]) == "web-0"
        assert name_of(edge, DB_ADDRESS) == "404"
