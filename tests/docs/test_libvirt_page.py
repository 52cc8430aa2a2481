"""docs/libvirt.md: its commands, against a real host, and its tables."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests import needed
from tests.acceptance.running import run, serving
from tests.docs.test_agent_page import defaults
from tests.docs.test_snippets import ROOT, blocks
from tests.namespaces import require_libvirt

from forenotice.core.operations import Kind
from forenotice.drivers import file
from forenotice.lab import packages

PAGE = ROOT / "docs" / "libvirt.md"
ROW = re.compile(r"^\| (`.+?`) \| (.+?) \| (.*) \|$", re.MULTILINE)
SYSTEM = "qemu+ssh://forenotice@host-a/system"


@pytest.fixture
def place() -> Iterator[Path]:
    needed.require(packages.require)
    require_libvirt()
    with tempfile.TemporaryDirectory(prefix="fn-", dir="/tmp") as directory:
        yield Path(directory)


def test_the_page_as_it_is_written(place: Path, tmp_path: Path) -> None:
    from tests.drivers.libvirt.pair import Pair, kept, live, uuid_of

    from forenotice.drivers.libvirt import domains

    driver = tmp_path / "driver.toml"
    shown = blocks(PAGE)
    driver.write_text(next(text for language, text in shown if language == "toml"))
    programs = [text for language, text in shown if language == ""]
    assert [text.split()[0] for text in programs] == ["pip", "virsh", "forenotice"]
    assert "--driver /etc/forenotice/driver.toml" in programs[2]
    with (
        Pair.started(place) as pair,
        serving(tmp_path, "--driver", str(driver), "--speed", "600", "--metadata", "127.0.0.1:0") as server,
    ):
        pair.make("web-0", disks={})
        assert "web-0" in listed(programs[1].replace(SYSTEM, pair.a.uri), server.env)
        server.post("/v1/hosts", {"name": "host-a"})
        server.post("/v1/vms", {"name": "web-0", "host": "host-a", "vm_id": uuid_of("web-0")})
        assert server.cli("vm", "policy", "web-0", "--shutdown-timeout", "1").returncode == 0
        env = {**server.env, "FORENOTICE_DATA": str(server.data), "FORENOTICE_TOKEN": server.token}
        for language, text in shown:
            if language == "sh":
                listed(text.replace(SYSTEM, pair.a.uri), {**env, "LIBVIRT_DEFAULT_URI": pair.a.uri})
        domain = pair.domain("web-0", pair.a)
        mark, written = live(domain).mark, kept(domain).vm
        assert mark
        assert written
        assert (mark.step, written.group, written.addresses) == ("start", "web", ("10.0.0.4",))
        (xml,) = (text for language, text in shown if language == "xml")
        found = domains.parse(f"<domain>{xml}</domain>")
        assert found.vm
        assert found.vm.kind == "availability-set"


def listed(text: str, env: dict[str, str]) -> str:
    done = run("bash", "-euc", text, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_ones_that_serve_takes(tmp_path: Path) -> None:
    for language, text in blocks(PAGE):
        if language == "toml":
            path = tmp_path / "driver.toml"
            path.write_text(text)
            _, ((_, config),) = file.load(path)
            assert isinstance(config, file.Libvirt)


def test_the_tables_have_every_kind_and_every_key() -> None:
    rows = ROW.findall(PAGE.read_text())
    kinds = {name for cell, event, _ in rows if event in TYPES for name in re.findall(r"`(\S+)`", cell)}
    assert kinds == set(Kind)
    for kind in Kind:
        assert any(f"`{kind}`" in cell and event == kind.traits.type for cell, event, _ in rows), kind
    keys = {cell.strip("`"): default for cell, default, _ in rows if default not in TYPES and '"' not in cell}
    assert keys == defaults(file.Libvirt)
    modes = [field.type for field in msgspec.structs.fields(file.Libvirt) if field.name == "storage"]
    assert {cell.strip('`"') for cell, _, _ in rows if '"' in cell} == set(modes[0].__args__)


TYPES = {kind.traits.type.value for kind in Kind}
