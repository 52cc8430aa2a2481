"""Loading rules into the kernel, in the network namespace of this process."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterable

from forenotice.core import errors

SECONDS = 30


class NftError(errors.ForenoticeError):
    """The kernel did not take the rules."""

    code = "nft"


def require_interfaces(names: Iterable[str]) -> None:
    """Rules for another machine do no harm here, but protect nothing there."""
    here = {name for _, name in socket.if_nameindex()}
    if missing := [name for name in names if name not in here]:
        raise errors.RefusedError(
            f"there is no interface {missing[0]} here: apply the rules on the host itself, for example with "
            "`forenotice network rules ... | ssh HOST nft -f -`"
        )


def run(commands: Iterable[str]) -> None:
    """Those that the rules need beside their text."""
    for command in commands:
        words = command.split()
        name = words[words.index("dev") + 1]
        try:
            _run("ip", "iproute2", f"change {name}", *words[1:])
        except NftError as error:
            if "not supported" not in str(error):
                raise
            raise errors.RefusedError(
                f"{name} is neither a bridge of Linux itself nor a port of one, so nftables does not see what is sent "
                "there: use the rules of the switch that it belongs to"
            ) from None


def load(text: str) -> None:
    """All of it or nothing."""
    _run("nft", "nftables", "load the rules", "-f", "-", given=text)


def _run(program: str, package: str, task: str, *arguments: str, given: str = "") -> None:
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise NftError(f"{program} is not installed: apt-get install {package}")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and every word that it is given has been checked
            [found, *arguments], input=given, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NftError(f"{program} did not {task}: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()[:40])
        remedy = ": run it as root, or with CAP_NET_ADMIN" if "not permitted" in said else ""
        raise NftError(f"{program} did not {task} ({said}){remedy}")
