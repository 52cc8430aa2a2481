"""What systemd hears, on a real datagram socket."""

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from forenotice.agent import posix


class Manager:
    """The end that systemd holds."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(self._address)
        self._line.settimeout(5)

    @property
    def _address(self) -> str:
        return "\0" + self.place[1:] if self.place.startswith("@") else self.place

    def heard(self) -> str:
        return self._line.recv(4096).decode()

    def heard_nothing(self) -> bool:
        self._line.setblocking(False)
        try:
            assert self._line.recv(4096) == b"WATCHDOG=1"
            return False
        except BlockingIOError:
            return True
        finally:
            self._line.settimeout(5)

    def fill(self) -> None:
        """Until whoever else sends something would have to wait."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    line.sendto(b"x", self._address)

    def close(self) -> None:
        self._line.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify") if request.param == "path" else f"@forenotice-{uuid.uuid4()}")
    yield manager
    manager.close()


def test_each_turn_is_told_in_systemds_words(manager: Manager) -> None:
    notifier = posix.take_notifier({"NOTIFY_SOCKET": manager.place}, time.monotonic)
    notifier.ready()
    assert manager.heard() == "READY=1"
    notifier.stopping()
    assert manager.heard() == "STOPPING=1"
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    said, _, moment = manager.heard().partition("\nMONOTONIC_USEC=")
    assert said == "RELOADING=1"
    assert before <= int(moment) <= time.monotonic_ns() // 1000


def test_a_status_is_one_line_of_bounded_length_whatever_is_in_it(manager: Manager) -> None:
    notifier = posix.take_notifier({"NOTIFY_SOCKET": manager.place}, time.monotonic)
    notifier.status("preparing\nREADY=1\n  for\tReboot")
    assert manager.heard() == "STATUS=preparing READY=1 for Reboot"
    notifier.status("ü\udcff" + "x" * 10_000)
    assert manager.heard() == "STATUS=ü?" + "x" * 510


def test_the_watchdog_is_fed_at_half_its_time_and_no_more_often_than_useful(manager: Manager) -> None:
    now = 100.0
    notifier = posix.Notifier(manager.place, lambda: now, 4.0)
    assert notifier.interval == 2.0
    fed = []
    for second in (0.0, 0.5, 0.9, 1.0, 1.5, 1.9, 3.9, 4.0):
        now = 100.0 + second
        notifier.alive()
        if not manager.heard_nothing():
            fed.append(second)
    assert fed == [0.0, 1.0, 3.9]


@pytest.mark.parametrize(
    "watchdog",
    [
        {},
        {"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "9" * 400},
    ],
)
def test_without_a_watchdog_that_is_meant_for_us_none_is_fed(manager: Manager, watchdog: dict[str, str]) -> None:
    notifier = posix.take_notifier({"NOTIFY_SOCKET": manager.place, **watchdog}, time.monotonic)
    assert notifier.interval is None
    notifier.alive()
    assert manager.heard_nothing()


def test_a_watchdog_for_us_or_for_nobody_in_particular_is_meant_for_us(manager: Manager) -> None:
    ours = {"NOTIFY_SOCKET": manager.place, "WATCHDOG_USEC": "400000", "WATCHDOG_PID": str(os.getpid())}
    assert posix.take_notifier(ours, time.monotonic).interval == 0.2
    assert (
        posix.take_notifier({"NOTIFY_SOCKET": manager.place, "WATCHDOG_USEC": "30000000"}, time.monotonic).interval
        == 15.0
    )


def test_children_do_not_inherit_it() -> None:
    environment = {"NOTIFY_SOCKET": "/run/a", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    posix.take_notifier(environment, time.monotonic)
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("place", ["", "relative", "vsock:2:1234", "/nowhere/at/all", "@" + "x" * 500, "/" + "x" * 500])
def test_no_socket_or_none_that_can_be_used_changes_nothing(place: str) -> None:
    notifier = posix.take_notifier({"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "1000000"}, time.monotonic)
    for tell in (notifier.ready, notifier.reloading, notifier.stopping, notifier.alive):
        tell()
    notifier.status("fine")


def test_one_who_does_not_read_keeps_us_for_a_moment_only(manager: Manager) -> None:
    manager.fill()
    begun = time.monotonic()
    posix.Notifier(manager.place, time.monotonic, timeout=0.1).ready()
    assert time.monotonic() - begun < 20
