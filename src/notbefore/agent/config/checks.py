"""What values of `[[handler]]` must look like. ValueError says what would be right, and repeats nothing secret."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import urlsplit

from notbefore.settings import values

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")


def one_of(key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{value!r} in {key} is not one of {', '.join(known)}")


def all_of(key: str, given: Iterable[str], known: Collection[str]) -> None:
    for value in given:
        one_of(key, value, known)


def absolute(key: str, path: str) -> None:
    if not os.path.isabs(path) or "\0" in path:
        raise ValueError(f"{path!r} in {key} is not an absolute path: give one such as /run/notbefore/drained")


def words(key: str, given: Iterable[str]) -> None:
    if any("\0" in word for word in given):
        raise ValueError(f"{key} holds a NUL character, which no program can be given")


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


def method(value: str) -> None:
    if not _TOKEN.fullmatch(value) or value != value.upper():
        raise ValueError(f"{value!r} in method is not an HTTP method: give one such as POST")


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
