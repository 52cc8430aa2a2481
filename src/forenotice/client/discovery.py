"""Where the endpoint may be: the order in which a client looks for it (docs/library.md)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

from forenotice.core import errors

VARIABLE = "FORENOTICE_ENDPOINT"
ADDRESS = "169.254.169.254"
PORTS_BY_DHCP = (80, 8080)

LEASES = (
    "/var/lib/dhcp/dhclient*.lease*",
    "/var/lib/dhclient/*.lease*",
    "/run/systemd/netif/leases/*",
    "/var/lib/NetworkManager/*.lease",
    "/run/NetworkManager/devices/*",
)
"""Patterns of files; the formats are told apart by what is in them."""
LARGEST_LEASE = 256 * 1024

# `option unknown-245 a8:3f:81:10;` or `option unknown-245 "bL6 ";` of dhclient, the newest lease last.
_DHCLIENT = re.compile(r'^\s*option unknown-245 (?:"((?:[^"\\\n]|\\.)*)"|([0-9a-fA-F:]+))\s*;', re.MULTILINE)
# `OPTION_245=a83f8110` of systemd-networkd; NetworkManager also writes colons, and the address as it is.
_KEYED = re.compile(r"^(?:OPTION_245|private_245)=(\S+)\s*$", re.MULTILINE)
_ESCAPED = re.compile(r"\\([0-7]{3}|.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    host: str
    port: int = 80
    how: str
    """Where it is from, in words."""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}" if self.port == 80 else f"http://{host}:{self.port}"


WELL_KNOWN = Candidate(host=ADDRESS, how="the usual address")


def given(url: str | None, environ: Mapping[str, str]) -> Candidate | None:
    """An endpoint that is given is the only candidate."""
    variable = environ.get(VARIABLE)
    named = url or variable
    # Settings hand on what the variable says.
    return parse(named, VARIABLE if named == variable else "given") if named else None


def candidates(leases: Sequence[str] = LEASES) -> Sequence[Candidate]:
    """Where to look otherwise, in order."""
    by_dhcp = dict.fromkeys(address for address in addresses(leases) if address != ADDRESS)
    return (
        WELL_KNOWN,
        *(Candidate(host=host, port=port, how="DHCP option 245") for host in by_dhcp for port in PORTS_BY_DHCP),
    )


def parse(url: str, how: str) -> Candidate:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if (
            parts.scheme == "http"
            and parts.hostname
            and parts.path in ("", "/")
            and not (parts.query or parts.username)
        ):
            return Candidate(host=parts.hostname, port=parts.port or 80, how=how)
    except ValueError:
        pass
    raise errors.RefusedError(f"{url!r} ({how}) is not a metadata endpoint: give one such as http://{ADDRESS}")


def addresses(leases: Sequence[str]) -> Iterator[str]:
    """What DHCP option 245 says in these files; those that cannot be read say nothing."""
    for pattern in leases:
        for file in sorted(Path("/").glob(pattern.removeprefix("/"))):
            try:
                with file.open("rb") as opened:
                    text = opened.read(LARGEST_LEASE).decode("latin-1")
            except OSError:
                continue
            yield from in_lease(text)


def in_lease(text: str) -> Iterator[str]:
    written = [_unescaped(found[1]) if found[2] is None else found[2] for found in _DHCLIENT.finditer(text)]
    for value in (*reversed(written), *(found[1] for found in _KEYED.finditer(text))):
        address = _address(value)
        if address is not None:
            yield address


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8) & 0xFF) if len(found[1]) == 3 else found[1], text)


def _address(value: str) -> str | None:
    """Four bytes as they are, in hexadecimal with colons or without, or as everybody writes them."""
    try:
        if len(value) == 4:
            return str(IPv4Address(value.encode("latin-1")))
        if "." in value:
            return str(IPv4Address(value))
        parts = value.split(":") if ":" in value else re.findall("..", value)
        return str(IPv4Address(bytes(int(part, 16) for part in parts)))
    except ValueError:
        return None
