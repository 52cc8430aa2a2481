"""Which control plane a command talks to: the socket in the data directory or a URL; and with which token."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forenotice import control_socket
from forenotice.core import errors
from forenotice.settings import OperatorSettings

DEFAULT = "http://127.0.0.1:8255"
"""If a token is given and no service runs here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    tokens: list[str]
    """The first that is accepted is used."""
    url: str = "http://localhost"
    directory: Path | None = None
    """The data directory with the socket; None: use the URL."""


def find(settings: OperatorSettings) -> Target:
    if settings.control_url is not None:
        return _address(settings, settings.control_url)
    try:
        found = [each for each in settings.directories if control_socket.is_in(each)]
        here = next((each for each in found if control_socket.answers(each)), None)
    except OSError as error:
        if settings.token:
            return _address(settings, DEFAULT)
        raise errors.RefusedError(
            f"the control plane's socket in {settings.data} cannot be used ({str(error.strerror).lower()}): run this "
            "as the user that runs `forenotice serve`, or give --token"
        ) from None
    if here is not None:
        return Target(directory=here, tokens=_tokens(settings, here))
    if settings.token:
        return _address(settings, DEFAULT)
    if found:
        # Left behind by a service that was killed, and may come back.
        return Target(directory=found[0], tokens=_tokens(settings, found[0]))
    _tokens(settings, *settings.directories)
    raise errors.UnavailableError(
        f"cannot reach the control plane: no `forenotice serve` uses the data directory {settings.data}; "
        "start it, name another directory with --data, or give --control-url and --token"
    )


def _address(settings: OperatorSettings, url: str) -> Target:
    encrypted = url.startswith("https:")
    if not settings.token and not (encrypted and _is_here(url)):
        advice = "leave --control-url out, so that the socket in the data directory is used, or give --token"
        if not _is_here(url):
            advice = f"for {url} give --token"
        raise errors.RefusedError(f"a token from a file is only sent to the service in the same directory: {advice}")
    if not (encrypted or _is_here(url) or settings.control_without_tls):
        raise errors.RefusedError(
            f"the token would reach {url} unencrypted: give an address that begins with https://, or "
            "--control-without-tls if something else encrypts it"
        )
    return Target(url=url, tokens=_tokens(settings, *settings.directories))


def _tokens(settings: OperatorSettings, *directories: Path) -> list[str]:
    if settings.token:
        return [settings.token]
    found = list(_read(directories))
    if not found:
        raise errors.RefusedError(
            f"no token: start `forenotice serve` here, give --token, set FORENOTICE_TOKEN, or name with --data the "
            f"directory that holds admin.token (none is in {settings.data}); "
            "`forenotice token create NAME --offline` makes one where the database is"
        )
    return found


def _read(directories: tuple[Path, ...]) -> Iterator[str]:
    for directory in directories:
        file = directory / "admin.token"
        try:
            yield file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise errors.RefusedError(
                f"the token in {file} cannot be read ({error}): give --token or set FORENOTICE_TOKEN"
            ) from None


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
