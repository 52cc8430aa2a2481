"""`forenotice network rules`: printed for people and machines, and loaded into a namespace that the test makes."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.namespaces import Namespace, require_libvirt, require_namespaces

BY_HAND = ("network", "rules", "--bridge", "br0", "--port", "vnet0=db,52:54:00:00:00:09")
VM_ID = "5c4d9a9e-0d0b-4d7c-9b39-0b5f9c5c8f01"
NODE = f"""
<node>
  <domain type="test"><name>renamed</name><uuid>{VM_ID}</uuid><memory>8192</memory><os><type>hvm</type></os>
    <devices>
      <interface type="bridge">
        <mac address="52:54:00:00:00:04"/><source bridge="br7"/><target dev="tap-web"/>
      </interface>
      <interface type="user"><mac address="52:54:00:00:00:24"/></interface>
    </devices>
  </domain>
  <domain type="test"><name>web-0</name><memory>8192</memory><os><type>hvm</type></os>
    <devices>
      <interface type="bridge"><mac address="52:54:00:00:00:05"/><source bridge="br7"/><target dev="tap-x"/></interface>
    </devices>
  </domain>
  <domain type="test"><name>batch</name><memory>8192</memory><os><type>hvm</type></os>
    <devices>
      <interface type="bridge"><mac address="52:54:00:00:00:06"/><source bridge="br7"/><target dev="tap-b"/></interface>
    </devices>
  </domain>
</node>
"""


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    require_namespaces("nft")
    with closing(Namespace()) as made:
        yield made


def test_rules_of_ports_that_are_given(fleet: Run) -> None:
    printed = fleet(*BY_HAND).out
    assert "# ip link set dev br0 type bridge no_linklocal_learn 1\n" in printed
    assert "# ip link set dev vnet0 type bridge_slave guard on\ntable bridge forenotice\ndelete table" in printed
    assert "\tchain port_vnet0 {\n" in printed
    assert "ether type ip ip saddr { 10.0.0.9 } accept" in printed
    found = fleet(*BY_HAND, "--json").json
    assert found == {
        "ports": [{"port": "vnet0", "vm": "db", "mac": "52:54:00:00:00:09", "addresses": ["10.0.0.9"]}],
        "bridges": ["br0"],
        "left_out": [],
        "text": printed,
        "applied": False,
    }
    led = fleet(*BY_HAND, "--at", "169.254.169.254:8080", "--to", "10.0.0.1:8254", "--uplink", "eth0").out
    assert "ip daddr 169.254.169.254 tcp dport 8080 dnat ip to 10.0.0.1:8254" in led
    assert 'iifname { "eth0" } return' in led


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("network", "rules"), "give either --host"),
        ((*BY_HAND, "--host", "host-a"), "give either --host"),
        ((*BY_HAND, "--remove"), "give it alone"),
        (("network", "rules", "--remove", "--bridge", "br0"), "give it alone"),
        (("network", "rules", "--port", "vnet0=db"), "is not PORT=VM,MAC"),
        (("network", "rules", "--port", "vnet 0=db,52:54:00:00:00:09"), "is not a network interface"),
        (("network", "rules", "--port", "vnet0=db,52:54", "--bridge", "br0"), "is not a MAC"),
        (("network", "rules", "--port", "vnet0=db,52:54:00:00:00:09"), "give --bridge NAME"),
        (("network", "rules", "--port", "v=none,52:54:00:00:00:09", "--bridge", "b"), "no VM 'none'"),
        (("network", "rules", "--port", "v=web-0,52:54:00:00:00:09", "--bridge", "b"), "has no address in the fleet"),
        (("network", "rules", "--host", "host-a"), "host host-a has no address, so its libvirt cannot be asked"),
        ((*BY_HAND, "--bridge", "no-such-bridge", "--apply"), "here: apply the rules on the host itself"),
        (
            ("network", "rules", "--bridge", "lo", "--port", "lo=db,52:54:00:00:00:09", "--uplink", "none", "--apply"),
            "no interface none here",
        ),
    ],
)
def test_mistakes(fleet: Run, arguments: tuple[str, ...], said: str) -> None:
    refused = fleet(*arguments)
    assert refused.code
    assert said in refused.err


def test_rules_of_the_ports_that_libvirt_names(fleet: Run, tmp_path: Path) -> None:
    require_libvirt()
    (tmp_path / "node.xml").write_text(NODE)
    fleet("host", "set", "host-a", "--address", f"test://{tmp_path / 'node.xml'}")
    fleet("vm", "set", "web-0", "--address", "10.0.0.4", "--address", "fd00::4", "--vm-id", VM_ID.upper())
    fleet("vm", "add", "batch", "--host", "host-a")
    told = fleet("network", "rules", "--host", "host-a", "--json", failing=0)
    assert told.json["ports"] == [
        {"port": "tap-web", "vm": "web-0", "mac": "52:54:00:00:00:04", "addresses": ["10.0.0.4", "fd00::4"]}
    ]
    assert told.json["bridges"] == ["br7"]
    reasons = {(each["vm"], each["port"][:4]): each["reason"] for each in told.json["left_out"]}
    assert reasons == {
        ("renamed", "test"): "its type 'user' is not a port of a bridge",
        # Another domain has the VM's id, so this one is somebody else.
        ("web-0", "tap-"): "it is no VM of host-a in the fleet",
        ("batch", "tap-"): "the VM has no address in the fleet: `forenotice vm set batch --address IP`",
    }
    assert told.err.count("forenotice: warning: ") == 3
    fleet("host", "set", "host-a", "--address", "test:///none.xml")
    assert "test:///none.xml cannot be reached" in fleet("network", "rules", "--host", "host-a").err


def test_rules_are_loaded_and_removed(fleet: Run, module_control: object, namespace: Namespace) -> None:
    namespace.run("ip", "link", "add", "br0", "type", "bridge")
    namespace.run("ip", "link", "add", "vnet0", "type", "veth", "peer", "name", "eth0")
    # The control plane is not in that namespace, so what it would print is made here.
    rules = fleet(*BY_HAND).out
    commands = [line[2:] for line in rules.splitlines() if line.startswith("# ip ")]
    load = f"import sys; from forenotice.network import nft; nft.run({commands}); "
    # As long as the port is not one of the bridge, nothing is loaded.
    refused = namespace.attempt(sys.executable, "-c", f"{load}nft.load(sys.stdin.read())", input=rules)
    assert "vnet0 is neither a bridge of Linux itself nor a port of one" in refused.stderr
    assert namespace.run("nft", "list", "ruleset") == ""
    namespace.run("ip", "link", "set", "vnet0", "master", "br0")
    namespace.run(sys.executable, "-c", f"{load}nft.load(sys.stdin.read())", input=rules)
    assert "chain port_vnet0" in namespace.run("nft", "list", "ruleset")
    assert "no_linklocal_learn 1" in namespace.run("ip", "-d", "link", "show", "br0")
    for _ in range(2):
        assert namespace.run(sys.executable, "-m", "forenotice", "network", "rules", "--remove") == (
            "The rules are removed.\n"
        )
        assert namespace.run("nft", "list", "ruleset") == ""
    without = ("setpriv", "--bounding-set=-net_admin", sys.executable, "-m", "forenotice")
    refused = namespace.attempt(*without, "network", "rules", "--remove")
    assert refused.returncode == 1
    assert "run it as root, or with CAP_NET_ADMIN" in refused.stderr
