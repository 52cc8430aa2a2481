"""Endpoints where guests look for them; test_finding runs this in a network namespace of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.metadata.running import EVENT_ID, running

from forenotice import Client
from forenotice.metadata.options import Options
from forenotice.settings import Address, Listener

USUAL = "169.254.169.254"
BY_DHCP = "168.63.129.16"
WEB_0 = Options(default_vm="web-0", rate=None)


def main() -> None:
    # A namespace just made leads nowhere.
    if _run("ip", "-o", "route"):
        raise SystemExit("this is not a network namespace of its own: refused")
    _run("ip", "link", "set", "lo", "up")
    for address in (USUAL, BY_DHCP):
        _run("ip", "address", "add", f"{address}/32", "dev", "lo")
    with running(listeners=[Listener(at=Address(host=USUAL, port=80))], options=WEB_0), Client() as client:
        assert (client.document().events[0].id, client.endpoint, client.me) == (EVENT_ID, f"http://{USUAL}", "web-0")
        said = _run(sys.executable, "-m", "forenotice", "guest", "doctor", "--json")
        assert "answers (the usual address)" in said, said
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "dhclient.leases").write_text("lease {\n  option unknown-245 a8:3f:81:10;\n}\n")
        by_dhcp = Listener(at=Address(host=BY_DHCP, port=8080))
        with running(listeners=[by_dhcp], options=WEB_0), Client(leases=[f"{folder}/*"]) as client:
            assert client.document().events[0].id == EVENT_ID
            assert client.endpoint == f"http://{BY_DHCP}:8080"
    print("found")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


if __name__ == "__main__":
    main()
