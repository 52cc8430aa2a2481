"""The endpoint: paths, versions, errors, and the order of the checks."""

import json
import socket
from datetime import UTC, datetime

import pytest
from tests.metadata.running import APPROVAL, DB_ADDRESS, EVENT_ID, PATH, Running, request, running, until

from forenotice.metadata.options import Limits, Options
from forenotice.wire import dates, versions

STRANGER = "127.9.9.9"
BODY = (
    '{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123","EventStatus":"Scheduled",'
    '"EventType":"Freeze","ResourceType":"VirtualMachine","Resources":["web-0"],'
    '"NotBefore":"Mon, 09 Mar 2026 12:15:00 GMT","Description":"Host server is undergoing maintenance.",'
    '"EventSource":"Platform","DurationInSeconds":9}]}'
)


def test_a_poll_gets_the_document_with_its_headers(shared: Running) -> None:
    reply = shared.ask()
    assert reply.status == 200
    assert reply.text == BODY
    assert reply["Content-Type"] == "application/json; charset=utf-8"
    assert reply["ETag"] == '"2-webtag"'
    assert reply["Forenotice-Epoch"] == "webtag"
    said = dates.parse(reply["Date"])
    assert said is not None
    assert abs((datetime.now(UTC) - said).total_seconds()) < 5


def test_each_scope_sees_its_own_document(shared: Running) -> None:
    assert shared.ask(source=DB_ADDRESS).text == '{"DocumentIncarnation":1,"Events":[]}'


@pytest.mark.parametrize("version", [version.name for version in versions.ALL])
def test_every_version_is_served(shared: Running, version: str) -> None:
    reply = shared.ask(f"/metadata/scheduledevents?api-version={version}")
    (event,) = json.loads(reply.body)["Events"]
    wanted = versions.lookup(version)
    assert wanted is not None
    assert tuple(event) == wanted.keys
    assert event["Resources"] == ["_web-0" if version == "2017-03-01" else "web-0"]


def test_the_first_version_can_have_the_dates_of_the_real_service(shared: Running) -> None:
    first = "/metadata/scheduledevents?api-version=2017-03-01"
    with running(options=Options(versions=versions.AS_SEEN)) as server:
        (seen,) = json.loads(server.ask(first).body)["Events"]
        assert server.ask().text == BODY
    (published,) = json.loads(shared.ask(first).body)["Events"]
    assert (seen["NotBefore"], published["NotBefore"]) == ("Mon, 09 Mar 2026 12:15:00 GMT", "2026-03-09T12:15:00Z")
    assert seen | {"NotBefore": ""} == published | {"NotBefore": ""}


@pytest.mark.parametrize(
    "target",
    [
        "/metadata/scheduledEvents?api-version=2020-07-01",
        "/METADATA/SCHEDULEDEVENTS?api-version=2020-07-01",
        "/metadata/scheduledevents/?api-version=2020-07-01",
        "/metadata/scheduled%65vents?api-version=2020-07-01",
        "/metadata/scheduledevents?API-Version=2020%2D07-01&other=1",
        "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01",
    ],
)
def test_targets_that_are_the_endpoint(shared: Running, target: str) -> None:
    assert shared.ask(target).text == BODY


@pytest.mark.parametrize(
    "target",
    [
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
    ],
)
def test_other_paths_are_not_found(shared: Running, target: str) -> None:
    reply = shared.ask(target)
    assert reply.status == 404
    assert reply["Content-Type"] == "application/json; charset=utf-8"
    assert list(json.loads(reply.body)) == ["error"]


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "FROBNICATE"])
def test_other_methods_are_not_allowed(shared: Running, method: str) -> None:
    reply = shared.ask(method=method)
    assert (reply.status, reply["Allow"]) == (405, "GET, POST")
    assert bool(reply.body) == (method != "HEAD")


@pytest.mark.parametrize("method", ["HEAD", "POST", "FROBNICATE"])
@pytest.mark.parametrize("path", ["/metadata/instance?api-version=2021-02-01", "/metadata/versions"])
def test_what_is_only_read_allows_only_get(shared: Running, path: str, method: str) -> None:
    reply = shared.ask(path, method=method, body=b"{}" if method == "POST" else None)
    assert (reply.status, reply["Allow"]) == (405, "GET")


@pytest.mark.parametrize("header", ["Metadata: true", "metadata:true", "METADATA:   TRUE  ", "Metadata: True"])
def test_the_header_counts_in_any_case(shared: Running, header: str) -> None:
    assert shared.ask(headers=(header,)).status == 200


@pytest.mark.parametrize("headers", [(), ("Metadata: false",), ("Metadata:",), ("Metadata: true", "Metadata: no")])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("version", ["2017-08-01", "2020-07-01"])
def test_without_the_header_a_request_is_refused(
    shared: Running, headers: tuple[str, ...], method: str, version: str
) -> None:
    body = APPROVAL if method == "POST" else None
    reply = shared.ask(f"/metadata/scheduledevents?api-version={version}", method=method, headers=headers, body=body)
    assert reply.status == 400
    assert json.loads(reply.body) == {"error": "Bad request. Required metadata header not specified"}


def test_the_first_version_asks_for_the_header_on_get_only(server: Running) -> None:
    target = "/metadata/scheduledevents?api-version=2017-03-01"
    assert server.ask(target, headers=()).status == 400
    assert server.ask(target, method="POST", headers=(), body=APPROVAL).status == 200
    assert [approval.event_ids for approval in server.guests.approvals] == [(EVENT_ID,)]


def test_what_came_through_a_proxy_is_refused(shared: Running) -> None:
    reply = shared.ask(headers=("Metadata: true", "X-Forwarded-For: 10.0.0.4"))
    assert reply.status == 400
    assert "proxy" in reply.text


@pytest.mark.parametrize(
    "query", ["api-version=2020-07-01&api-version=2020-07-01", "api-version=2020-07-01&x=1&X=2", "x=&x=&api-version=1"]
)
def test_a_parameter_given_twice_is_refused(shared: Running, query: str) -> None:
    reply = shared.ask(f"/metadata/scheduledevents?{query}")
    assert reply.status == 400
    assert "twice" in reply.text


@pytest.mark.parametrize(
    "target",
    [
        "/metadata/scheduledevents",
        "/metadata/scheduledevents?api-version=",
        "/metadata/scheduledevents?api-version=latest",
        "/metadata/scheduledevents?api-version=2020-07-02",
        "/metadata/scheduledevents?version=2020-07-01",
        "/metadata/latest/scheduledevents",
        "/metadata/latest/scheduledevents?api-version=2020-07-01",
        "/metadata/2017-08-01/scheduledevents",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_missing_or_unknown_version_is_told_the_newest(shared: Running, target: str, method: str) -> None:
    reply = shared.ask(target, method=method, body=APPROVAL if method == "POST" else None)
    assert reply.status == 400
    assert json.loads(reply.body) == {
        "error": "Bad request. api-version is invalid or was not specified in the request.",
        "newest-versions": ["2020-07-01", "2019-08-01", "2019-04-01"],
    }


@pytest.mark.parametrize("header", ["Forwarded: for=10.0.0.4", "Via: 1.1 proxy"])
@pytest.mark.parametrize("target", [PATH, "/metadata/instance?api-version=2021-02-01", "/metadata/versions"])
def test_other_signs_of_a_proxy_are_refused_too(shared: Running, header: str, target: str) -> None:
    reply = shared.ask(target, headers=("Metadata: true", header))
    assert reply.status == 400
    assert "through a proxy" in reply.text


def asked_for(host: str | None, target: str = PATH, version: str = "1.1") -> bytes:
    line = "" if host is None else f"Host: {host}\r\n"
    return f"GET {target} HTTP/{version}\r\n{line}Metadata: true\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (asked_for("169.254.169.254"), 200),
        (asked_for("169.254.169.254:80"), 200),
        (asked_for("[fd00::1]:8254"), 200),
        (asked_for("localhost:8254"), 200),
        (asked_for("Metadata.Example"), 200),
        (asked_for("rebound.example:8254"), 400),
        (asked_for(""), 400),
        (asked_for(None), 400),
        (asked_for(None, version="1.0"), 200),
        (asked_for("rebound.example", version="1.0"), 400),
        (asked_for("127.0.0.1", f"http://169.254.169.254{PATH}"), 200),
        (asked_for("127.0.0.1", f"http://[::1]:80{PATH}"), 200),
        (asked_for("127.0.0.1", f"http://rebound.example{PATH}"), 400),
        (asked_for("rebound.example", f"http://127.0.0.1{PATH}"), 400),
    ],
)
def test_a_name_that_leads_a_browser_here_is_refused(data: bytes, status: int) -> None:
    with running(options=Options(names=frozenset({"metadata.example"}))) as server, server.connect() as client:
        for _ in range(2):
            client.send(data)
            reply = client.reply()
            assert reply.status == status, reply
            if status == 400:
                assert "Host" in reply.text
            if "connection" in reply.headers:
                break


def test_a_caller_that_is_no_vm_is_not_found(shared: Running) -> None:
    reply = shared.ask(source=STRANGER)
    assert reply.status == 404
    assert "No VM is known" in reply.text


def test_the_gates_come_in_their_order() -> None:
    """Each request fails at one gate and at all later ones; what is answered shows which came first."""
    with running(options=Options(rate=0.001, burst=1)) as server:
        forwarded = ("X-Forwarded-For: 10.0.0.4",)
        bad_body = b"nonsense"
        bad = "/metadata/scheduledevents?api-version=1"

        def status(target: str, method: str, headers: tuple[str, ...], source: str, body: bytes | None) -> str:
            reply = server.ask(target, method=method, headers=headers, source=source, body=body)
            return f"{reply.status} {json.loads(reply.body or b'{}').get('error', '')}"

        assert status("/elsewhere", "PUT", forwarded, STRANGER, bad_body).startswith("404 Not found. The paths")
        assert status(bad, "PUT", forwarded, STRANGER, bad_body).startswith("405")
        assert "proxy" in status(bad, "POST", forwarded, STRANGER, bad_body)
        assert "proxy" in status(bad, "POST", ("Via: 1.1 proxy",), STRANGER, bad_body)
        assert "twice" in status(f"{bad}&x=1&x=1", "POST", (), STRANGER, bad_body)
        assert "metadata header" in status(bad, "POST", (), STRANGER, bad_body)
        assert "api-version" in status(bad, "POST", ("Metadata: true",), STRANGER, bad_body)
        assert "No VM" in status(PATH, "POST", ("Metadata: true",), STRANGER, bad_body)
        assert "not JSON" in status(PATH, "POST", ("Metadata: true",), DB_ADDRESS, bad_body)
        assert status(PATH, "POST", ("Metadata: true",), DB_ADDRESS, bad_body).startswith("429")
        assert status(PATH, "GET", ("Metadata: true",), DB_ADDRESS, None).startswith("200")
        assert status(PATH, "GET", ("Metadata: true",), DB_ADDRESS, None).startswith("429")


def test_beyond_its_rate_a_vm_is_told_when_to_come_back() -> None:
    with running(options=Options(rate=0.5, burst=3)) as server:
        with server.connect() as client:
            for _ in range(3):
                client.send(request())
                assert client.reply().status == 200
            client.send(request())
            refused = client.reply()
            assert refused.status == 429
            assert (refused["Retry-After"], refused["Connection"]) == ("2", "close")
            assert list(json.loads(refused.body)) == ["error"]
            assert client.is_closed()
        # Another VM of the same scope has its own bucket, and so have approvals.
        assert server.ask(source="127.1.0.22").status == 200
        assert server.ask(method="POST", body=APPROVAL).status == 200
        assert server.server.counters.polls_4xx == 1


def test_nothing_is_read_of_a_caller_behind_the_request_that_is_over_its_rate() -> None:
    with running(options=Options(rate=0.5, burst=3)) as server, server.connect() as client:
        client.send(request() * 2000 + b"and then no HTTP at all\r\n\r\n")
        assert [client.reply().status for _ in range(4)] == [200, 200, 200, 429]
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()
        counters = server.server.counters
        assert (counters.polls_2xx, counters.polls_4xx) == (3, 1)


def test_a_flood_that_is_refused_is_not_received_without_end() -> None:
    limits = Limits(linger_seconds=30)
    with running(options=Options(rate=0.5, burst=1, limits=limits)) as server, server.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(request() * 200_000)
        client.socket.settimeout(10)
        assert [client.reply().status for _ in range(2)] == [200, 429]


def test_the_rate_recovers() -> None:
    with running(options=Options(rate=10, burst=1)) as server:
        assert [server.ask().status, server.ask().status] == [200, 429]
        until(lambda: server.ask().status == 200)


def test_repeated_polls_on_one_connection_are_the_same(server: Running) -> None:
    with server.connect() as client:
        for _ in range(5):
            client.send(request())
            assert client.reply().text == BODY
        server.show(3)
        server.settle()
        client.send(request())
        assert client.reply().text == '{"DocumentIncarnation":3,"Events":[]}'
    counters = server.server.counters
    assert (counters.polls_2xx, counters.accepted) == (6, 1)
