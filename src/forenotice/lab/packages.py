"""What the lab needs of the system, and the one command that installs what is missing."""

import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from forenotice.core import errors

PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
"""With what many users do not have on theirs."""
PROGRAMS = {
    "libvirtd": "libvirt-daemon",
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
"""Each program, and the package that has it on Debian and Ubuntu."""
DRIVER = tuple(f"{place}/libvirt/connection-driver/libvirt_driver_qemu.so" for place in ("lib/*", "lib64", "lib"))
"""Where distributions have it, below /usr."""
KERNEL, KERNEL_OF_UBUNTU = "linux-image-cloud-amd64", "linux-image-virtual"


class MissingError(errors.RefusedError):
    """The lab needs programs that are not installed."""

    code = "missing"


def program(name: str) -> str:
    """Its path."""
    found = find(name)
    if found is None:
        raise missing([PROGRAMS[name]])
    return found


def find(name: str) -> str | None:
    return shutil.which(name, path=PATH)


def require(names: Iterable[str] = PROGRAMS, more: Sequence[str] = ()) -> None:
    """All at once, so that one command installs everything. `more` are packages that are known to be missing."""
    packages = [PROGRAMS[name] for name in names if find(name) is None]
    if not any(next(Path("/usr").glob(place), None) for place in DRIVER):
        packages.append("libvirt-daemon-driver-qemu")
    if packages or more:
        raise missing([*packages, *more])


def kernel() -> str:
    """The package of a small kernel."""
    with suppress(OSError):
        if platform.freedesktop_os_release()["ID"] == "ubuntu":
            return KERNEL_OF_UBUNTU
    return KERNEL


def missing(packages: Sequence[str]) -> MissingError:
    named = list(dict.fromkeys(packages))
    return MissingError(
        f"the lab needs {all_of(named)}, which {'is' if len(named) == 1 else 'are'} not installed: "
        f"apt-get install --no-install-recommends {' '.join(named)}"
    )


def all_of(names: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
