"""Everything of the agent that only POSIX systems have: sd_notify(3), SIGHUP, unix sockets."""

import os
import re
import signal
import socket
from collections.abc import Callable, MutableMapping

TIMEOUT = 1.0
LONGEST_STATUS = 512
_MICROSECONDS = re.compile(r"[1-9][0-9]{0,14}")


class Notifier:
    """Notifies systemd; if that fails, the agent goes on."""

    def __init__(
        self, place: str, monotonic: Callable[[], float], watchdog: float | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        self._place = "\0" + place[1:] if place.startswith("@") else place
        self._monotonic = monotonic
        self.interval = None if watchdog is None else watchdog / 2
        """Call `alive` at least this often, in seconds; None: there is no watchdog."""
        self._timeout = timeout
        self._alive_at = float("-inf")

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(self._monotonic() * 1e6)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={' '.join(text.split())[:LONGEST_STATUS]}")

    def alive(self) -> None:
        """May be called at any rate: it notifies no more often than is useful."""
        now = self._monotonic()
        if self.interval is not None and now - self._alive_at >= self.interval / 2:
            self._alive_at = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._place:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(self._timeout)
                connection.sendto(text.encode(errors="replace"), self._place)
        except OSError:
            pass  # The agent can do nothing about it.


def take_notifier(environment: MutableMapping[str, str], monotonic: Callable[[], float]) -> Notifier:
    """As systemd asked for. The variables are removed, so that no child notifies in our name."""
    place = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    watched = environment.pop("WATCHDOG_PID", "")
    if not place.startswith(("/", "@")):
        return Notifier("", monotonic)
    if watched not in ("", str(os.getpid())) or not _MICROSECONDS.fullmatch(microseconds):
        return Notifier(place, monotonic)
    return Notifier(place, monotonic, int(microseconds) / 1e6)


def install_signals(*, stop: Callable[[], None], reload: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda _number, _frame: reload())


def connect(path: str, timeout: float) -> socket.socket:
    """To a unix socket. OSError: it cannot be reached."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
