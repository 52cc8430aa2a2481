"""What docs/identity.md shows is what proxies do."""

import hashlib
import hmac
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from tests.acceptance.running import HOST, NEWEST, Server, serving, until
from tests.docs.test_snippets import ROOT, blocks

SECRET = "shared with the agent of Neutron"
VM_ID = "5c4d9a9e-0d0b-4d7c-9b39-0b5f9c5c8f01"
FLEET = {"hosts": {"host-0": {}}, "vms": {"web": {"host": "host-0", "vm_id": VM_ID}}}


class Nova(BaseHTTPRequestHandler):
    """Stands for Nova's metadata service, which cannot run here."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"nova")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def nova() -> Iterator[str]:
    with ThreadingHTTPServer((HOST, 0), Nova) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    proxies = ("--proxy-style", "openstack", "--proxy-trusted", "127.0.0.1/32", "--proxy-secret-file")
    with serving(tmp_path, *proxies, str(tmp_path / "secret")) as started:
        started.post("/v1/fleet", FLEET)
        yield started


def test_a_proxy_splits_paths_between_forenotice_and_nova(server: Server, tmp_path: Path) -> None:
    (text,) = (text for language, text in blocks(ROOT / "docs" / "identity.md") if language == "haproxy")
    with socket.create_server((HOST, 0)) as free:
        place = f"{HOST}:{free.getsockname()[1]}"
    with nova() as elsewhere:
        for written, here in {
            "10.0.0.5:8780": place,
            "127.0.0.1:8254": server.guests,
            "127.0.0.1:8775": elsewhere,
        }.items():
            assert written in text
            text = text.replace(written, here)
        (tmp_path / "haproxy.cfg").write_text(text)
        haproxy = subprocess.Popen(["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")])
        try:
            # All that Neutron's agent sends of its own and of the guest's headers.
            signature = hmac.new(SECRET.encode(), VM_ID.encode(), hashlib.sha256).hexdigest()
            agent = {
                "X-Forwarded-For": "10.0.0.4",
                "X-Instance-ID": VM_ID,
                "X-Tenant-ID": "a-project",
                "X-Instance-ID-Signature": signature,
            }
            base = f"http://{place}"
            with requests.Session() as client:
                client.headers.update(agent)
                until(lambda: answers(client, base))
                assert client.get(f"{base}/openstack/latest/meta_data.json").text == "nova"
                (operation,) = server.post("/v1/operations", {"kind": "restart", "names": ["web"]})["operations"]
                path = f"{base}/metadata/scheduledEvents?api-version={NEWEST}"
                (event,) = client.get(path).json()["Events"]
                assert event["Resources"] == ["web"]
                approved = client.post(path, json={"StartRequests": [{"EventId": event["EventId"]}]})
                assert approved.status_code == 200
                assert server.get(f"/v1/operations/{operation['id']}")["status"] == "Started"
        finally:
            haproxy.terminate()
            haproxy.wait(30)


def answers(client: requests.Session, base: str) -> bool:
    try:
        return client.get(f"{base}/").status_code == 200
    except requests.ConnectionError:
        return False
