"""What the page about inventories shows works, on a host of libvirt's test driver."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.acceptance.running import ask, environment, run, serving, until

from forenotice.core.fleet import DriftKind
from forenotice.core.inventory import DomainFacts
from forenotice.core.journal import ACTIONS
from forenotice.drivers import inventory_rules

if os.environ.get("CI") != "true":
    pytest.importorskip("libvirt")

PAGE = (Path(__file__).parents[2] / "docs" / "inventory.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
DOMAIN = """<domain type='test'><name>{}</name>{}<memory unit='MiB'>16</memory><os><type>hvm</type></os></domain>"""


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_the_commands_make_a_fleet_that_is_followed(tmp_path: Path) -> None:
    [metadata] = blocks("xml")
    hosts = {"rack1-01": DOMAIN.format("web-0", metadata), "rack2-01": DOMAIN.format("not a name", "")}
    shell = "\n".join(text for text in blocks("sh") if "virsh" not in text)
    for name, domains in hosts.items():
        (tmp_path / f"{name}.xml").write_text(f"<node>{domains}</node>")
        shell = shell.replace(f"qemu+ssh://{name}/system", f"test://{tmp_path}/{name}.xml")
    # What is refused is drift once it is known.
    begin, last = shell.rstrip().rsplit("\n", 1)
    assert last == "forenotice fleet drift"
    with serving(tmp_path) as server:
        env = {**server.env, "FORENOTICE_CONTROL": server.operators, "FORENOTICE_TOKEN": server.token}
        done = run("bash", "-euo", "pipefail", "-c", f"cd {tmp_path}\n{begin}", env=env, seconds=120)
        assert done.returncode == 0, done.stderr
        assert "web-0" in done.stdout

        def drift() -> "subprocess.CompletedProcess[str]":
            return run("bash", "-c", last, env=env, seconds=60)

        until(lambda: "not a name" in drift().stdout, seconds=120)
        assert drift().returncode == 1
        shown = run("forenotice", "vm", "show", "web-0", env=env, seconds=60).stdout
        assert re.search(r"group +web\n", shown)
        measured = ask(server.operators, "GET", "/metrics").body.decode()
        assert 'forenotice_drift{kind="refused"} 1.0\n' in measured
        assert "forenotice_silent_hosts 0.0\n" in measured


def test_the_rules_are_read(tmp_path: Path) -> None:
    [text] = blocks("toml")
    (tmp_path / "rules.toml").write_text(text)
    rules = inventory_rules.load(tmp_path / "rules.toml")
    assert [rule.ignore for rule in rules] == [True, False, False]
    assert rules[1].facts == DomainFacts(group="web", update_domain=0)


def test_the_tables_name_all_there_is() -> None:
    assert {kind.value for kind in DriftKind} == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    named = set(re.findall(r"`((?:vm|drift)\.\w+)`", PAGE))
    assert named <= ACTIONS
    assert {"vm.missing", "vm.found", "drift.noticed", "drift.settled"} <= named


def test_virsh_writes_what_is_read(tmp_path: Path) -> None:
    [text] = (block for block in blocks("sh") if "virsh" in block)
    (tmp_path / "node.xml").write_text(f"<node>{DOMAIN.format('web-0', '')}</node>")
    # The test driver forgets everything with its connection.
    shown = text.replace("virsh metadata", "metadata").partition("\n")[2].strip()
    commands = f"{shown}\nmetadata web-0 --config --uri urn:forenotice:vm:1\n"
    command = ["virsh", "-c", f"test://{tmp_path}/node.xml"]
    done = subprocess.run(
        command, input=commands, capture_output=True, text=True, timeout=60, env=environment(tmp_path), check=False
    )
    assert "<address>10.0.0.4</address>" in done.stdout, done.stderr
