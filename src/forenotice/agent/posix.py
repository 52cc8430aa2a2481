"""What systemd is told: that the agent is up, what it does, and that it lives (sd_notify(3))."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, MutableMapping

TIMEOUT = 1.0
LONGEST_STATUS = 512
_MICROSECONDS = re.compile(r"[1-9][0-9]{0,14}")


class Notifier:
    """Tells one socket; whatever happens to that, the agent goes on."""

    def __init__(
        self,
        place: str,
        watchdog: float | None = None,
        *,
        timeout: float = TIMEOUT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = "\0" + place[1:] if place.startswith("@") else place
        self.every = None if watchdog is None else watchdog / 2
        """Call `alive` at least this often, in seconds; None: nobody watches."""
        self._timeout = timeout
        self._monotonic = monotonic
        self._alive_at = float("-inf")

    def ready(self) -> None:
        """Started, or reloaded."""
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={' '.join(text.split())[:LONGEST_STATUS]}")

    def alive(self) -> None:
        """May be called as often as one likes: told no more often than is useful."""
        now = self._monotonic()
        if self.every is not None and now - self._alive_at >= self.every / 2:
            self._alive_at = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._place:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(self._timeout)
                line.sendto(text.encode(errors="replace"), self._place)
        except OSError:
            pass  # Nobody there, or it does not listen: nothing that we could do about it.


SILENT = Notifier("")


def take(environment: MutableMapping[str, str]) -> Notifier:
    """What the environment asks for. It is taken out, so that no child answers in our name."""
    place = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    watched = environment.pop("WATCHDOG_PID", "")
    if not place.startswith(("/", "@")):
        return SILENT
    if watched not in ("", str(os.getpid())) or not _MICROSECONDS.fullmatch(microseconds):
        return Notifier(place)
    return Notifier(place, int(microseconds) / 1e6)


def install(*, stop: Callable[[], None], reload: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda _number, _frame: reload())


def connect(path: str, timeout: float) -> socket.socket:
    """OSError: nobody listens there, or not for us."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout)
        made.connect(path)
    except OSError:
        made.close()
        raise
    return made
