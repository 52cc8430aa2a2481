"""A server at http://169.254.169.254 and the clients that expect it there; test_clients runs this in a namespace."""

import json
import subprocess
import urllib.request

from tests.metadata.running import APPROVAL, EVENT_ID, PATH, running

from forenotice.metadata.options import Options
from forenotice.settings import Address, Listener

ENDPOINT = "169.254.169.254"
URL = f"http://{ENDPOINT}{PATH}"


def main() -> None:
    # A namespace just made leads nowhere.
    if _run("ip", "-o", "route"):
        raise SystemExit("this is not a network namespace of its own: refused")
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{ENDPOINT}/32", "dev", "lo")
    with running(
        listeners=[Listener(at=Address(host=ENDPOINT, port=80))], options=Options(default_vm="web-0", rate=None)
    ) as server:
        assert EVENT_ID in _run("curl", "-sS", "--fail", "--noproxy", "*", "-H", "Metadata:true", URL)
        _run("curl", "-sS", "--fail", "--noproxy", "*", "-H", "Metadata:true", "-d", APPROVAL.decode(), URL)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(URL, headers={"Metadata": "true"}), timeout=60) as reply:
            assert json.loads(reply.read())["DocumentIncarnation"] == 2
        script = f"const r = await fetch('{URL}', {{headers: {{Metadata: 'true'}}}}); console.log(await r.text())"
        assert EVENT_ID in _run("node", "--input-type=module", "-e", script)
        assert [approval.vm for approval in server.guests.approvals] == ["web-0"]
    print("served")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


if __name__ == "__main__":
    main()
