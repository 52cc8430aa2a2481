"""Loading rules into the kernel, in the network namespace of this process."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterable

from forenotice.core import errors

SECONDS = 30


class NftError(errors.ForenoticeError):
    """nft did not load the rules."""

    code = "nft"


def require_interfaces(names: Iterable[str]) -> None:
    """Rules for another machine do no harm here, but protect nothing there."""
    here = {name for _, name in socket.if_nameindex()}
    if missing := [name for name in names if name not in here]:
        raise errors.RefusedError(
            f"there is no interface {missing[0]} here: apply the rules on the host itself, for example with "
            "`forenotice network rules ... | ssh HOST nft -f -`"
        )


def load(text: str) -> None:
    """All of it or nothing."""
    program = shutil.which("nft", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        raise NftError("nft is not installed: apt-get install nftables")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and every word of the text has been checked
            [program, "-f", "-"], input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NftError(f"nft did not load the rules: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()[:40])
        remedy = ": run it as root, or with CAP_NET_ADMIN" if "not permitted" in said else ""
        raise NftError(f"nft did not load the rules ({said}){remedy}")
