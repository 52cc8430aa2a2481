"""What values of agent.toml must look like. ValueError says what would be right, and repeats nothing secret."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from forenotice.agent.handlers import templates
from forenotice.settings import values

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")


def one_of(key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{value!r} in {key} is not one of {', '.join(known)}")


def all_of(key: str, given: Iterable[str], known: Collection[str]) -> None:
    for value in given:
        one_of(key, value, known)


def absolute(key: str, path: str, example: str) -> None:
    """Nobody knows where a daemon stands, nor whose home is its own."""
    if not os.path.isabs(path) or "\0" in path:
        raise ValueError(f"{path!r} in {key} is not an absolute path: give one such as {example}")


def program(key: str, argv: Sequence[str]) -> None:
    _without_nul(key, argv)
    if not argv[0].strip():
        raise ValueError(f'{key} names no program: give one such as ["/usr/local/bin/drain", "now"]')


def units(given: Sequence[str]) -> None:
    _without_nul("units", given)
    if not all(unit.strip() for unit in given):
        raise ValueError("units holds an empty name: leave it out")


def _without_nul(key: str, given: Iterable[str]) -> None:
    if any("\0" in word for word in given):
        raise ValueError(f"{key} holds a NUL character, which no program can be given")


def template(key: str, text: str) -> None:
    if flaw := templates.flaw(text):
        raise ValueError(f"{key}: {flaw}")


def entry_point(name: str) -> None:
    if not all(part.strip() for part in name.split(":", 1)):
        raise ValueError(f"{name!r} in entry_point names no function: give MODULE:FUNCTION or an entry point's name")


def variables(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{name!r} in environment cannot be a variable: names have no '=', and nothing has a NUL")


def url(value: str) -> None:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        usable = False
    if not usable or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("url is not one to send to: give one such as https://hooks.example.com/drain")


def endpoint(value: str) -> None:
    try:
        values.endpoint(value)
    except ValueError:
        raise ValueError("endpoint: this is not a metadata endpoint: give one such as http://169.254.169.254") from None


def listen(value: str) -> None:
    try:
        values.address(value)
    except ValueError:
        raise ValueError(f"{value!r} in listen is not HOST:PORT: give one such as 127.0.0.1:8256") from None


def peer(address: str) -> tuple[str, int]:
    """Also a host name with an underscore, as VMs may have."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or re.search(r"[@/?#\s]", address):
        raise ValueError(f"{address!r} in addresses is not HOST:PORT: give one such as 10.0.0.5:8256")
    return host, port


def headers(key: str, given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not _TOKEN.fullmatch(name) or not value.isascii() or not value.isprintable() or value != value.strip():
            raise ValueError(f"{name!r} in {key} cannot be a header: give a name and one line of plain ASCII")
        if name.lower() in ("host", "content-length", "transfer-encoding", "connection"):
            raise ValueError(f"{name!r} in {key} is set by the request itself: leave it out")


def runtime_socket(value: str) -> None:
    if os.path.isabs(value) and "\0" not in value:
        return
    try:
        values.address(value)
    except ValueError:
        raise ValueError(
            f"{value!r} in socket is neither an absolute path nor HOST:PORT:"
            " give one such as /run/haproxy/admin.sock or 127.0.0.1:9999"
        ) from None


def servers(given: Iterable[str]) -> None:
    for server in given:
        if not _SERVER.fullmatch(server):
            raise ValueError(f"{server!r} in servers is not BACKEND/SERVER: give one such as web/web-1")
