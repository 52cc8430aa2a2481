"""docs/network.md, command by command: on a host in a namespace, with VMs in namespaces and a service that runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.running import Server, run
from tests.docs.test_snippets import ROOT, blocks
from tests.namespaces import require_libvirt, require_namespaces
from tests.network.bridge import Network, assert_silence, network

PAGE = ROOT / "docs" / "network.md"
DOMAIN = """
<domain type="test"><name>{name}</name><memory>8192</memory><os><type>hvm</type></os>
  <devices>
    <interface type="bridge"><mac address="{mac}"/><source bridge="br0"/><target dev="{port}"/></interface>
  </devices>
</domain>
"""


@pytest.fixture
def bridge() -> Iterator[Network]:
    require_namespaces("nft", "curl")
    require_libvirt()
    with network() as made:
        yield made


def test_the_page_as_it_is_written(bridge: Network, tmp_path: Path) -> None:
    # libvirt's test driver stands for libvirt with these domains.
    domains = [DOMAIN.format(name=port.vm, mac=port.mac, port=port.port) for port in bridge.ports]
    (tmp_path / "node.xml").write_text(f"<node>{''.join(domains)}</node>")
    places = {"qemu:///system": f"test://{tmp_path / 'node.xml'}"}
    server = Server(tmp_path, "--guest-rate", "off", before=bridge.host.enter)
    server.operators = "127.0.0.1:8255"
    answered = 0
    try:
        for language, text in blocks(PAGE):
            for written, here in places.items():
                text = text.replace(written, here)
            if language == "":
                start(server, text)
            elif text.startswith("# in web-0\n"):
                assert shell(bridge.web.enter, text, server) == "web-0"
                answered += 1
            else:
                assert (language, text.startswith("# as root\n")) == ("sh", True)
                shell(bridge.host.enter, text, server)
                if "--apply" in text:
                    assert (bridge.web.ask(), bridge.db.ask()) == ("web-0", "db")
                    assert_silence(bridge.stranger.ask, bridge.outside.ask)
                    answered += 1
        assert answered == 4
        assert shell(bridge.host.enter, "forenotice network rules --remove", server) == "The rules are removed.\n"
        assert bridge.host.run("nft", "list", "ruleset") == ""
    finally:
        if server.process is not None:
            server.kill()


def start(server: Server, text: str) -> None:
    """`forenotice serve` as the page has it, in place of the one before."""
    if server.process is not None:
        assert server.terminate() == 0
    command, flag, server.guests = text.strip().rpartition(" --metadata ")
    assert (command, flag) == ("forenotice serve", " --metadata ")
    server.start()


def shell(enter: tuple[str, ...], text: str, server: Server) -> str:
    done = run(*enter, "bash", "-euo", "pipefail", "-c", text, env=server.env)
    assert (done.returncode, done.stderr) == (0, ""), (text, done.stdout, done.stderr)
    return done.stdout
