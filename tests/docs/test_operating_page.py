"""The page for operators names what the service really has, and its installation works."""

import re
import shlex
import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.acceptance.running import PROGRAMS, run, serving
from tests.docs.test_snippets import ROOT, blocks
from tests.wheel import INSTALL, Installed

from forenotice.control.metrics import GUEST_GAUGES, Metrics

FILE = ROOT / "docs" / "operating.md"
PAGE = FILE.read_text()


def test_it_has_the_metrics() -> None:
    metrics = Metrics(events=dict, guests=lambda: dict.fromkeys(("polls", "refused", *GUEST_GAUGES), 0))
    families = text_string_to_metric_families(metrics.render().decode())
    known = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert set(re.findall(r"`(forenotice_\w+)`", PAGE)) == {name for name in known if not name.endswith("_created")}


def test_what_the_unit_needs_is_there_after_the_installation(installed: Installed, tmp_path: Path) -> None:
    """All but pip's part, which takes a while and is the guests' with an extra, and but systemd."""
    (text,) = (text for language, text in blocks(FILE) if text.startswith("# as root"))
    _, make, venv, pip, *lines, start, look = text.splitlines()
    assert (make, venv) == (INSTALL[0], "/usr/bin/" + INSTALL[1].replace("/tmp/vm", "/opt/forenotice"))
    assert pip == '/opt/forenotice/bin/pip install "$(ls dist/forenotice-*.whl)[server]"'
    assert "Provides-Extra: server\n" in next(installed.vm.rglob("forenotice-*.dist-info/METADATA")).read_text()
    for folder in ("usr/bin", "etc/systemd/system", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    for line in lines:
        here = re.sub(r"/(usr|etc)/", rf"{tmp_path}/\1/", line).replace("/opt/forenotice", str(installed.vm))
        subprocess.run(["bash", "-c", here], check=True)
    (unit,) = (tmp_path / "etc/systemd/system").iterdir()
    assert start == f"systemctl enable --now {unit.stem}"
    starts = re.findall(r"^(?:ExecStart|Environment=FORENOTICE_DATA)=(.*)", unit.read_text(), re.MULTILINE)
    (program, serve, flag, config), data = shlex.split(starts[0]), starts[1]
    assert (tmp_path / program[1:]).exists()
    assert serve == "serve"
    with serving(tmp_path, flag, f"{tmp_path}{config}", "--data", f"{tmp_path}{data}") as server:
        look = look.replace("/var/lib", f"{tmp_path}/var/lib")
        done = run("bash", "-c", look, env={**server.env, "PATH": f"{PROGRAMS}:{server.env['PATH']}"})
        assert done.returncode == 0, done.stderr
