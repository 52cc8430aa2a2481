"""Which names a request's Host header may have: protection against DNS rebinding.

A browser sends the name that its page was loaded from, and the owner of a name decides which address it resolves to. So
a web page could point its own name at an endpoint on this machine.
"""

import ipaddress
from collections.abc import Collection


def is_allowed(host: str, names: Collection[str] = ()) -> bool:
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
