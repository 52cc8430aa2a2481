"""Source networks of a token: `10.0.0.0/8`, `2001:db8::/48`, or one address."""

import ipaddress
from collections.abc import Iterable, Sequence

from forenotice.core import errors
from forenotice.core.fleet import canonical_address

MOST = 32
LOCAL = "127.0.0.1"
"""The address of requests over the unix socket."""


def parsed(texts: Sequence[str]) -> tuple[str, ...]:
    """In canonical form, without duplicates."""
    if len(texts) > MOST:
        raise errors.RefusedError(f"{len(texts)} networks are too many: give at most {MOST}")
    return tuple(dict.fromkeys(str(_network(text)) for text in texts))


def include(networks: Iterable[str], origin: str) -> bool:
    """Whether an address is in one of them; an empty one means the unix socket."""
    address = ipaddress.ip_address(canonical_address(origin or LOCAL))
    return any(address in ipaddress.ip_network(network) for network in networks)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError:
        raise errors.RefusedError(
            f"{text[:80]!r} is not a network: give one such as 10.0.0.0/8, 2001:db8::/48 or 192.0.2.7",
            network=text[:80],
        ) from None
