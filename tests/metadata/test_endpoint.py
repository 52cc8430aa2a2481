"""The endpoint: paths, versions, errors, and the order of the checks."""

import json
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.metadata.running import APPROVAL, DB, DB_ADDRESS, DB_VM, EVENT_ID, PATH, Running, request, running, until

from forenotice import publication
from forenotice.core.fleet import Facts
from forenotice.metadata.options import Limits, Options
from forenotice.publication import Publication
from forenotice.wire import dates, versions

STRANGER = "127.9.9.9"
EVENTS = "/metadata/scheduledevents"
FIRST = f"{EVENTS}?api-version=2017-03-01"
INSTANCE = "/metadata/instance?api-version=2021-02-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
LISTED = "/metadata/versions"
TRUE = "Metadata: true"
JSON = "application/json; charset=utf-8"
BODY = (
    '{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123","EventStatus":"Scheduled",'
    '"EventType":"Freeze","ResourceType":"VirtualMachine","Resources":["web-0"],'
    '"NotBefore":"Mon, 09 Mar 2026 12:15:00 GMT","Description":"Host server is undergoing maintenance.",'
    '"EventSource":"Platform","DurationInSeconds":9}]}'
)


def test_a_poll_gets_the_document_of_its_scope_with_its_headers(shared: Running) -> None:
    reply = shared.ask()
    assert (reply.status, reply.text) == (200, BODY)
    assert (reply["Content-Type"], reply["ETag"], reply["Forenotice-Epoch"]) == (JSON, '"2-webtag"', "webtag")
    date = dates.parse(reply["Date"])
    assert date is not None
    assert abs((datetime.now(UTC) - date).total_seconds()) < 5
    assert shared.ask(source=DB_ADDRESS).text == '{"DocumentIncarnation":1,"Events":[]}'


@pytest.mark.parametrize(("target", "body"), [(PATH, None), (PATH, APPROVAL), (INSTANCE, None)])
def test_a_vm_that_is_arriving_is_told_to_come_again(target: str, body: bytes | None) -> None:
    """Its former host may have shown it a later document than is known here."""
    with running() as server:
        server.publisher.scopes([publication.of(DB, arriving=[DB_VM])])
        until(lambda: server.published.by_name["db"].scope is None)
        reply = server.ask(target, method="GET" if body is None else "POST", body=body, source=DB_ADDRESS)
        assert (reply.status, reply["Retry-After"]) == (503, "5")
        assert server.published.polled("db") is not None


@pytest.mark.parametrize("version", versions.ALL, ids=lambda version: version.name)
def test_every_version_is_served(shared: Running, version: versions.Version) -> None:
    (event,) = json.loads(shared.ask(f"{EVENTS}?api-version={version.name}").body)["Events"]
    assert tuple(event) == version.keys
    assert event["Resources"] == ["_web-0" if version.name == "2017-03-01" else "web-0"]


def test_the_first_version_can_have_the_dates_of_the_real_service(shared: Running) -> None:
    with running(options=Options(versions=versions.AS_SEEN)) as server:
        (seen,) = json.loads(server.ask(FIRST).body)["Events"]
        assert server.ask().text == BODY
    (published,) = json.loads(shared.ask(FIRST).body)["Events"]
    assert (seen["NotBefore"], published["NotBefore"]) == ("Mon, 09 Mar 2026 12:15:00 GMT", "2026-03-09T12:15:00Z")
    assert seen | {"NotBefore": ""} == published | {"NotBefore": ""}


@pytest.mark.parametrize(
    ("target", "header"),
    [
        *((PATH, header) for header in (TRUE, "metadata:true", "METADATA:   TRUE  ", "Metadata: True")),
        *(
            (target, TRUE)
            for target in (
                "/metadata/scheduledEvents?api-version=2020-07-01",
                "/METADATA/SCHEDULEDEVENTS?api-version=2020-07-01",
                "/metadata/scheduledevents/?api-version=2020-07-01",
                "/metadata/scheduled%65vents?api-version=2020-07-01",
                "/metadata/scheduledevents?API-Version=2020%2D07-01&other=1",
                "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01",
            )
        ),
    ],
)
def test_requests_for_the_document(shared: Running, target: str, header: str) -> None:
    assert shared.ask(target, headers=(header,)).text == BODY


NOT_FOUND = [
    "/",
    "/metadata",
    "/metadata/",
    "/metadata/scheduledevents/more?api-version=2020-07-01",
    "/metadata/other/scheduledevents?api-version=2020-07-01",
    "/metadata/identity?api-version=2020-07-01",
    "/latest/meta-data/",
    "//metadata/scheduledevents",
    "http://169.254.169.254",
    "*",
    "/metadata/scheduled%ffevents",
    "/metadata%2Fscheduledevents?api-version=2020-07-01",
    "/metadata/scheduledevents%2f?api-version=2020-07-01",
    "/metadata/instance/compute%2Fname?api-version=2021-02-01&format=text",
    "/metadata/scheduledevents?api-version=2020-07-01" + "&a" * 32,
    "/metadata/instance" + "/compute" * 40 + "?api-version=2021-02-01",
    "/metadata/instance/compute/nothing?api-version=2021-02-01&format=text",
    "/metadata/instance/elsewhere?api-version=2021-02-01",
]
BAD_INSTANCE = [
    "/metadata/instance/compute/name?api-version=2021-02-01",
    "/metadata/instance/compute?api-version=2021-02-01&format=text",
    "/metadata/instance?api-version=2021-02-01&format=xml",
    "/metadata/instance",
    "/metadata/instance?api-version=2017-04-01",
    "/metadata/instance?api-version=latest",
    "/metadata/instance?api-version=2021-02-01&api-version=2021-02-01",
]
TWICE = ["api-version=2020-07-01&api-version=2020-07-01", "api-version=2020-07-01&x=1&X=2", "x=&x=&api-version=1"]
REFUSED: list[tuple[str, tuple[str, ...], int, str]] = [
    *((target, (TRUE,), 404, "Not found.") for target in NOT_FOUND),
    *((target, (TRUE,), 400, "Bad request.") for target in BAD_INSTANCE),
    *((f"{EVENTS}?{query}", (TRUE,), 400, "twice") for query in TWICE),
    *(
        (target, (TRUE, header), 400, "through a proxy")
        for header in ("X-Forwarded-For: 10.0.0.4", "Forwarded: for=10.0.0.4", "Via: 1.1 proxy")
        for target in (PATH, INSTANCE, NAME, LISTED)
    ),
    *((target, (), 400, "Required metadata header not specified") for target in (INSTANCE, NAME, LISTED)),
]


@pytest.mark.parametrize(("target", "headers", "status", "told"), REFUSED)
def test_what_is_refused(shared: Running, target: str, headers: tuple[str, ...], status: int, told: str) -> None:
    reply = shared.ask(target, headers=headers)
    assert (reply.status, reply["Content-Type"]) == (status, JSON)
    (error,) = json.loads(reply.body).items() if status == 404 else [next(iter(json.loads(reply.body).items()))]
    assert error[0] == "error"
    assert told in error[1]
    assert re.match(r"(Bad request|Not found)\. ([A-Z]|api-version|format)", error[1])


@pytest.mark.parametrize(
    ("target", "method", "allowed"),
    [
        *(
            (PATH, method, "GET, POST")
            for method in ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "FROBNICATE")
        ),
        *((target, method, "GET") for target in (INSTANCE, LISTED) for method in ("HEAD", "POST", "FROBNICATE")),
    ],
)
def test_other_methods_are_not_allowed(shared: Running, target: str, method: str, allowed: str) -> None:
    reply = shared.ask(target, method=method, body=b"{}" if method == "POST" else None)
    assert (reply.status, reply["Allow"]) == (405, allowed)
    assert bool(reply.body) == (method != "HEAD")


@pytest.mark.parametrize("headers", [(), ("Metadata: false",), ("Metadata:",), (TRUE, "Metadata: no")])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("version", ["2017-08-01", "2020-07-01"])
def test_without_the_header_a_request_is_refused(
    shared: Running, headers: tuple[str, ...], method: str, version: str
) -> None:
    body = APPROVAL if method == "POST" else None
    reply = shared.ask(f"{EVENTS}?api-version={version}", method=method, headers=headers, body=body)
    assert reply.status == 400
    assert json.loads(reply.body) == {"error": "Bad request. Required metadata header not specified"}


def test_the_first_version_needs_the_header_on_get_only(server: Running) -> None:
    assert server.ask(FIRST, headers=()).status == 400
    assert server.ask(FIRST, method="POST", headers=(), body=APPROVAL).status == 200
    assert [approval.event_ids for approval in server.guests.approvals] == [(EVENT_ID,)]


@pytest.mark.parametrize(
    "target",
    [
        EVENTS,
        f"{EVENTS}?api-version=",
        f"{EVENTS}?api-version=latest",
        f"{EVENTS}?api-version=2020-07-02",
        f"{EVENTS}?version=2020-07-01",
        "/metadata/latest/scheduledevents",
        "/metadata/latest/scheduledevents?api-version=2020-07-01",
        "/metadata/2017-08-01/scheduledevents",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_refusal_of_a_version_names_the_newest(shared: Running, target: str, method: str) -> None:
    reply = shared.ask(target, method=method, body=APPROVAL if method == "POST" else None)
    assert reply.status == 400
    assert json.loads(reply.body) == {
        "error": "Bad request. api-version is invalid or was not specified in the request.",
        "newest-versions": ["2020-07-01", "2019-08-01", "2019-04-01"],
    }


def asked_for(host: str | None, target: str = PATH, version: str = "1.1") -> bytes:
    line = "" if host is None else f"Host: {host}\r\n"
    return f"GET {target} HTTP/{version}\r\n{line}Metadata: true\r\n\r\n".encode()


def test_a_name_that_leads_a_browser_here_is_refused() -> None:
    expected = {
        asked_for("169.254.169.254"): 200,
        asked_for("169.254.169.254:80"): 200,
        asked_for("[fd00::1]:8254"): 200,
        asked_for("localhost:8254"): 200,
        asked_for("Metadata.Example"): 200,
        asked_for("rebound.example:8254"): 400,
        asked_for(""): 400,
        asked_for(None): 400,
        asked_for(None, version="1.0"): 200,
        asked_for("rebound.example", version="1.0"): 400,
        asked_for("127.0.0.1", f"http://169.254.169.254{PATH}"): 200,
        asked_for("127.0.0.1", f"http://[::1]:80{PATH}"): 200,
        asked_for("127.0.0.1", f"http://rebound.example{PATH}"): 400,
        asked_for("rebound.example", f"http://127.0.0.1{PATH}"): 400,
    }
    with running(options=Options(names=frozenset({"metadata.example"}), rate=None)) as server:
        for data, status in expected.items():
            with server.connect() as client:
                for _ in range(2):
                    reply = client.ask(data)
                    assert reply.status == status, data
                    assert status == 200 or "Host" in reply.text
                    if "connection" in reply.headers:
                        break


def test_a_caller_that_is_no_vm_is_not_found_once_the_fleet_is_loaded(server: Running) -> None:
    for target in (PATH, INSTANCE, NAME, LISTED):
        reply = server.ask(target, source=STRANGER)
        assert reply.status == 404
        assert "No VM is known" in reply.text
    server.call(setattr, server.published, "loaded", False)
    assert [server.ask(source=source).status for source in (STRANGER, DB_ADDRESS)] == [503, 200]


def test_the_checks_come_in_their_order() -> None:
    """Each request fails at one check and at all later ones; the response shows which came first."""
    forwarded, bad = ("X-Forwarded-For: 10.0.0.4",), f"{EVENTS}?api-version=1"
    with running(options=Options(rate=0.001, burst=1)) as server:
        for target, method, headers, source, told in (
            ("/elsewhere", "PUT", forwarded, STRANGER, "404 Not found. The paths"),
            (bad, "PUT", forwarded, STRANGER, "405"),
            (bad, "POST", forwarded, STRANGER, "proxy"),
            (bad, "POST", ("Via: 1.1 proxy",), STRANGER, "proxy"),
            (f"{bad}&x=1&x=1", "POST", (), STRANGER, "twice"),
            (bad, "POST", (), STRANGER, "metadata header"),
            (bad, "POST", (TRUE,), STRANGER, "api-version"),
            (PATH, "POST", (TRUE,), STRANGER, "No VM"),
            (PATH, "POST", (TRUE,), DB_ADDRESS, "not JSON"),
            (PATH, "POST", (TRUE,), DB_ADDRESS, "429"),
            (PATH, "GET", (TRUE,), DB_ADDRESS, "200"),
            (PATH, "GET", (TRUE,), DB_ADDRESS, "429"),
        ):
            body = None if method == "GET" else b"nonsense"
            reply = server.ask(target, method=method, headers=headers, source=source, body=body)
            assert told in f"{reply.status} {json.loads(reply.body or b'{}').get('error', '')}"


# The rate


def test_beyond_its_rate_a_vm_learns_when_to_come_back() -> None:
    with running(options=Options(rate=0.5, burst=3)) as server:
        with server.connect() as client:
            assert [client.ask(request()).status for _ in range(3)] == [200] * 3
            refused = client.ask(request())
            assert (refused.status, refused["Retry-After"], refused["Connection"]) == (429, "2", "close")
            assert list(json.loads(refused.body)) == ["error"]
            assert client.is_closed()
        # Another VM of the same scope has its own bucket, and so have approvals.
        assert server.ask(source="127.1.0.22").status == 200
        assert server.ask(method="POST", body=APPROVAL).status == 200
        assert server.server.counters.polls_4xx == 1


def test_nothing_is_read_of_a_caller_behind_the_request_that_is_over_its_rate() -> None:
    with running(options=Options(rate=0.5, burst=3)) as server, server.connect() as client:
        client.send(request() * 2000 + b"and then no HTTP at all\r\n\r\n")
        assert client.statuses(4) == [200, 200, 200, 429]
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()
        assert (server.server.counters.polls_2xx, server.server.counters.polls_4xx) == (3, 1)


def test_a_flood_that_is_refused_is_not_received_without_end() -> None:
    limits = Limits(linger_seconds=30)
    with running(options=Options(rate=0.5, burst=1, limits=limits)) as server, server.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(request() * 200_000)
        client.socket.settimeout(10)
        assert client.statuses(2) == [200, 429]


def test_the_rate_recovers() -> None:
    with running(options=Options(rate=10, burst=1)) as server:
        assert [server.ask().status, server.ask().status] == [200, 429]
        until(lambda: server.ask().status == 200)


def test_repeated_polls_on_one_connection_are_the_same(server: Running) -> None:
    with server.connect() as client:
        assert {client.ask(request()).text for _ in range(5)} == {BODY}
        server.show(3)
        server.settle()
        assert client.ask(request()).text == '{"DocumentIncarnation":3,"Events":[]}'
    assert (server.server.counters.polls_2xx, server.server.counters.accepted) == (6, 1)


# /metadata/instance and /metadata/versions


def test_a_vm_is_described(server: Running) -> None:
    reply = server.ask(INSTANCE)
    assert reply["Content-Type"] == JSON
    found = json.loads(reply.body)
    assert list(found) == ["compute", "network"]
    assert (found["compute"]["name"], found["compute"]["platformUpdateDomain"]) == ("web-0", "0")
    assert "127.1.0.21" in reply.text
    part = server.ask("/metadata/instance/compute?api-version=2017-04-02&format=json", source=DB_ADDRESS)
    assert json.loads(part.body)["name"] == "db"
    leaf = server.ask(NAME)
    assert (leaf.status, leaf.text, leaf["Content-Type"]) == (200, "web-0", "text/plain; charset=utf-8")
    assert server.ask(NAME.replace("compute/name", "Compute/vmId").replace("text", "TEXT")).status == 200
    facts = Facts(location="norwayeast", tags={"team": "data"})
    server.publisher.scopes([publication.of(DB, vms=(replace(DB_VM, facts=facts, spot=True),))])
    server.settle()
    compute = json.loads(server.ask(INSTANCE, source=DB_ADDRESS).body)["compute"]
    assert (compute["location"], compute["tags"], compute["priority"]) == ("norwayeast", "team:data", "Spot")


def test_the_versions_are_listed_and_each_is_served(shared: Running) -> None:
    listed = json.loads(shared.ask(LISTED).body)["apiVersions"]
    assert listed == [version.name for version in versions.ALL[1:]]
    for name in listed:
        for place in ("instance", "scheduledevents"):
            assert shared.ask(f"/metadata/{place}?api-version={name}").status == 200


def test_a_vm_that_is_removed_while_it_sends_a_body_is_not_described(server: Running) -> None:
    with server.connect(DB_ADDRESS) as client:
        head = request(INSTANCE, headers=(TRUE, "Expect: 100-continue", "Content-Length: 2"))
        assert client.ask(head).status == 100
        server.publisher.scopes([Publication(key=DB.key)])
        server.settle()
        assert client.ask(b"{}").status == 404
