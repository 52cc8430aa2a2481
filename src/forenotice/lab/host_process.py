"""The first process of a lab host, in namespaces of its own: makes its network, runs libvirtd, reaps what is left.

When it ends, the kernel ends everything in its process namespace: libvirtd, and the host's guests.
Runs by itself, without the package: `unshare ... python -I -S host_process.py`, with its order on standard input.
"""

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

MS_BIND, MS_REC = 0x1000, 0x4000
HIDDEN = frozenset({"dbus", "firewalld", "libvirt", "lock", "mount", "systemd"})
"""In /run: sockets and locks of the machine's own daemons."""
SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The number of that system call."""
READY, AGAIN, END = b"ready\n", signal.SIGHUP, signal.SIGTERM


def main() -> None:
    # The machine's /proc is still there, so this is the process id that others see.
    print(os.readlink("/proc/self"), flush=True)
    asked = sys.stdin.readline()
    if not asked:
        return  # The parent ended before it had recorded the process id.
    order: dict[str, Any] = json.loads(asked)
    try:
        _mount(order)
        _network(order)
        if os.path.exists("/proc/self/setgroups") and _read("/proc/self/setgroups") == "deny":
            _pretend_setgroups()
        signal.pthread_sigmask(signal.SIG_BLOCK, {AGAIN, END, signal.SIGCHLD})
        _await_socket(order["socket"], order["seconds"], _run(order))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(error.cmd)}: {error.stderr.strip()}")
    except OSError as error:
        sys.exit(str(error))
    os.write(1, READY)
    _detach()
    while (came := signal.sigwait({AGAIN, END, signal.SIGCHLD})) != END:
        _reap()
        if came == AGAIN:
            _run(order)


def _mount(order: dict[str, Any]) -> None:
    socket.sethostname(order["name"])
    _call("proc", "/proc", "proc")
    # Shows the network devices of this namespace, and no control groups.
    _call("sysfs", "/sys", "sysfs")
    # Without what the machine's daemons have there: libvirtd must not talk to its systemd, nor share locks.
    _cover("/run", HIDDEN)
    os.mkdir("/run/libvirt", 0o755)
    os.mkdir("/run/lock", 0o1777)
    for target, source in order["directories"].items():
        if os.path.isdir(source) and not os.path.exists(target):
            # Where libvirtd has never run. Nothing is made there on the machine itself, where it would stay.
            _cover(os.path.dirname(target))
            os.mkdir(target, 0o755)
        _call(source, target, None, MS_BIND)


def _cover(place: str, hidden: frozenset[str] = frozenset()) -> None:
    """Mount a directory there in which more can be made, with the directories that are there, but for the hidden."""
    old = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    kept = [entry for entry in os.scandir(old) if entry.name not in hidden]
    _call("tmpfs", place, "tmpfs", 0, "mode=755")
    for entry in kept:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.name, dir_fd=old), f"{place}/{entry.name}")
        elif entry.is_dir():
            os.mkdir(f"{place}/{entry.name}", 0o755)
            _call(f"/proc/self/fd/{old}/{entry.name}", f"{place}/{entry.name}", None, MS_BIND | MS_REC)
    os.close(old)


def _call(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)"""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        number = ctypes.get_errno()
        raise OSError(number, f"{source} cannot be mounted: {os.strerror(number)}", target)


def _pretend_setgroups() -> None:
    """Let setgroups(2) succeed without doing anything: an unprivileged user namespace forbids it, and libvirtd insists.

    By a filter of seccomp(2), for this process and all that it starts.
    """
    number = SETGROUPS.get(os.uname().machine)
    if number is None:
        raise OSError(f"a host can be started as root only on {os.uname().machine}")
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allowed, done = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with no error
    steps = [(load, 0, 0, 0), (jump_if_equal, 0, 1, number), (give, 0, 0, done), (give, 0, 0, allowed)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(filters)))
    set_seccomp, mode_filter = 22, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(set_seccomp, ctypes.c_ulong(mode_filter), ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _network(order: dict[str, Any]) -> None:
    for arguments in order["network"]:
        subprocess.run([order["ip"], *arguments], check=True, capture_output=True, text=True)  # noqa: S603


def _run(order: dict[str, Any]) -> int:
    null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    log = (os.POSIX_SPAWN_OPEN, 1, order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [null, log, (os.POSIX_SPAWN_DUP2, 1, 2)]
    environment = {"PATH": order["path"], "LC_ALL": "C", "HOME": "/var/lib/libvirt"}
    return os.posix_spawn(order["libvirtd"][0], order["libvirtd"], environment, file_actions=actions, setsigmask=())


def _await_socket(path: str, seconds: float, libvirtd: int) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(path)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise OSError(f"libvirtd does not listen after {seconds:g} s") from None
        if signal.sigtimedwait({signal.SIGCHLD}, 0.02) and libvirtd in _reap():
            raise OSError("libvirtd has ended")


def _reap() -> set[int]:
    reaped = set[int]()
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            reaped.add(pid)
    except ChildProcessError:
        pass
    return reaped


def _detach() -> None:
    """Nobody reads what this process says from now on."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.chdir("/")


if __name__ == "__main__":
    main()
