"""`forenotice guest`, inside a VM: events, approvals, and what the doctor finds."""

import json
import re
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.cli.conftest import Ran, Run
from tests.cli.stranger import Stranger, answer, asked_header, stranger
from tests.client import samples
from tests.client.older import WORDS, refusal
from tests.client.scripted import Asked, scripted
from tests.client.scripted import answer as respond
from tests.metadata.running import running

from forenotice.cli.guest import Check, Level, examine, proxy
from forenotice.client import Client
from forenotice.clock import SystemClock
from forenotice.metadata.options import Options
from forenotice.settings import Address, Listener
from forenotice.wire import dates

EVENT = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["WestNO_0", "WestNO_1"],
    "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
    "Description": "Virtual machine is being paused.",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
FEW = {"EventId": "x", "EventStatus": "Scheduled", "EventType": "Reboot", "Later": 1}


def document(*events: dict[str, Any]) -> bytes:
    return answer("200 OK", json.dumps({"DocumentIncarnation": 2, "Events": events}).encode())


def events(run: Run, server: Stranger, *more: str) -> Ran:
    return run("guest", "events", "--endpoint", server.url, *more)


def test_what_is_announced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # No proxy is used.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with stranger(document(EVENT)) as server:
        ran, raw = events(run, server), events(run, server, "--json")
    [request, _] = server.asked
    assert request.startswith(b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1")
    assert asked_header(request, "Metadata") == ["true"]
    for text in ("ago (2022-04-11 22:26:58 UTC)", "WestNO_0, WestNO_1", "5 s"):
        assert text in ran.out
    assert raw.json == {"DocumentIncarnation": 2, "Events": [EVENT]}


@pytest.mark.parametrize(
    ("event", "text", "is_shown"),
    [
        (FEW | {"NotBefore": "2022-04-11T22:26:58Z"}, "(2022-04-11 22:26:58 UTC)", True),
        (EVENT | {"NotBefore": "soon"}, " soon ", True),
        (EVENT | {"EventStatus": "Started", "NotBefore": ""}, "UTC", False),
        (EVENT | {"Description": "\x1b[2Jgone"}, "\x1b", False),
    ],
)
def test_dates_and_descriptions(run: Run, event: dict[str, Any], text: str, is_shown: bool) -> None:
    with stranger(document(event)) as server:
        assert (text in events(run, server).out) is is_shown


def test_only_what_is_about_this_vm(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = EVENT | {"EventId": "another", "Resources": ["other"]}
    with stranger(document(EVENT, other)) as server:
        raw = events(run, server, "--mine", "--json", "--name", "westno_1")
        monkeypatch.setenv("FORENOTICE_NAME", "nobody")
        ran = events(run, server, "--mine")
    assert raw.json == {"DocumentIncarnation": 2, "Events": [EVENT]}
    assert ran.out == "Nothing is announced to this VM (incarnation 2).\n"
    monkeypatch.delenv("FORENOTICE_NAME")
    with stranger(answer("200 OK", b"  \n")) as server:
        assert events(run, server).out == "Nothing is announced (incarnation 0).\n"
    with stranger(document(EVENT), answer("200 OK", b"WestNO_0")) as server:
        assert "WestNO_0" in events(run, server, "--mine").out
    assert server.asked[1].startswith(b"GET /metadata/instance/compute/name?")


STRANGE = [
    (answer("200 OK", b"<html>"), "gave no Scheduled Events document"),
    (answer("400 Bad Request", b'{"error": "no such version"}'), "answered 400: no such version"),
    (answer("404 Not Found", b'{"error": {"code": "x", "message": "y"}}'), "is the control plane's: give --endpoint"),
    (answer("302 Found", b"", "Location: http://127.0.0.1:9/"), "answered 302: Found"),
    (b"", "cannot reach the metadata endpoint"),
]


@pytest.mark.parametrize(("response", "sentence"), STRANGE)
def test_an_error_is_not_no_events(run: Run, response: bytes, sentence: str) -> None:
    with stranger(response) as server:
        ran = events(run, server)
    assert (ran.code, ran.err.count("\n"), sentence in ran.err) == (1, 1, True)


def test_approving(run: Run) -> None:
    with stranger(answer("200 OK")) as server:
        ran = run("guest", "approve", "id-1", "id-2", "--endpoint", server.url)
        raw = run("guest", "approve", "id-1", "--endpoint", server.url, "--json")
    assert ran.out == "Approved id-1.\nApproved id-2.\n"
    assert raw.json == {"approved": ["id-1"]}
    head, _, body = server.asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1")
    assert json.loads(body) == {"StartRequests": [{"EventId": "id-1"}, {"EventId": "id-2"}]}
    with stranger(answer("400 Bad Request", b'{"error": "no such event"}')) as server:
        refused = run("guest", "approve", "id-1", "--endpoint", server.url)
    assert (refused.code, refused.err) == (1, f"forenotice: {server.url} answered 400: no such event\n")


# The doctor

NEWEST = b'{"error":"Bad request. api-version","newest-versions":["2031-01-01","2020-07-01"]}'
Script = Callable[[Asked], bytes | None]


def examined(url: str) -> dict[str, Check]:
    with Client(url) as client:
        found = list(examine(client, {}, spacing=0))
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def examined_with(script: Script) -> dict[str, Check]:
    with scripted(lambda asked, ended: script(asked)) as server:
        return examined(server.url)


def azure(asked: Asked, ahead: int = 0) -> bytes:
    """As the real service responds, as far as is known: it does not wait."""
    date = f"Date: {dates.http(SystemClock().now() + timedelta(seconds=ahead))}"
    if asked.headers.get("metadata") != "true":
        return respond("400 Bad Request", b"{}", date)
    if asked.target.startswith("/metadata/instance"):
        return respond("200 OK", b"WestNO_0", date)
    if "1900" in asked.target:
        return respond("400 Bad Request", NEWEST, date)
    return respond("200 OK", samples.document(samples.EVENT, samples.OTHER), date, 'ETag: "2"')


def complaints(checks: dict[str, Check]) -> dict[str, str]:
    return {name: str(check.level) for name, check in checks.items() if check.level is not Level.OK}


def test_our_own_server_is_healthy() -> None:
    with running(listeners=[Listener(at=Address(host="127.0.0.1", port=0), vm="web-0")]) as server:
        url = server.url
        found = examined(url)
    assert complaints(found) == {}
    assert list(found) == ["endpoint", "proxy", "route", "header", "version", "clock", "rate", "long poll", "name"]
    assert found["endpoint"].said == f"{url} answers (given)"
    assert found["long poll"].said.startswith("supported")
    assert found["name"].said == "web-0 (the endpoint), named by 1 of 1 events now"


def test_azure_is_healthy() -> None:
    found = examined_with(azure)
    assert complaints(found) == {}
    assert found["long poll"].said == "not supported: polled once a second"
    assert found["version"].said == "api-version 2020-07-01 is accepted; 2031-01-01 is known, too"
    assert found["name"].said == "WestNO_0 (the endpoint), named by 1 of 2 events now"


def test_an_emulator_is_told_from_the_real_platform() -> None:
    found = examined_with(
        lambda asked: respond(body=samples.document()) if "scheduledevents" in asked.target else respond("404 No")
    )
    assert complaints(found) == {"header": "warning", "version": "warning", "name": "warning"}
    assert found["header"].said == "a request without `Metadata: true` gets 200, not 400"
    host = socket.gethostname().partition(".")[0]
    assert found["name"].said == f"{host} (host name), no event is announced now"
    assert "FORENOTICE_NAME" in found["name"].advice


def busy(asked: Asked) -> bytes:
    return respond("429 Too Many", b"", "Retry-After: 1") if asked.number in (5, 6) else azure(asked)


def knows(known: str) -> Script:
    def script(asked: Asked) -> bytes:
        older = "api-version=20" in asked.target and known not in asked.target and "instance" not in asked.target
        return refusal(WORDS, [known]) if older else azure(asked)

    return script


LACKS = r"is the newest that the endpoint and forenotice both know: it has no"


@pytest.mark.parametrize(
    ("script", "name", "level", "sentence"),
    [
        (lambda asked: azure(asked, 500), "clock", "warning", r"is (499|500) s ahead of this one"),
        (lambda asked: azure(asked, -90), "clock", "warning", r"is (90|91) s behind this"),
        (busy, "rate", "warning", r"2 refused \(429\)"),
        (knows("2019-08-01"), "version", "warning", f"api-version 2019-08-01 {LACKS} DurationInSeconds$"),
        (
            knows("2017-08-01"),
            "version",
            "warning",
            f"{LACKS} Description, EventSource, DurationInSeconds, Preempt, Terminate$",
        ),
    ],
)
def test_one_thing_is_wrong(script: Script, name: str, level: str, sentence: str) -> None:
    found = examined_with(script)
    assert complaints(found) == {name: level}
    assert re.search(sentence, found[name].said)


def test_an_endpoint_that_does_not_know_this_vm() -> None:
    with running(options=Options(rate=None, burst=None)) as server:
        found = examined(server.url)
    assert complaints(found) == {"endpoint": "problem", "version": "problem"}
    assert "No VM is known at the address" in found["endpoint"].said


@pytest.mark.parametrize("odd", [b"[]", b"{", b'{"newest-versions":7}', b'{"newest-versions":[7]}', NEWEST])
def test_a_version_that_is_refused(odd: bytes) -> None:
    found = examined_with(lambda asked: respond("400 Bad Request", odd))
    assert complaints(found)["version"] == "problem"
    known = "; known are 2031-01-01, 2020-07-01" if odd is NEWEST else ""
    assert found["version"].said == f"api-version 2020-07-01 gets 400{known}"


def test_a_connection_that_breaks() -> None:
    found = complaints(examined_with(lambda asked: azure(asked) if asked.number == 0 else None))
    assert (found["route"], found["name"]) == ("problem", "problem")


def test_no_endpoint_is_a_problem_and_ends_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    ran = run("guest", "doctor", "--endpoint", "http://127.0.0.1:9", failing=1)
    endpoint, proxied, route = ran.out.splitlines()
    assert endpoint.startswith("problem  endpoint  cannot reach the metadata endpoint http://127.0.0.1:9")
    assert "(connection refused): is this inside a VM?" in endpoint
    assert proxied.startswith("warning  proxy     http_proxy set")
    assert proxied.endswith("add 127.0.0.1 to NO_PROXY")
    assert route.startswith("problem  route     no response (connection refused): ")
    assert ("secret" in ran.out, ran.err) == (False, "")
    found = run("guest", "doctor", "--json", "--endpoint", "http://127.0.0.1:9", failing=1).json
    assert (found["healthy"], found["checks"][0]["name"], found["checks"][0]["level"]) == (False, "endpoint", "problem")


def test_the_doctor_keeps_to_the_rate_limit(run: Run) -> None:
    times: list[float] = []
    lock = threading.Lock()

    def noted(asked: Asked) -> bytes:
        with lock:
            times.append(SystemClock().now().timestamp())
        return azure(asked)

    with scripted(lambda asked, ended: noted(asked)) as server:
        assert "named by 1 of 2 events now" in run("guest", "doctor", "--endpoint", server.url, "--name", "Other").out
    assert all(later - first > 0.9 for first, later in zip(sorted(times), sorted(times)[5:], strict=False))


@pytest.mark.parametrize(
    ("no_proxy", "spared"),
    [
        ("localhost,169.254.169.254", True),
        ("169.254.0.0/16", True),
        ("*", True),
        ("", False),
        ("localhost 10.0.0.0/8", False),
        ("example.org", False),
    ],
)
def test_proxies_that_other_clients_would_use(no_proxy: str, spared: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        check = proxy("169.254.169.254", {"HTTP_PROXY": "http://p", name: no_proxy})
        assert (check.level is Level.OK) is spared
    assert proxy("169.254.169.254", {}).level is Level.OK
