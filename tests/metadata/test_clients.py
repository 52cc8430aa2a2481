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
    """Whoever calls is web-0."""
    with running(options=Options(default_vm="web-0")) as server:
        yield server


HOST = "Host: 169.254.169.254"
FORM = "Content-Type: application/x-www-form-urlencoded"
URLLIB = "Accept-Encoding: identity"
REQUESTS = "User-Agent: python-requests/2.25.1 | Accept-Encoding: gzip, deflate | Accept: */* | Connection: keep-alive"
POWERSHELL = "User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.17763.2931"
CURL = "User-Agent: curl/7.68.0 | Accept: */* | Metadata:true"
EVENTS = "/metadata/scheduledevents?api-version="


def request(*parts: str) -> bytes:
    return " | ".join(parts).replace(" | ", "\r\n").encode() + b"\r\n\r\n"


GETS = {
    "python urllib": request(
        f"GET {PATH} HTTP/1.1", URLLIB, HOST, "User-Agent: Python-urllib/3.8 | Metadata: true | Connection: close"
    ),
    "python 2 urllib2": request(
        f"GET {EVENTS}2017-08-01 HTTP/1.1",
        URLLIB,
        HOST,
        "Connection: close | Metadata: true | User-Agent: Python-urllib/2.7",
    ),
    "python requests": request(f"GET {EVENTS}2019-08-01 HTTP/1.1", HOST, REQUESTS, "Metadata: true"),
    "PowerShell Invoke-RestMethod": request(
        f"GET {PATH} HTTP/1.1", "Metadata: true", POWERSHELL, HOST, "Connection: Keep-Alive"
    ),
    ".NET WebClient": request(f"GET {EVENTS}2017-03-01 HTTP/1.1", "Metadata: true", HOST, "Connection: Keep-Alive"),
    "curl": request(f"GET {PATH} HTTP/1.1", HOST, CURL),
    "Go, another spelling of the path": request(
        "GET /metadata/scheduledEvents?api-version=2017-11-01 HTTP/1.1",
        HOST,
        "User-Agent: Go-http-client/1.1 | Metadata: true | Accept-Encoding: gzip",
    ),
    "Node": request(f"GET {PATH} HTTP/1.1", "metadata: true", HOST, "Connection: close"),
    "through an HTTP proxy setting": request(
        f"GET http://169.254.169.254{PATH} HTTP/1.1", HOST, "Metadata: true | Proxy-Connection: Keep-Alive"
    ),
    "HTTP/1.0": request(f"GET {PATH} HTTP/1.0", "Metadata: true"),
}
POSTS = {
    "python urllib": request(
        f"POST {PATH} HTTP/1.1",
        URLLIB,
        FORM,
        LENGTH,
        HOST,
        "User-Agent: Python-urllib/3.8 | Metadata: true | Connection: close",
    ),
    "python requests": request(
        f"POST {EVENTS}2019-08-01 HTTP/1.1", HOST, REQUESTS, "Metadata: true", LENGTH, "Content-Type: application/json"
    ),
    "PowerShell 7": request(
        f"POST {PATH} HTTP/1.1",
        HOST,
        "Metadata: true",
        "User-Agent: Mozilla/5.0 (Windows NT 10.0; Microsoft Windows 10.0.17763; en-US) PowerShell/7.1.3",
        FORM,
        LENGTH,
    ),
    "curl": request(f"POST {PATH} HTTP/1.1", HOST, CURL, LENGTH, FORM),
    "no content type": request(f"POST {PATH} HTTP/1.1", HOST, "Metadata: true", LENGTH),
}
EXPECTING_POSTS = {
    "PowerShell 5 Invoke-RestMethod": request(
        f"POST {PATH} HTTP/1.1",
        "Metadata: true",
        POWERSHELL,
        FORM,
        HOST,
        LENGTH,
        "Expect: 100-continue | Connection: Keep-Alive",
    ),
    ".NET WebClient, without the header": request(
        f"POST {EVENTS}2017-03-01 HTTP/1.1", "Content-Type: application/json", HOST, LENGTH, "Expect: 100-continue"
    ),
}


@pytest.mark.parametrize("name", GETS)
def test_a_published_client_reads(server: Running, name: str) -> None:
    with server.connect() as client:
        reply = client.ask(GETS[name])
        assert reply.status == 200
        (event,) = json.loads(reply.body)["Events"]
        assert event["EventId"] == EVENT_ID


@pytest.mark.parametrize("name", POSTS)
def test_a_published_client_approves(server: Running, name: str) -> None:
    with server.connect() as client:
        client.send(POSTS[name] + APPROVAL)
        assert (client.reply().status, [approval.vm for approval in server.guests.approvals]) == (200, ["web-0"])


@pytest.mark.parametrize("name", EXPECTING_POSTS)
def test_a_published_client_approves_after_it_was_invited(server: Running, name: str) -> None:
    with server.connect() as client:
        assert client.ask(EXPECTING_POSTS[name]).status == 100
        client.send(APPROVAL)
        assert (client.reply().status, len(server.guests.approvals)) == (200, 1)


def curl(*args: str) -> str:
    command = [program("curl"), "-sS", "--fail", "--noproxy", "*", "--max-time", "10", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is needed for this test: install it"
    return found


@pytest.mark.parametrize("flags", [(), ("--http1.0",), ("--http2",), ("-H", "Expect: 100-continue")])
def test_curl(server: Running, flags: tuple[str, ...]) -> None:
    url = server.url + PATH
    assert EVENT_ID in curl("-H", "Metadata:true", *flags, url)
    assert curl("-H", "Metadata:true", *flags, "-d", APPROVAL.decode(), url) == ""
    assert '"Events":[]' in curl("-H", "Metadata:true", *flags, "--interface", "127.1.0.31", url)
    assert len(server.guests.approvals) == 1


def test_curl_conditionally_and_chunked(server: Running, tmp_path: Path) -> None:
    url, tag = server.url + PATH, str(tmp_path / "etag")
    assert EVENT_ID in curl("-H", "Metadata:true", "--etag-save", tag, url)
    assert curl("-H", "Metadata:true", "--etag-compare", tag, url) == ""
    assert curl("-H", "Metadata:true", "-H", "Transfer-Encoding: chunked", "-d", APPROVAL.decode(), url) == ""
    assert len(server.guests.approvals) == 1


def test_urllib(server: Running) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    asked = urllib.request.Request(server.url + PATH, headers={"Metadata": "true"})
    with opener.open(asked, timeout=60) as reply:
        assert json.loads(reply.read())["DocumentIncarnation"] == 2
    with opener.open(urllib.request.Request(asked.full_url, APPROVAL, {"Metadata": "true"}), timeout=60) as reply:
        assert (reply.status, reply.read()) == (200, b"")
    assert len(server.guests.approvals) == 1


def test_requests(server: Running) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Metadata"] = "true"
        first = session.get(server.url + PATH, timeout=60)
        assert first.json()["DocumentIncarnation"] == 2
        again = session.get(server.url + PATH, headers={"If-None-Match": first.headers["ETag"]}, timeout=60)
        assert again.status_code == 304
        assert session.post(server.url + PATH, json=json.loads(APPROVAL), timeout=60).status_code == 200
        assert session.get(f"{server.url}/metadata/versions", timeout=60).ok
    assert server.server.counters.accepted == 1
    assert len(server.guests.approvals) == 1


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
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "tests.metadata.in_namespace"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["served"]), done.stdout + done.stderr
