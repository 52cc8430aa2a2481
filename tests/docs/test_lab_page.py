"""The lab's tour, in the README and on its own page, on real machines."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests import needed
from tests.acceptance.running import environment
from tests.docs.test_snippets import ROOT, blocks

from forenotice.lab import lab, packages

AS_ROOT = "# as root"
SECONDS = 600
APT = "apt-get install "
ACTIVATE = ". .venv/bin/activate"


@pytest.fixture
def env() -> Iterator[Mapping[str, str]]:
    needed.require(lab.require)
    with tempfile.TemporaryDirectory(prefix="fn-") as home:
        # The tour does not depend on which port is free, nor on whether KVM boots.
        yield environment(Path(home), FORENOTICE_CONTROL="127.0.0.1:0", XDG_RUNTIME_DIR=home)
        lab.remove(Path(home) / ".local/share/forenotice/lab")


def tour(page: str) -> list[str]:
    """The lines of its blocks that need a lab."""
    shown = [text for language, text in blocks(ROOT / page) if language == "sh" and text.startswith(AS_ROOT)]
    return [line.partition(" #")[0].strip() for text in shown for line in text.splitlines()[1:]]


def test_the_tour_of_the_readme_is_the_beginning_of_the_pages() -> None:
    """So the test of the page is that of the README, but for how it is started."""
    lines = [line for line in tour("README.md") if line != ACTIVATE]
    readme = [re.sub(r"^make lab$", "forenotice lab up --vms 3", line) for line in lines]
    page = [line for line in tour("docs/lab.md") if not line.startswith(APT)]
    assert readme[:-1] == page[: len(readme) - 1]
    assert readme[-1] == page[-1] == "forenotice lab down"
    (started,) = re.findall(r"^\t@\.venv/bin/(forenotice lab .*) \$\(ARGS\)$", (ROOT / "Makefile").read_text(), re.M)
    assert started == "forenotice lab up"


def test_the_packages_are_those_that_are_asked_for() -> None:
    (line,) = (line for line in tour("docs/lab.md") if line.startswith(APT))
    named = set(line.removeprefix(APT).split()) - {"--no-install-recommends"}
    assert named == {*packages.PROGRAMS.values(), packages.KERNEL, "libvirt-daemon-driver-qemu"}


def test_the_tour(env: Mapping[str, str]) -> None:
    lines = [line for line in tour("docs/lab.md") if not line.startswith(APT)]
    # Operators' commands would ask at that address instead of the socket in the data directory.
    script = "\n".join(line if " lab " in line else f"env -u FORENOTICE_CONTROL {line}" for line in lines)
    script = script.replace("lab up", "lab up --emulate").replace("lab status", "lab status --json")
    script = script.replace("--json --json", "--json")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    shown = [json.loads(text) for text in re.findall(r"^\{\n.*?^\}\n", done.stdout, re.M | re.S)]
    before, restarted, after = ({vm["name"]: vm for vm in each["vms"]} for each in shown)
    assert {name for name in before if before[name]["boot_id"] != restarted[name]["boot_id"]} == {"vm-0"}
    assert (restarted["vm-0"]["host"], restarted["vm-0"]["persistent_boots"]) == ("host-a", 2)
    assert (after["vm-0"]["host"], after["vm-0"]["boot_id"]) == ("host-b", restarted["vm-0"]["boot_id"])
    assert (after["vm-2"]["host"], after["vm-2"]["persistent_boots"]) == ("host-b", 2)
    assert after["vm-2"]["ephemeral_boots"] == 1
    assert done.stdout.endswith("The lab is down, and nothing of it is left.\n")


@pytest.mark.parametrize("user", ["this", pytest.param("somebody", marks=pytest.mark.soak)])
def test_a_test_of_ones_own(env: Mapping[str, str], user: str) -> None:
    """Also without root: in a user namespace in which we are somebody."""
    somebody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if user == "somebody" else []
    (text,) = (text for language, text in blocks(ROOT / "docs/lab.md") if language == "python")
    done = subprocess.run(
        [*somebody, sys.executable, "-W", "error", "-c", text],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
