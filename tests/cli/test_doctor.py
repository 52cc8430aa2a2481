"""`forenotice guest doctor`: what it finds, what it says about it, and when it fails."""

import json
import re
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.client.older import WORDS, refusal
from tests.client.samples import EVENT, OTHER, document
from tests.client.scripted import Asked, answer, scripted
from tests.metadata.running import running

from forenotice.cli.doctor import Check, Doctor, Level, proxy
from forenotice.cli.main import main
from forenotice.client import Client
from forenotice.clock import SystemClock
from forenotice.metadata.options import Options
from forenotice.settings import Address, Listener
from forenotice.wire import dates

WEB_0 = Listener(at=Address(host="127.0.0.1", port=0), vm="web-0")
NEWEST = b'{"error":"Bad request. api-version","newest-versions":["2031-01-01","2020-07-01"]}'

Script = Callable[[Asked], bytes | None]


def examined(url: str, **environ: str) -> dict[str, Check]:
    with Client(url) as client:
        found = list(Doctor(client, environ, spacing=0).checks())
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def examined_with(script: Script) -> dict[str, Check]:
    with scripted(lambda asked, ended: script(asked)) as server:
        return examined(server.url)


def azure(asked: Asked, ahead: int = 0) -> bytes:
    """As the real service answers, as far as is known: it does not wait."""
    date = f"Date: {dates.http(SystemClock().now() + timedelta(seconds=ahead))}"
    if asked.headers.get("metadata") != "true":
        return answer("400 Bad Request", b"{}", date)
    if asked.target.startswith("/metadata/instance"):
        return answer("200 OK", b"WestNO_0", date)
    if "1900" in asked.target:
        return answer("400 Bad Request", NEWEST, date)
    return answer("200 OK", document(EVENT, OTHER), date, 'ETag: "2"')


def verdicts(checks: dict[str, Check]) -> dict[str, str]:
    return {name: str(check.level) for name, check in checks.items() if check.level is not Level.OK}


def test_our_own_server_is_healthy() -> None:
    with running(listeners=[WEB_0]) as server:
        url = server.url
        found = examined(url)
    assert verdicts(found) == {}
    assert list(found) == ["endpoint", "proxy", "route", "header", "version", "clock", "rate", "long poll", "name"]
    assert found["endpoint"].said == f"{url} answers (given)"
    assert found["long poll"].said.startswith("supported")
    assert found["name"].said == "web-0 (the endpoint), named by 1 of 1 events now"


def test_azure_is_healthy() -> None:
    found = examined_with(azure)
    assert verdicts(found) == {}
    assert found["long poll"].said == "not supported: polled once a second"
    assert found["version"].said == "api-version 2020-07-01 is accepted; 2031-01-01 is known, too"
    assert found["name"].said == "WestNO_0 (the endpoint), named by 1 of 2 events now"


def test_an_emulator_is_told_from_the_real_thing() -> None:
    found = examined_with(
        lambda asked: answer(body=document()) if "scheduledevents" in asked.target else answer("404 No")
    )
    assert verdicts(found) == {"header": "warning", "version": "warning", "name": "warning"}
    assert found["header"].said == "a request without `Metadata: true` gets 200, not 400"
    host = socket.gethostname().partition(".")[0]
    assert found["name"].said == f"{host} (host name), no event is announced now"
    assert "FORENOTICE_NAME" in found["name"].advice


@pytest.mark.parametrize(
    ("ahead", "said"), [(500, r"is (499|500) s ahead of this one"), (-90, r"is (90|91) s behind this")]
)
def test_a_clock_that_differs(ahead: int, said: str) -> None:
    found = examined_with(lambda asked: azure(asked, ahead))
    assert verdicts(found) == {"clock": "warning"}
    assert re.search(said, found["clock"].said)


def test_too_many_questions() -> None:
    def busy(asked: Asked) -> bytes:
        return answer("429 Too Many", b"", "Retry-After: 1") if asked.number in (5, 6) else azure(asked)

    found = examined_with(busy)
    assert verdicts(found) == {"rate": "warning"}
    assert "2 refused (429)" in found["rate"].said


def test_an_endpoint_that_does_not_know_this_vm() -> None:
    with running(options=Options(rate=None, burst=None)) as server:
        found = examined(server.url)
    assert verdicts(found) == {"endpoint": "problem", "version": "problem"}
    assert "No VM is known at the address" in found["endpoint"].said


def test_a_version_that_is_not_known() -> None:
    found = examined_with(lambda asked: answer("400 Bad Request", NEWEST))
    assert found["version"].said == "api-version 2020-07-01 gets 400; known are 2031-01-01, 2020-07-01"


@pytest.mark.parametrize(
    ("known", "lacking"),
    [
        ("2019-08-01", "DurationInSeconds"),
        ("2017-08-01", "Description, EventSource, DurationInSeconds, Preempt, Terminate"),
    ],
)
def test_an_older_endpoint_is_examined_in_its_own_version(known: str, lacking: str) -> None:
    def older(asked: Asked) -> bytes:
        if "api-version=20" in asked.target and known not in asked.target and "instance" not in asked.target:
            return refusal(WORDS, [known])
        return azure(asked)

    found = examined_with(older)
    assert verdicts(found) == {"version": "warning"}
    said = f"api-version {known} is the newest that the endpoint and forenotice both know: it has no {lacking}"
    assert found["version"].said == said


@pytest.mark.parametrize("odd", [b"[]", b"{", b'{"newest-versions":7}', b'{"newest-versions":[7]}'])
def test_odd_answers_do_no_harm(odd: bytes) -> None:
    assert verdicts(examined_with(lambda asked: answer("400 Bad Request", odd)))["version"] == "problem"


def test_an_answer_that_comes_to_nothing() -> None:
    found = examined_with(lambda asked: azure(asked) if asked.number == 0 else None)
    assert verdicts(found)["route"] == "problem"
    assert verdicts(found)["name"] == "problem"


def test_nobody_there_is_a_problem_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert main(["guest", "doctor", "--endpoint", "http://127.0.0.1:9"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    endpoint, proxied, route = out.splitlines()
    assert endpoint.startswith("problem  endpoint  cannot reach the metadata endpoint http://127.0.0.1:9")
    assert proxied.startswith("warning  proxy     http_proxy set")
    assert proxied.endswith("add 127.0.0.1 to NO_PROXY")
    assert route.startswith("problem  route     no response (connection refused): ")
    assert "secret" not in out


def test_json_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guest", "doctor", "--json", "--endpoint", "http://127.0.0.1:9"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is False
    assert said["checks"][0]["name"] == "endpoint"
    assert {check["level"] for check in said["checks"]} <= {"ok", "warning", "problem"}


def test_the_command_is_careful_with_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    times: list[float] = []
    lock = threading.Lock()

    def noted(asked: Asked) -> bytes:
        with lock:
            times.append(SystemClock().now().timestamp())
        return azure(asked)

    with scripted(lambda asked, ended: noted(asked)) as server:
        assert main(["guest", "doctor", "--endpoint", server.url, "--name", "Other"]) == 0
    assert "named by 1 of 2 events now" in capsys.readouterr().out
    spread = sorted(times)
    assert all(later - first > 0.9 for first, later in zip(spread, spread[5:], strict=False))


@pytest.mark.parametrize(
    ("no_proxy", "spared"),
    [
        ("169.254.169.254", True),
        ("localhost,169.254.169.254", True),
        ("169.254.0.0/16", True),
        ("*", True),
        ("", False),
        ("localhost 10.0.0.0/8", False),
        ("example.org", False),
    ],
)
def test_proxies_that_others_would_trip_over(no_proxy: str, spared: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        check = proxy("169.254.169.254", {"HTTP_PROXY": "http://p", name: no_proxy})
        assert (check.level is Level.OK) is spared
    assert proxy("169.254.169.254", {}).level is Level.OK
