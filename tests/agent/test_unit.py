"""The agent's systemd unit: every word known to systemd, and what the agent relies on is in it."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from forenotice.agent.config import STATE
from forenotice.agent.handlers import GRACE

UNIT = Path(__file__).parents[2] / "packaging" / "forenotice-agent.service"
EXPOSURE = 30
"""In tenths, by systemd's own count; lower is safer."""


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def verify(text: str, folder: Path) -> str:
    """What systemd has to say about it. The program need not be installed here."""
    unit = folder / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


with_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze") and os.environ.get("CI") != "true", reason="systemd-analyze is not here"
)


@with_systemd
def test_systemd_knows_every_word_of_it(tmp_path: Path) -> None:
    assert verify(UNIT.read_text(), tmp_path) == ""


@with_systemd
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("ProtectClock=", "ProtectClok="), ("@system-service", "@sistem"), ("=mixed", "=mix"), ("AF_INET6", "AF_INET7")],
)
def test_a_wrong_word_would_be_seen(tmp_path: Path, right: str, wrong: str) -> None:
    assert UNIT.name in verify(UNIT.read_text().replace(right, wrong, 1), tmp_path)


@with_systemd
def test_it_keeps_capabilities_that_exist() -> None:
    """Of these, `verify` passes over what it does not know."""
    done = subprocess.run(["systemd-analyze", "capability"], capture_output=True, text=True, timeout=60, check=True)
    known = {line.split()[0].upper() for line in done.stdout.splitlines() if line}
    named = {name for line in settings()["CapabilityBoundingSet"] for name in line.split()}
    assert len(named) == 9
    assert named <= known


@with_systemd
def test_the_walls_stay_as_tight_as_handlers_allow() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={EXPOSURE}", UNIT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_it_runs_the_agent_and_reloads_it() -> None:
    unit = settings()
    assert shlex.split(unit["ExecStart"][0]) == [
        "/usr/bin/forenotice",
        "agent",
        "run",
        "--config",
        "/etc/forenotice/agent.toml",
    ]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert f"/var/lib/{unit['StateDirectory'][0]}" == STATE


def test_it_is_watched_restarted_and_takes_its_handlers_with_it() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert unit["WatchdogSec"] == ["3min"]
    assert unit["Restart"] == ["always"]
    assert unit["StartLimitIntervalSec"] == ["0"]
    assert unit["KillMode"] == ["mixed"]
    assert float(unit["TimeoutStopSec"][0]) > 2 * GRACE, "it must have the time to end its handlers itself"


def test_what_it_says_to_loosen_is_there() -> None:
    text = UNIT.read_text()
    advised = {
        key for line in re.findall(r"^#.*[Ll]oosen.*", text, re.MULTILINE) for key in re.findall(r"(\w+)=", line)
    }
    assert advised >= {"ProtectHome", "ProtectProc", "PrivateTmp", "PrivateDevices", "PrivateMounts", "UMask"}
    assert advised - {"ReadWritePaths"} <= settings().keys()
