"""Whom a request's Host may name.

A browser sends the name that its page was loaded from, and whoever owns a name decides which address it leads to. So a
web page could reach an endpoint of this machine by a name of its own; by an address it cannot do so unseen.
"""

import ipaddress
from collections.abc import Collection


def is_known(host: str, names: Collection[str] = ()) -> bool:
    """Whether it is an address, `localhost` or one of these names (in lower case), with or without a port."""
    rest, colon, port = host.rpartition(":")
    name = rest if colon and (not port or port.isdigit()) else host
    return _is_address(host) or _is_address(name) or name.lower() in ("localhost", *names)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
