"""What systemd receives, on a real datagram socket; and the agent's unit, as systemd itself reads it."""

import contextlib
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from forenotice.agent import posix
from forenotice.agent.config import STATE
from forenotice.agent.handlers import GRACE


class Manager:
    """The end that systemd holds."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._address = "\0" + place[1:] if place.startswith("@") else place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._address)
        self._socket.settimeout(5)

    def received(self) -> str:
        return self._socket.recv(4096).decode()

    def is_fed(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0]) and self.received() == "WATCHDOG=1"

    def fill(self) -> None:
        """Until others would have to wait."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
            other.setblocking(False)
            while True:
                other.sendto(b"x", self._address)

    def notifier(self, **variables: str) -> posix.Notifier:
        return posix.take_notifier({"NOTIFY_SOCKET": self.place, **variables}, time.monotonic)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify") if request.param == "path" else f"@forenotice-{uuid.uuid4()}")
    yield manager
    manager.close()


def test_notifications_are_in_systemds_words(manager: Manager) -> None:
    notifier = manager.notifier()
    notifier.ready()
    notifier.stopping()
    assert [manager.received(), manager.received()] == ["READY=1", "STOPPING=1"]
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    word, _, moment = manager.received().partition("\nMONOTONIC_USEC=")
    assert word == "RELOADING=1"
    assert before <= int(moment) <= time.monotonic_ns() // 1000
    notifier.status("preparing\nREADY=1\n  for\tReboot")
    assert manager.received() == "STATUS=preparing READY=1 for Reboot"
    notifier.status("ü\udcff" + "x" * 10_000)
    assert manager.received() == "STATUS=ü?" + "x" * 510


def test_the_watchdog_is_fed_at_half_its_time_and_no_more_often_than_useful(manager: Manager) -> None:
    now = 100.0
    notifier = posix.Notifier(manager.place, lambda: now, 4.0)
    assert notifier.interval == 2.0
    fed = []
    for second in (0.0, 0.5, 0.9, 1.0, 1.5, 1.9, 3.9, 4.0):
        now = 100.0 + second
        notifier.alive()
        if manager.is_fed():
            fed.append(second)
    assert fed == [0.0, 1.0, 3.9]


@pytest.mark.parametrize(
    ("watchdog", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}, None),
        *(({"WATCHDOG_USEC": text}, None) for text in ("0", "soon", "-5", "9" * 400)),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": str(os.getpid())}, 0.2),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
    ],
)
def test_only_a_watchdog_that_is_meant_for_us_is_fed(
    manager: Manager, watchdog: dict[str, str], interval: float | None
) -> None:
    notifier = manager.notifier(**watchdog)
    assert notifier.interval == interval
    notifier.alive()
    assert manager.is_fed() == (interval is not None)


def test_children_do_not_inherit_it() -> None:
    environment = {"NOTIFY_SOCKET": "/run/a", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    posix.take_notifier(environment, time.monotonic)
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("place", ["", "relative", "vsock:2:1234", "/nowhere/at/all", "@" + "x" * 500, "/" + "x" * 500])
def test_no_socket_or_none_that_can_be_used_changes_nothing(place: str) -> None:
    notifier = posix.take_notifier({"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "1000000"}, time.monotonic)
    for notify in (notifier.ready, notifier.reloading, notifier.stopping, notifier.alive):
        notify()
    notifier.status("fine")


def test_a_manager_that_does_not_read_delays_us_for_a_moment_only(manager: Manager) -> None:
    manager.fill()
    begun = time.monotonic()
    posix.Notifier(manager.place, time.monotonic, timeout=0.1).ready()
    assert time.monotonic() - begun < 20


# The unit

UNIT = Path(__file__).parents[2] / "packaging" / "forenotice-agent.service"
TEXT = UNIT.read_text()
EXPOSURE = 30
"""In tenths, by systemd's own count; lower is safer."""
SETTINGS: dict[str, list[str]] = {}
for _key, _value in re.findall(r"^([^#=\n]+)=(.*)$", TEXT, re.MULTILINE):
    SETTINGS.setdefault(_key, []).append(_value)

with_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze") and os.environ.get("CI") != "true", reason="systemd-analyze is not here"
)


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@with_systemd
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("ProtectClock=", "ProtectClok="),
        ("@system-service", "@sistem"),
        ("=mixed", "=mix"),
        ("AF_INET6", "AF_INET7"),
    ],
)
def test_systemd_knows_every_word_of_the_unit(tmp_path: Path, right: str, wrong: str) -> None:
    """And would complain about a wrong one. The program need not be installed here."""
    unit = tmp_path / UNIT.name
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", TEXT.replace(right, wrong, 1), flags=re.MULTILINE)
    unit.write_text(text)
    ended = analyze("verify", "--man=no", unit)
    assert (UNIT.name in ended.stdout + ended.stderr) == bool(right)
    assert right or ended.stdout + ended.stderr == ""


@with_systemd
def test_the_unit_keeps_capabilities_that_exist_and_stays_as_tight_as_handlers_allow() -> None:
    known = {line.split()[0].upper() for line in analyze("capability").stdout.splitlines() if line}
    named = {name for line in SETTINGS["CapabilityBoundingSet"] for name in line.split()}
    assert len(named) == 9
    assert named <= known, "`verify` passes over what it does not know"
    ended = analyze("security", "--no-pager", "--offline=yes", f"--threshold={EXPOSURE}", UNIT)
    assert ended.returncode == 0, ended.stdout.splitlines()[-1]


def test_the_unit_runs_reloads_watches_and_restarts_the_agent_and_ends_its_handlers() -> None:
    command = "/usr/bin/forenotice agent run --config /etc/forenotice/agent.toml"
    assert shlex.split(SETTINGS["ExecStart"][0]) == command.split()
    assert SETTINGS["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert f"/var/lib/{SETTINGS['StateDirectory'][0]}" == STATE
    names = ("Type", "WatchdogSec", "Restart", "StartLimitIntervalSec", "KillMode")
    assert [SETTINGS[name] for name in names] == [["notify"], ["3min"], ["always"], ["0"], ["mixed"]]
    assert float(SETTINGS["TimeoutStopSec"][0]) > 2 * GRACE, "it must have the time to end its handlers itself"


def test_what_the_unit_advises_to_loosen_is_there() -> None:
    advised = {
        key for line in re.findall(r"^#.*[Ll]oosen.*", TEXT, re.MULTILINE) for key in re.findall(r"(\w+)=", line)
    }
    assert advised >= {"ProtectHome", "ProtectProc", "PrivateTmp", "PrivateDevices", "PrivateMounts", "UMask"}
    assert advised - {"ReadWritePaths"} <= SETTINGS.keys()
