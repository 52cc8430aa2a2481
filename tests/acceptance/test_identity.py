"""The four ways to know a caller, with curl, at a service that really runs."""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.acceptance.running import NEWEST, Server, run, serving, until

SECRET = "shared-with-the-proxies"
PROXY = "127.34.5.9"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
WEB_ID, DB_ID = "5c4d9a9e-0d0b-4d7c-9b39-0b5f9c5c8f01", "5c4d9a9e-0d0b-4d7c-9b39-0b5f9c5c8f02"
FLEET = {
    "hosts": {"host-0": {}},
    "vms": {
        "web": {"host": "host-0", "addresses": ["127.34.5.1"], "vm_id": WEB_ID},
        "db": {"host": "host-0", "addresses": ["127.34.5.2"], "vm_id": DB_ID},
    },
}


@dataclass
class Curl:
    """Asks who it is, and what it is told."""

    server: Server

    def name(self, *flags: str) -> str:
        """The name of the VM that it is taken for, or the status of the refusal."""
        body, status = self.get(NAME, *flags)
        return body if status == "200" else status

    def events(self, *flags: str) -> list[str]:
        body, status = self.get(f"/metadata/scheduledevents?api-version={NEWEST}", *flags)
        assert status == "200"
        return [event["EventId"] for event in json.loads(body)["Events"]]

    def get(self, path: str, *flags: str) -> tuple[str, str]:
        url = f"http://{self.server.guests}{path}"
        done = run("curl", "-sS", "-w", "\n%{http_code}", "-H", "Metadata: true", *flags, url, env=self.server.env)
        assert done.returncode == 0, done.stderr
        body, _, status = done.stdout.rpartition("\n")
        return body, status


@contextmanager
def with_proxies(home: Path, *flags: str) -> Iterator[Server]:
    (home / "secret").write_text(SECRET + "\n")
    (home / "secret").chmod(0o600)
    proxies = ("--proxy-trusted", "127.34.5.8/30", "--proxy-secret-file", str(home / "secret"))
    with serving(home, "--guest-rate", "off", "--token-rate", "off", *proxies, *flags) as server:
        server.post("/v1/fleet", FLEET)
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("identity")
    flags = ("--metadata", f"unix:{home / 'db.sock'}=db", "--first-version-dates", "rfc1123")
    with with_proxies(home, *flags) as server:
        yield server


@pytest.fixture
def curl(server: Server) -> Curl:
    return Curl(server)


def signed(message: str, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), message.encode(), hashlib.sha256).hexdigest()


def as_vm(name: str, *, age: float = 0, secret: str = SECRET) -> tuple[str, ...]:
    """What a proxy in our own style sends."""
    at, nonce = str(int(time.time() - age)), secrets.token_hex()
    headers = {
        "X-Forenotice-VM": name,
        "X-Forenotice-Time": at,
        "X-Forenotice-Nonce": nonce,
        "X-Forenotice-Signature": signed(f"{name}\n{at}\n{nonce}\nGET\n{NAME}", secret),
    }
    return ("--interface", PROXY, *(word for item in headers.items() for word in ("-H", ": ".join(item))))


def as_instance(vm_id: str, signature: str) -> tuple[str, ...]:
    """What OpenStack's metadata agent sends."""
    headers = (f"X-Instance-ID: {vm_id}", f"X-Instance-ID-Signature: {signature}", "X-Forwarded-For: 10.0.0.4")
    return ("--interface", PROXY, *(word for header in headers for word in ("-H", header)))


def test_by_address(curl: Curl, server: Server) -> None:
    assert curl.name("--interface", "127.34.5.1") == "web"
    assert curl.name("--interface", "127.34.5.2") == "db"
    assert curl.name("--interface", "127.34.5.3") == "404"
    assert until(lambda: server.logged("caller.unknown"))[-1]["address"] == "127.34.5.3"
    # It listens from now on, and is waited for.
    assert curl.events("--interface", "127.34.5.2") == []
    (event,) = server.schedule("host-update", "host-0", notice_minutes=60)["events"][:1]
    assert event["resources"] == ["db"]
    assert event["id"] in curl.events("--interface", "127.34.5.2")
    assert event["id"] not in curl.events("--interface", "127.34.5.1")
    first, _ = curl.get("/metadata/scheduledevents?api-version=2017-03-01", "--interface", "127.34.5.2")
    assert json.loads(first)["Events"][0]["NotBefore"].endswith(" GMT")


def test_by_listener(curl: Curl, server: Server) -> None:
    socket = next(flag for flag in server.flags if flag.startswith("unix:")).removeprefix("unix:").removesuffix("=db")
    assert curl.name("--unix-socket", socket) == "db"
    assert Path(socket).stat().st_mode & 0o777 == 0o660
    # A socket that was left behind is not in the way of the next start.
    server.kill()
    assert Path(socket).exists()
    server.start()
    assert curl.name("--unix-socket", socket) == "db"


def test_by_a_proxy_of_our_own_style(curl: Curl) -> None:
    assert curl.name(*as_vm("web")) == "web"
    assert curl.name(*as_vm("db"), "-H", "X-Forwarded-For: 10.0.0.4") == "db"
    assert curl.name(*as_vm("none")) == "404"
    assert curl.name(*as_vm("web", age=50)) == "web"
    for refused in (as_vm("web", age=120), as_vm("web", age=-120), as_vm("web", secret="another")):
        assert curl.name(*refused) == "403"
    # Nobody else can say so, and a proxy that says nothing is nobody.
    assert curl.name(*as_vm("web")[2:], "--interface", "127.34.5.2") == "db"
    assert curl.name("--interface", PROXY) == "404"


def test_by_a_proxy_of_openstacks_style_and_by_default(tmp_path: Path) -> None:
    with with_proxies(tmp_path, "--proxy-style", "openstack", "--as", "web") as server:
        curl = Curl(server)
        assert curl.name(*as_instance(DB_ID, signed(DB_ID))) == "db"
        assert curl.name(*as_instance(DB_ID.upper(), signed(DB_ID.upper()))) == "db"
        # A failed proof is refused, not passed on to the next way: that would make it web.
        for signature in (signed(WEB_ID), signed(DB_ID, "another"), ""):
            assert curl.name(*as_instance(DB_ID, signature)) == "403"
        assert curl.name("--interface", "127.34.5.3") == "web"
        assert curl.name("--interface", "127.34.5.2") == "db"
