"""`forenotice guest`, inside a VM."""

import json
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.cli.stranger import Stranger, answer, asked_header, stranger
from tests.client.older import OLDEST, knowing, refusal, shown
from tests.client.scripted import scripted

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


def document(*events: dict[str, Any]) -> bytes:
    return answer("200 OK", json.dumps({"DocumentIncarnation": 2, "Events": events}).encode())


def events(run: Run, server: Stranger, *more: str) -> Any:
    return run("guest", "events", "--endpoint", server.url, *more)


def test_what_is_announced(run: Run) -> None:
    with stranger(document(EVENT)) as server:
        ran = events(run, server)
        raw = events(run, server, "--json")
    [request, _] = server.asked
    assert request.startswith(b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1")
    assert asked_header(request, "Metadata") == ["true"]
    assert "ago (2022-04-11 22:26:58 UTC)" in ran.out
    assert "WestNO_0, WestNO_1" in ran.out
    assert "5 s" in ran.out
    assert raw.json == {"DocumentIncarnation": 2, "Events": [EVENT]}


FEW = {"EventId": "x", "EventStatus": "Scheduled", "EventType": "Reboot", "Later": 1}


@pytest.mark.parametrize(
    ("event", "text", "is_shown"),
    [
        (FEW | {"NotBefore": "2022-04-11T22:26:58Z"}, "(2022-04-11 22:26:58 UTC)", True),
        (FEW | {"NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT"}, "(2022-04-11 22:26:58 UTC)", True),
        (EVENT | {"EventStatus": "Started", "NotBefore": ""}, "UTC", False),
        (EVENT | {"Description": "\x1b[2Jgone"}, "\x1b", False),
    ],
)
def test_dates_and_descriptions(run: Run, event: dict[str, Any], text: str, is_shown: bool) -> None:
    with stranger(document(event)) as server:
        assert (text in events(run, server).out) is is_shown


def test_an_older_endpoint_and_what_it_does_not_tell(run: Run) -> None:
    with scripted(knowing([OLDEST], refusal(listed=[OLDEST]), Resources=["_WestNO_0"])) as server:
        ran = run("guest", "events", "--mine", "--endpoint", server.url)
        raw = run("guest", "events", "--json", "--endpoint", server.url)
        approved = run("guest", "approve", "id-1", "--endpoint", server.url)
    assert ran.out.splitlines()[1].endswith("(2022-04-11 22:26:58 UTC)")
    assert raw.json["Events"] == [shown(OLDEST, Resources=["_WestNO_0"])]
    assert approved.out == "Approved id-1.\n"


def test_a_time_that_cannot_be_read_hides_nothing(run: Run) -> None:
    odd, fine = EVENT | {"NotBefore": "soon"}, EVENT | {"EventId": "another"}
    with stranger(document(odd, fine)) as server:
        header, first, second = events(run, server).out.splitlines()
    assert header.startswith("event")
    assert " soon " in first
    assert "(2022-04-11 22:26:58 UTC)" in second


def test_only_what_is_about_this_vm(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = EVENT | {"EventId": "another", "Resources": ["other"]}
    with stranger(document(EVENT, other)) as server:
        raw = events(run, server, "--mine", "--json", "--name", "westno_1")
        monkeypatch.setenv("FORENOTICE_NAME", "nobody")
        ran = events(run, server, "--mine")
    assert raw.json == {"DocumentIncarnation": 2, "Events": [EVENT]}
    assert ran.out == "Nothing is announced to this VM (incarnation 2).\n"


def test_the_endpoint_says_what_is_about_this_vm(run: Run) -> None:
    with stranger(document(EVENT), answer("200 OK", b"WestNO_0")) as server:
        assert "WestNO_0" in events(run, server, "--mine").out
    assert server.asked[1].startswith(b"GET /metadata/instance/compute/name?")


@pytest.mark.parametrize("body", [b"", b"  \n", b'{"DocumentIncarnation":0,"Events":[]}'])
def test_nothing_is_announced(run: Run, body: bytes) -> None:
    with stranger(answer("200 OK", body)) as server:
        assert events(run, server).out == "Nothing is announced (incarnation 0).\n"


def test_no_proxy_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with stranger(document()) as server:
        monkeypatch.setenv("FORENOTICE_ENDPOINT", server.url)
        assert run("guest", "events").code == 0


STRANGE = [
    (answer("200 OK", b"<html>"), "gave no Scheduled Events document"),
    (answer("200 OK", b"\xff"), "gave no Scheduled Events document"),
    (answer("400 Bad Request", b'{"error": "no such version"}'), "answered 400: no such version"),
    (answer("404 Not Found", b"<html>"), "answered 404: Not Found"),
    (answer("404 Not Found", b'{"error": {"code": "x", "message": "y"}}'), "is the control plane's: give --endpoint"),
    (answer("503 Away"), "answered 503: Away"),
    (answer("302 Found", b"", "Location: http://127.0.0.1:9/"), "answered 302: Found"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "cannot reach the metadata endpoint"),
    (b"", "cannot reach the metadata endpoint"),
]


@pytest.mark.parametrize(("said", "sentence"), STRANGE)
def test_an_error_is_not_no_events(run: Run, said: bytes, sentence: str) -> None:
    with stranger(said) as server:
        ran = events(run, server)
    assert ran.code == 1
    assert sentence in ran.err
    assert ran.err.count("\n") == 1


def test_nobody_there(run: Run) -> None:
    ran = run("guest", "events", "--endpoint", "http://127.0.0.1:9")
    assert ran.code == 1
    assert "(connection refused): is this inside a VM?" in ran.err


def test_approving(run: Run) -> None:
    with stranger(answer("200 OK")) as server:
        ran = run("guest", "approve", "id-1", "id-2", "--endpoint", server.url)
        raw = run("guest", "approve", "id-1", "--endpoint", server.url, "--json")
    assert ran.out == "Approved id-1.\nApproved id-2.\n"
    assert raw.json == {"approved": ["id-1"]}
    request = server.asked[0]
    assert request.startswith(b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1")
    assert json.loads(request.partition(b"\r\n\r\n")[2]) == {
        "StartRequests": [{"EventId": "id-1"}, {"EventId": "id-2"}]
    }


def test_a_refused_approval_is_seen(run: Run) -> None:
    with stranger(answer("400 Bad Request", b'{"error": "no such event"}')) as server:
        ran = run("guest", "approve", "id-1", "--endpoint", server.url)
    assert (ran.code, ran.err) == (1, f"forenotice: {server.url} answered 400: no such event\n")
