"""Asking somebody before a platform is made to do what it would not do otherwise."""

import ipaddress
import sys

from forenotice.cli.usage import UsageError
from forenotice.core import errors

LISTENING = (
    "On the real platform a first request switches Scheduled Events on for this VM for a day, "
    "and its answer may take two minutes."
)


def to_listen(host: str, *, yes: bool) -> None:
    """Before the first request to an endpoint that may be a real platform's: say what it does, and ask."""
    if yes or is_loopback(host):
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{LISTENING} Nobody can be asked here: give --yes to go ahead")
    sys.stderr.write(f"{LISTENING} Go ahead? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise errors.RefusedError("nothing was asked: it was not confirmed")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
