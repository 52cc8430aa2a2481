"""What a setting can hold, and how it is read from text. A ValueError says what would be right."""

import ipaddress
import re
import shlex
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from forenotice.core import errors, fleet

Choice = TypeVar("Choice", bound=StrEnum)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
SPEED_MIN, SPEED_MAX = 0.01, 100_000
RATE_MIN, RATE_MAX = 0.01, 1_000_000
GUEST_RATE = 5
"""Requests per second of one VM, by default: the limit of the real service."""
WAIT_MAX = 3600
DELAY_MAX = 120
ONE_HOP = "onehop:"
LISTENER = re.compile(
    r"(?P<hops>onehop:)?(?P<at>(?:\[[^\]]*\]|[^%@=\[\]]*):[0-9]+)(?:%(?P<interface>[^@=]*))?(?:@(?P<netns>[^=%@]*))?"
)
"""An address with what may stand after it. The zone of an IPv6 address stands inside its brackets."""
INTERFACE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,15}", re.ASCII)
"""The kernel takes more characters; these are in use, and mean nothing to those who read them."""
ANYBODYS = re.compile(r"(vnet|macvtap|macvlan)[0-9]+", re.ASCII)
"""Names that libvirt gives to the interface of any VM, and then to that of another."""
SOCKET_PATH_MAX = 107
"""Longer ones do not fit into a socket's address (unix(7))."""


class SettingError(errors.RefusedError):
    """A setting is not usable."""

    code = "setting"


class DateForm(StrEnum):
    ISO = "iso"
    RFC1123 = "rfc1123"


class ProxyStyle(StrEnum):
    FORENOTICE = "forenotice"
    OPENSTACK = "openstack"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    AUTO = "auto"
    """For people on a terminal, otherwise JSON."""
    CONSOLE = "console"
    JSON = "json"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Where guests are answered: an address or a unix socket, perhaps for one VM alone."""

    at: Address | Path
    interface: str | None = None
    """The only network interface from which it takes connections."""
    netns: Path | None = None
    """The network namespace in which the address is; None: the service's own."""
    vm: str | None = None
    one_hop: bool = False
    """Answers pass no router: their hop limit is 1."""

    def __str__(self) -> str:
        place = f"unix:{self.at}" if isinstance(self.at, Path) else f"{ONE_HOP * self.one_hop}{self.at}"
        marks = (("%", self.interface), ("@", self.netns), ("=", self.vm))
        return place + "".join(f"{mark}{value}" for mark, value in marks if value is not None)

    @property
    def place(self) -> tuple[Address | Path, str | None, Path | None]:
        """What no two listeners share."""
        return self.at, self.interface, self.netns


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A command that says whether a rollout may go on."""

    name: str
    command: tuple[str, ...]


def switch(value: str) -> bool:
    match value.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError(f"{value!r} is not a switch: give true or false")


def path(value: str) -> Path:
    if not value:
        raise ValueError("is empty: give a path")
    if "\0" in value:
        raise ValueError("a path cannot hold a NUL character")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"{value!r} starts at a home directory that does not exist: give a full path") from None


def address(value: str) -> Address:
    host, colon, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if colon and port.isascii() and port.isdigit() and int(port) <= 65535 and _is_host(bare, bracketed=bare != host):
        return Address(host=bare, port=int(port))
    raise ValueError(f"{value!r} is not HOST:PORT: give one such as 127.0.0.1:8254 or [::1]:8254")


def control_address(value: str) -> Address:
    # FORENOTICE_CONTROL serves both sides, so a server also takes what its clients take.
    return address(value.removeprefix("http://").removeprefix("https://").removesuffix("/"))


def listener(value: str) -> Listener:
    place, equals, vm = value.rpartition("=")
    if not equals:
        place, vm = value, ""
    elif not fleet.NAME.fullmatch(vm):
        raise ValueError(f"{vm!r} is not a VM name: after '=' give 1 to 64 letters, digits, '.', '_' or '-'")
    if not place.startswith("unix:"):
        return _tcp_listener(value, place, vm or None)
    socket = path(place.removeprefix("unix:"))
    if not socket.name:
        raise ValueError(f"{value!r} names no socket: give unix:PATH such as unix:/run/forenotice/guests.sock")
    if len(str(socket).encode()) > SOCKET_PATH_MAX:
        raise ValueError(f"the path of a unix socket holds at most {SOCKET_PATH_MAX} bytes: give a shorter one")
    return Listener(at=socket, vm=vm or None)


def _tcp_listener(value: str, place: str, vm: str | None) -> Listener:
    found = LISTENER.fullmatch(place)
    try:
        at = address(found["at"] if found else "")
    except ValueError:
        found = None
    if not found:
        raise ValueError(
            f"{value!r} is not a listener: give HOST:PORT, onehop:HOST:PORT or unix:PATH, %INTERFACE and @NETNS after "
            "the port for one interface and another network namespace, and =VM after it for one VM alone"
        ) from None
    if found["interface"] is not None and ANYBODYS.fullmatch(interface(found["interface"])) and vm:
        raise ValueError(
            f"libvirt gives the name {found['interface']} to any VM, so it does not stand for {vm}: name the interface "
            f"in the domain, such as <target dev='tap-{vm[:11]}'/>"
        )
    netns = found["netns"]
    if netns is not None and (not netns.startswith("/") or not netns.isprintable()):
        raise ValueError(
            f"{netns!r} is not the path of a network namespace: after '@' give one such as /run/netns/blue or "
            "/proc/PID/ns/net"
        )
    return Listener(
        at=at,
        interface=found["interface"],
        netns=None if netns is None else Path(netns),
        vm=vm,
        one_hop=found["hops"] is not None,
    )


def interface(value: str) -> str:
    """The name of a network interface."""
    if INTERFACE.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not a network interface: give 1 to 15 letters, digits, '.', '_' or '-'")


def host_name(value: str) -> str:
    if HOST.fullmatch(value):
        return value.lower()
    raise ValueError(f"{value[:80]!r} is not a host name: give one such as metadata.example")


def database(value: str) -> str:
    # The value may hold a password, so it is never repeated.
    if value.startswith("sqlite:///") and len(value) > len("sqlite:///"):
        return value
    if value.startswith(("postgresql://", "postgres://")):
        return value
    raise ValueError("is not a database: give sqlite:///PATH or postgresql://USER@HOST/NAME")


def rate(value: str) -> float | None:
    if value.lower() == "off":
        return None
    return number(RATE_MIN, RATE_MAX, "a rate", f"{GUEST_RATE}, or off for no limit", value)


def most_operations(value: str) -> int | None:
    if value.lower() == "off":
        return None
    most = fleet.MAX_USER_OPERATIONS
    if value.isascii() and value.isdigit() and len(value) <= len(str(most)) and 1 <= int(value) <= most:
        return int(value)
    raise ValueError(f"{value!r} is not a number of operations from 1 to {most}: give one such as 10, or off")


def number(low: float, high: float, noun: str, example: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if low <= found <= high:
        return found
    raise ValueError(f"{value!r} is not {noun} from {low:g} to {high:g}: give one such as {example}")


speed = partial(number, SPEED_MIN, SPEED_MAX, "a speed", "60")
wait = partial(number, 0, WAIT_MAX, "a number of seconds", "60")
delay = partial(number, 0, DELAY_MAX, "a number of seconds", "0")


def vm_name(value: str) -> str:
    if fleet.NAME.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not a VM name: give 1 to 64 letters, digits, '.', '_' or '-'")


def vm_names(value: str) -> tuple[str, ...]:
    return tuple(vm_name(each.strip()) for each in value.split(","))


def port(value: str) -> int:
    if value.isascii() and value.isdigit() and int(value) <= 65535:
        return int(value)
    raise ValueError(f"{value!r} is not a port: give a number up to 65535, or 0 for one that is free")


def seed(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value[:80]!r} is not a seed: give a whole number") from None


def driver(value: str) -> Path | None:
    """None: the simulated one."""
    return None if value == "simulated" else path(value)


def gate(value: str) -> Gate:
    name, _, line = value.partition("=")
    try:
        argv = tuple(shlex.split(line))
    except ValueError:
        argv = ()
    if not fleet.NAME.fullmatch(name) or not argv or "\0" in line:
        raise ValueError(
            f"{value[:80]!r} is not a gate: give NAME=COMMAND such as 'shop=/usr/local/bin/is-well --shop'"
        )
    return Gate(name=name, command=argv)


def network(value: str) -> Network:
    try:
        return ipaddress.ip_network(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a network: give one such as 10.0.0.0/24 or fd00::/64") from None


def one_of(kind: type[Choice], value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{value!r} is not one of {', '.join(kind)}") from None


def url(value: str) -> str:
    """The address of a control plane, without a slash at its end; HOST:PORT stands for http://HOST:PORT."""
    full = value if "://" in value else f"http://{value}"
    if "@" in value:
        raise ValueError("holds '@', but names and passwords do not belong into it: give a token instead")
    try:
        parts = urlsplit(full)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or not full.isprintable():
        raise ValueError(f"{value!r} is not a URL: give one such as http://127.0.0.1:8255")
    return full.rstrip("/")


def nats(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.username is not None:
        raise ValueError(
            "this is not the address of a NATS server: give one such as nats://127.0.0.1:4222, "
            "and credentials in a file"
        )
    return value


def endpoint(value: str) -> str:
    """The address of a metadata service: http only, and no path."""
    found = url(value)
    if not found.startswith("http://") or urlsplit(found).path:
        raise ValueError(f"{value!r} is not a metadata endpoint: give one such as http://169.254.169.254")
    return found


def token(value: str) -> str:
    if re.fullmatch(r"[!-~]{1,512}", value):
        return value
    raise ValueError("is not a token: give what `forenotice token create` printed, one word without spaces")


def _is_host(host: str, *, bracketed: bool) -> bool:
    if not bracketed:
        return HOST.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


# Durations as people write them: `90s`, `5m`, `2h`, `7d`.

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SPAN = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})", re.ASCII)
LONGEST = timedelta(days=366)

NEVER = timedelta.max


def lasting(text: object) -> timedelta:
    """How long something lasts: a duration, or `never` for what has no end."""
    return NEVER if text == "never" else Span.read(text)


class Span(timedelta):
    @classmethod
    def read(cls, text: object) -> "Span":
        found = SPAN.fullmatch(text.strip()) if isinstance(text, str) else None
        if not found:
            raise ValueError(f'{text!r} is not a duration: give one such as "30s", "5m" or "2h"')
        seconds = float(found[1]) * UNITS[found[2]]
        if seconds > LONGEST.total_seconds():
            raise ValueError(f"{found[0][:80]!r} is too long: give at most {LONGEST.days}d")
        return cls(seconds=seconds)
