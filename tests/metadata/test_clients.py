"""Published clients replayed header for header, real ones, and both at the address that they expect."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.metadata.running import APPROVAL, EVENT_ID, PATH, Running, running

from forenotice.metadata.options import Options

ROOT = Path(__file__).parents[2]
LENGTH = f"Content-Length: {len(APPROVAL)}"


@pytest.fixture
def server() -> Iterator[Running]:
    """Every caller is web-0."""
    with running(options=Options(default_vm="web-0")) as server:
        yield server


HOST = "Host: 169.254.169.254"
FORM = "Content-Type: application/x-www-form-urlencoded"
URLLIB = "Accept-Encoding: identity"
REQUESTS = "User-Agent: python-requests/2.25.1 | Accept-Encoding: gzip, deflate | Accept: */* | Connection: keep-alive"
POWERSHELL = "User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.17763.2931"
POWERSHELL_7 = (
    "User-Agent: Mozilla/5.0 (Windows NT 10.0; Microsoft Windows 10.0.17763; en-US) PowerShell/7.1.3 | Metadata: true"
)
CURL = "User-Agent: curl/7.68.0 | Accept: */* | Metadata:true"
URLLIB_3 = "User-Agent: Python-urllib/3.8 | Metadata: true | Connection: close"
URLLIB_2 = "Connection: close | Metadata: true | User-Agent: Python-urllib/2.7"
GO = "User-Agent: Go-http-client/1.1 | Metadata: true | Accept-Encoding: gzip"
EXPECT = "Expect: 100-continue | Connection: Keep-Alive"
EVENTS = "/metadata/scheduledevents?api-version="

GETS = {
    "python urllib": (f"{PATH} HTTP/1.1", URLLIB, HOST, URLLIB_3),
    "python 2 urllib2": (f"{EVENTS}2017-08-01 HTTP/1.1", URLLIB, HOST, URLLIB_2),
    "python requests": (f"{EVENTS}2019-08-01 HTTP/1.1", HOST, REQUESTS, "Metadata: true"),
    "PowerShell Invoke-RestMethod": (f"{PATH} HTTP/1.1", "Metadata: true", POWERSHELL, HOST, "Connection: Keep-Alive"),
    ".NET WebClient": (f"{EVENTS}2017-03-01 HTTP/1.1", "Metadata: true", HOST, "Connection: Keep-Alive"),
    "curl": (f"{PATH} HTTP/1.1", HOST, CURL),
    "Go, another spelling of the path": ("/metadata/scheduledEvents?api-version=2017-11-01 HTTP/1.1", HOST, GO),
    "Node": (f"{PATH} HTTP/1.1", "metadata: true", HOST, "Connection: close"),
    "through an HTTP proxy setting": (
        f"http://169.254.169.254{PATH} HTTP/1.1",
        HOST,
        "Metadata: true | Proxy-Connection: Keep-Alive",
    ),
    "HTTP/1.0": (f"{PATH} HTTP/1.0", "Metadata: true"),
}
POSTS = {
    "python urllib": (f"{PATH} HTTP/1.1", URLLIB, FORM, LENGTH, HOST, URLLIB_3),
    "python requests": (
        f"{EVENTS}2019-08-01 HTTP/1.1",
        HOST,
        REQUESTS,
        "Metadata: true",
        LENGTH,
        "Content-Type: application/json",
    ),
    "PowerShell 7": (f"{PATH} HTTP/1.1", HOST, POWERSHELL_7, FORM, LENGTH),
    "curl": (f"{PATH} HTTP/1.1", HOST, CURL, LENGTH, FORM),
    "no content type": (f"{PATH} HTTP/1.1", HOST, "Metadata: true", LENGTH),
    "PowerShell 5 Invoke-RestMethod": (f"{PATH} HTTP/1.1", "Metadata: true", POWERSHELL, FORM, HOST, LENGTH, EXPECT),
    ".NET WebClient, without the header": (
        f"{EVENTS}2017-03-01 HTTP/1.1",
        "Content-Type: application/json",
        HOST,
        LENGTH,
        "Expect: 100-continue",
    ),
}


def head(method: str, parts: tuple[str, ...]) -> bytes:
    return f"{method} {' | '.join(parts)}".replace(" | ", "\r\n").encode() + b"\r\n\r\n"


@pytest.mark.parametrize("name", GETS)
def test_a_published_client_reads(server: Running, name: str) -> None:
    with server.connect() as client:
        reply = client.ask(head("GET", GETS[name]))
        assert reply.status == 200
        (event,) = json.loads(reply.body)["Events"]
        assert event["EventId"] == EVENT_ID


@pytest.mark.parametrize("name", POSTS)
def test_a_published_client_approves(server: Running, name: str) -> None:
    sent = head("POST", POSTS[name])
    with server.connect() as client:
        if b"Expect:" in sent:
            assert client.ask(sent).status == 100
            sent = b""
        assert client.ask(sent + APPROVAL).status == 200
        assert [approval.vm for approval in server.guests.approvals] == ["web-0"]


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is needed for this test: install it"
    return found


def test_curl(server: Running, tmp_path: Path) -> None:
    url, tag = server.url + PATH, str(tmp_path / "etag")

    def curl(*flags: str) -> str:
        command = [
            program("curl"),
            "-sS",
            "--fail",
            "--noproxy",
            "*",
            "--max-time",
            "10",
            "-H",
            "Metadata:true",
            *flags,
        ]
        return subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout

    every: list[list[str]] = [[], ["--http1.0"], ["--http2"], ["-H", "Expect: 100-continue"]]
    for flags in every:
        assert EVENT_ID in curl(*flags)
        assert curl(*flags, "-d", APPROVAL.decode()) == ""
        assert '"Events":[]' in curl(*flags, "--interface", "127.1.0.31")
    assert EVENT_ID in curl("--etag-save", tag)
    assert curl("--etag-compare", tag) == ""
    assert curl("-H", "Transfer-Encoding: chunked", "-d", APPROVAL.decode()) == ""
    assert len(server.guests.approvals) == len(every) + 1


def test_urllib_and_requests(server: Running) -> None:
    url = server.url + PATH
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for body, expected in ((None, EVENT_ID.encode()), (APPROVAL, b"")):
        with opener.open(urllib.request.Request(url, body, {"Metadata": "true"}), timeout=60) as reply:
            assert expected in reply.read()
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Metadata"] = "true"
        first = session.get(url, timeout=60)
        assert first.json()["DocumentIncarnation"] == 2
        again = session.get(url, headers={"If-None-Match": first.headers["ETag"]}, timeout=60)
        assert again.status_code == 304
        assert session.post(url, json=json.loads(APPROVAL), timeout=60).status_code == 200
        assert session.get(f"{server.url}/metadata/versions", timeout=60).ok
    assert server.server.counters.accepted == 3
    assert len(server.guests.approvals) == 2


FETCH = """
const [url, body] = process.argv.slice(1);
const headers = { Metadata: "true" };
const read = await fetch(url, { headers });
const approved = await fetch(url, { method: "POST", headers, body });
console.log(JSON.stringify([read.status, await read.json(), approved.status, await approved.text()]));
"""


def test_node_fetch(server: Running) -> None:
    command = [program("node"), "--input-type=module", "-e", FETCH, "--", server.url + PATH, APPROVAL.decode()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    status, document, approved, empty = json.loads(done.stdout)
    assert (status, document["DocumentIncarnation"], approved, empty) == (200, 2, 200, "")
    assert len(server.guests.approvals) == 1


def test_unmodified_clients_at_the_address_that_they_expect() -> None:
    """In a network namespace of its own, so that nothing is ever sent to that address outside."""
    unshare = [program("unshare"), "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode and not os.environ.get("CI"):
        pytest.skip("this system does not permit network namespaces (run as root, or allow user namespaces)")
    command = [*unshare, sys.executable, "-m", "tests.metadata.in_namespace"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["served"]), done.stdout + done.stderr
