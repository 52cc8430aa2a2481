"""The network interface and the network namespace in which a listener takes connections."""

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from forenotice.runtime import start_thread

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
NAME_SIZE = 16
"""Of an interface's name, with the NUL at its end."""


class UnusableError(Exception):
    """An interface or a network namespace cannot be used; the message says why, and what to do."""


def bind(listening: socket.socket, interface: str, netns: Path | None) -> None:
    """Take connections from there only; they inherit it, so responses leave by it too."""
    if bridge := _bridge_of(interface):
        raise UnusableError(f"{interface} is a port of the bridge {bridge}, where its packets arrive: give %{bridge}")
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    except PermissionError:
        raise UnusableError(f"it may not be bound to {interface}: give the service CAP_NET_RAW") from None
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        where = "this network namespace" if netns is None else netns
        raise UnusableError(f"there is no interface {interface} in {where}: `ip link` shows those there are") from None


def is_bound(listening: socket.socket, interface: str) -> bool:
    """Still: not once the interface is gone, even if another has got its name since."""
    try:
        name = listening.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, NAME_SIZE)
    except OSError:
        return False
    return name.rstrip(b"\0") == interface.encode()


def identity(netns: Path | None) -> tuple[int, int] | None:
    """By which a network namespace differs from another at the same path; None: there is none."""
    if netns is None:
        return None
    try:
        found = netns.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _bridge_of(interface: str) -> str | None:
    """Of which bridge it is a port, as far as /sys tells; that may show another network namespace."""
    shown = Path("/sys/class/net", interface)
    with contextlib.suppress(OSError, ValueError):
        is_ours = int((shown / "ifindex").read_text()) == socket.if_nametoindex(interface)
        if is_ours and (shown / "master/bridge").exists():
            return (shown / "master").resolve().name
    return None


def call_in(netns: Path, work: Callable[[], T]) -> T:
    """In a thread of its own, for what a thread opens is in the network namespace that the thread has entered."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            _enter(netns)
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    start_thread(run, "forenotice-netns")
    return outcome.result()


def _enter(netns: Path) -> None:
    # os.setns came with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with netns.open("rb") as file:
            if not libc.setns(file.fileno(), CLONE_NEWNET):
                return
            code = ctypes.get_errno()
    except OSError as error:
        code = error.errno or 0
    reason = {
        errno.ENOENT: "there is no such network namespace: `ip netns` shows those that have a name",
        errno.EINVAL: "that is not a network namespace: give a path such as /run/netns/blue or /proc/PID/ns/net",
        errno.EPERM: "another network namespace may not be entered: give the service CAP_SYS_ADMIN",
        errno.EACCES: "the network namespace may not be opened: give the service CAP_SYS_PTRACE, or name the namespace",
    }
    raise UnusableError(reason.get(code, f"the network namespace cannot be entered: {os.strerror(code)}"))
