"""`fleet discover`: what libvirt has, and the fleet file that is made of it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Run

pytest.importorskip("libvirt") if os.environ.get("CI") != "true" else None

DOMAIN = """<domain type='test'><name>{}</name><uuid>00000000-0000-4000-8000-00000000000{}</uuid>
    <metadata>{}</metadata><memory unit='MiB'>16</memory><os><type>hvm</type></os></domain>"""
WEB_0 = """<fn:vm xmlns:fn="urn:forenotice:vm:1" update-domain="3"><fn:address>10.0.0.4</fn:address></fn:vm>"""
RULES = """
[[rules]]
name = "web-*"
group = "web"

[[rules]]
name = "infra-*"
ignore = true
"""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    domains = DOMAIN.format("web-0", 1, WEB_0), DOMAIN.format("not a name", 2, ""), DOMAIN.format("infra-1", 3, "")
    (tmp_path / "node.xml").write_text(f"<node>{''.join(domains)}</node>")
    (tmp_path / "rules.toml").write_text(RULES)
    return f"test://{tmp_path}/node.xml"


def discover(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: libvirt's loop of events never ends."""
    command = [sys.executable, "-m", "forenotice", "fleet", "discover", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_what_there_is_becomes_a_fleet_file(uri: str, tmp_path: Path, fleet: Run) -> None:
    ran = discover(tmp_path, f"rack1={uri}", "--rules", "rules.toml", "--output", "fleet.toml")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert lines[-1] == "The fleet is in fleet.toml; `forenotice fleet apply fleet.toml` applies it."
    assert lines[1] == "rack1 infra-1 running a rule ignores it"
    assert lines[2].startswith("rack1 not a name running it cannot be added: 'not a name' is not a VM name")
    assert lines[3] == "rack1 web-0 running web 3 0 10.0.0.4"
    assert tomllib.loads((tmp_path / "fleet.toml").read_text()) == {
        "hosts": {"rack1": {"address": uri, "inventory": "libvirt"}},
        "groups": {"web": {"kind": "availability-set"}},
        "vms": {
            "web-0": {
                "vm_id": "00000000-0000-4000-8000-000000000001",
                "host": "rack1",
                "group": "web",
                "update_domain": 3,
                "addresses": ["10.0.0.4"],
            }
        },
    }
    fleet("vm", "remove", "web-0", "--yes")
    assert "Applied" in fleet("fleet", "apply", str(tmp_path / "fleet.toml")).out
    assert fleet("vm", "show", "web-0", "--json").json["host"] == "rack1"


def test_as_json_and_to_stdout(uri: str, tmp_path: Path) -> None:
    found = json.loads(discover(tmp_path, f"rack1={uri}", "--json").stdout)
    assert [(each["name"], each["host"], each["reason"] is None) for each in found] == [
        ("infra-1", "rack1", True),
        ("not a name", "rack1", False),
        ("web-0", "rack1", True),
    ]
    # Without a name, the host is called as it calls itself.
    ran = discover(tmp_path, uri, "--output", "-", "--format", "json")
    [name] = json.loads(ran.stdout)["hosts"]
    assert json.loads(ran.stdout)["vms"]["web-0"]["host"] == name


def test_a_domain_that_two_hosts_have_is_one_vm(tmp_path: Path) -> None:
    space = "xmlns:test='http://libvirt.org/schemas/domain/test/1.0'"
    off = DOMAIN.format("db", 1, "").replace("<domain", f"<domain {space}")
    off = off.replace("</domain>", "<test:runstate>5</test:runstate></domain>")
    for host in "ab":
        (tmp_path / f"{host}.xml").write_text(f"<node>{off}</node>")
    found = json.loads(discover(tmp_path, *(f"{host}=test://{tmp_path}/{host}.xml" for host in "ab"), "--json").stdout)
    assert [(each["host"], each["state"], each["reason"]) for each in found] == [
        ("a", "off", None),
        ("b", "off", "it is on host a"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a={0}", "a={0}"], "two hosts are called a: name one of them otherwise, such as other=test"),
        (["qemu+unix:///system?socket=/nobody"], "cannot be reached"),
        (["rack1"], "'rack1' is not a libvirt URI"),
        (["rack 1={0}"], "'rack 1' is not a host name"),
        (["a={0}", "--output", "fleet.what"], "cannot tell whether fleet.what is TOML or JSON"),
        (["a={0}", "--rules", "none.toml"], "the file of inventory rules none.toml"),
    ],
)
def test_what_cannot_be(uri: str, tmp_path: Path, arguments: list[str], said: str) -> None:
    ran = discover(tmp_path, *(each.format(uri) for each in arguments))
    assert ran.returncode != 0
    assert said in ran.stderr
