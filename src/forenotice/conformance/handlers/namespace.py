"""A network of a handler's own, in which the endpoint is where it is on the real platform. Linux only."""

import ctypes
import os
import shutil
import subprocess

from forenotice.core import errors
from forenotice.settings import Address

ENDPOINT = Address(host="169.254.169.254", port=80)
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""


def enter() -> None:
    """For this thread, and for all threads and processes that it starts; the rest of this process stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise errors.RefusedError("--namespace needs Linux: leave it out, and let the handler read FORENOTICE_ENDPOINT")
    if libc.unshare(NEW_NETWORK):
        reason = os.strerror(ctypes.get_errno()).lower()
        raise errors.RefusedError(
            f"--namespace needs a network namespace, which is not permitted here ({reason}):"
            " run this as root, or with `unshare --map-root-user` before it"
        )
    if _ip("-o", "route"):
        raise errors.RefusedError("--namespace: the network that was made leads somewhere, and nothing is set up there")
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{ENDPOINT.host}/32", "dev", "lo")


def _ip(*arguments: str) -> str:
    program = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise errors.RefusedError("--namespace needs the program `ip`: install iproute2")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise errors.RefusedError(f"--namespace: `ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
