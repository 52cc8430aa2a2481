"""Which connection URIs a host may have for libvirt."""

import re
from urllib.parse import unquote, urlsplit

from forenotice.core import errors

LONGEST = 1000
SCHEME = re.compile(r"[a-z]+(\+(unix|ssh|libssh|libssh2|tls|tcp))?")
PROGRAMS = frozenset({"command", "netcat"})
"""Parameters of a URI that name a program. Whoever may set a host's address must not choose what the service runs."""


def require(uri: str) -> None:
    """RefusedError: it cannot be a host's address for libvirt."""
    example = "give one such as qemu+ssh://host-a/system"
    if len(uri) > LONGEST or not uri.isprintable() or "://" not in uri:
        raise errors.RefusedError(f"{uri[:100]!r} is not a libvirt URI: {example}")
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise errors.RefusedError(f"{uri!r} is not a libvirt URI: {example}") from None
    if parts.password is not None:
        # It would be told wherever the URI is.
        raise errors.RefusedError(f"this URI has a password, which libvirt does not use: {example}")
    if not SCHEME.fullmatch(uri.partition("://")[0]):
        raise errors.RefusedError(
            f"{uri!r} has no transport that is allowed (unix, ssh, libssh, libssh2, tls, tcp): {example}"
        )
    if parts.path.rstrip("/") == "/embed":
        raise errors.RefusedError(f"{uri!r} would run QEMU within the service, which is not allowed: {example}")
    named = {unquote(part.partition("=")[0]).lower() for part in re.split("[&;]", parts.query)}
    if programs := sorted(named & PROGRAMS):
        raise errors.RefusedError(f"{uri!r} names a program ({programs[0]}=), which is not allowed: {example}")
