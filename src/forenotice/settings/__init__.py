"""Settings: flags, then FORENOTICE_* variables, then a TOML file, then defaults. Reads one file, changes nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from forenotice.settings import table
from forenotice.settings.table import Setting
from forenotice.settings.values import (
    Address,
    DateForm,
    Gate,
    Listener,
    LogFormat,
    LogLevel,
    Network,
    ProxyStyle,
    SettingError,
)

__all__ = ["Address", "DateForm", "Gate", "Listener", "LogFormat", "LogLevel", "Network", "ProxyStyle", "SettingError"]

CONTROL = Address(host="127.0.0.1", port=8255)
"""Of the emulator, if none is given."""
FORMER_DATABASE = "notbefore.db"
"""The file's name before the project was renamed; a directory that has it is used as it is."""
PASSWORD = re.compile(r"\w+://[^/@]*:[^/@]*@|.*[?&]password=")
"""In the address of a database."""
CLUSTER_DEMO, CLUSTER_SERVICES = "cluster", ("serve-1", "serve-2")
"""In the data directory: of `forenotice cluster demo`, and there of its services."""
BURST = 4
"""Seconds' worth of requests that a VM may send at once."""

S = TypeVar("S", bound=msgspec.Struct)
Flags = Mapping[str, object]
"""What was given on the command line, by setting; None, () and False stand for nothing."""


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every process that answers guests needs to know."""

    data: Path
    metadata: tuple[Listener, ...]
    metadata_name: tuple[str, ...]
    as_vm: str | None
    guest_rate: float | None
    """Requests per second; None: no limit."""
    wait_cap: float
    first_response_delay: float
    first_version_dates: DateForm
    proxy_trusted: tuple[Network, ...]
    proxy_style: ProxyStyle
    proxy_secret_file: Path | None
    nats: tuple[str, ...]
    nats_credentials: Path | None
    nats_ca: Path | None
    nats_certificate: Path | None
    nats_key: Path | None
    log_level: LogLevel
    log_format: LogFormat
    config: Path | None

    @property
    def guest_burst(self) -> float | None:
        return None if self.guest_rate is None else self.guest_rate * BURST


class Settings(EndpointSettings, frozen=True, kw_only=True):
    """What `forenotice serve` needs to know."""

    demo: bool
    database: str | None
    control: Address
    control_name: tuple[str, ...]
    control_certificate: Path | None
    control_key: Path | None
    control_without_tls: bool
    sign_in_link: bool
    speed: float
    token_rate: float | None
    """Requests per second; None: no limit."""
    max_user_operations: int | None
    max_tenant_operations: int | None
    edge_patience: timedelta
    allow_loopback_addresses: bool
    allow_private_targets: tuple[Network, ...]
    driver: Path | None
    """The file of an outside one; None: simulated."""
    inventory_rules: Path | None
    gate: tuple[Gate, ...]

    @property
    def directory(self) -> Path:
        """Where this service keeps its things; the demo has its own."""
        return self.data / "demo" if self.demo else self.data

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self._database_in(self.directory)}"

    @staticmethod
    def _database_in(directory: Path) -> Path:
        file = directory / "forenotice.db"
        former = directory / FORMER_DATABASE
        known = former.exists() or former.with_name(f"{FORMER_DATABASE}.mark").exists()
        return former if known and not file.exists() else file

    @property
    def database_file(self) -> Path | None:
        """Of SQLite; PostgreSQL has none."""
        file = self.database_url.removeprefix("sqlite:///")
        return None if file == self.database_url else Path(file.partition("?")[0])

    @property
    def former_data(self) -> Path | None:
        """Left under the project's former name, where this directory has no database yet."""
        former = self.data.with_name(Path(FORMER_DATABASE).stem)
        is_new = self.database is None and not self._database_in(self.data).exists()
        return former if is_new and (former / FORMER_DATABASE).exists() else None

    @property
    def token_file(self) -> Path:
        return self.directory / "admin.token"


class EdgeSettings(EndpointSettings, frozen=True, kw_only=True):
    """What `forenotice edge run` needs to know."""

    host: str
    stale_after: timedelta
    edge_metrics: Address

    @property
    def directory(self) -> Path:
        return self.data / "edge"


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a command on NATS's servers needs to know."""

    nats: tuple[str, ...]
    nats_credentials: Path | None
    nats_ca: Path | None
    nats_certificate: Path | None
    nats_key: Path | None
    config: Path | None


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator's command needs to know."""

    control_url: str | None
    """None: the socket in the data directory."""
    token: str | None
    control_ca: Path | None
    control_without_tls: bool
    data: Path
    config: Path | None

    @property
    def directories(self) -> tuple[Path, ...]:
        """Of the service, of its demo, of its lab, and of the demo of a cluster."""
        cluster = self.data / CLUSTER_DEMO
        return (self.data, self.data / "demo", self.data / "lab", *(cluster / name for name in CLUSTER_SERVICES))


class ClusterDemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `forenotice cluster demo` needs to know."""

    data: Path
    control: Address
    speed: float
    config: Path | None

    @property
    def directory(self) -> Path:
        return (self.data / CLUSTER_DEMO).absolute()

    @property
    def others(self) -> tuple[Path, ...]:
        """Directories of services that commands would find before the demo's."""
        return (self.data, self.data / "demo", self.data / "lab")


class LabSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `forenotice lab` needs to know."""

    data: Path
    control: Address
    speed: float
    config: Path | None

    @property
    def directory(self) -> Path:
        return (self.data / "lab").absolute()

    @property
    def others(self) -> tuple[Path, ...]:
        """Directories of services that commands would find before the lab's."""
        return (self.data, self.data / "demo")


class GuestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a command inside a VM needs to know."""

    endpoint: str | None
    """None: it is to be found."""
    name: str | None
    config: Path | None


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `forenotice agent` needs to know before it reads agent.toml; what is None may stand there."""

    config: Path
    state: Path | None
    observe: bool
    endpoint: str | None
    name: str | None
    log_level: LogLevel
    log_format: LogFormat


class EmulatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `forenotice emulate` needs to know."""

    resources: tuple[str, ...] | None
    speed: float
    port: int | None
    """Of `metadata`, if given apart."""
    metadata: Address
    metadata_name: tuple[str, ...]
    control: Address | None
    open_control: bool
    as_vm: str | None
    seed: int | None
    ready_file: Path | None

    @property
    def guests_at(self) -> Address:
        return self.metadata if self.port is None else replace(self.metadata, port=self.port)

    @property
    def control_at(self) -> Address:
        if self.control is not None:
            return self.control
        return CONTROL if self.guests_at.port else replace(CONTROL, port=0)


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `forenotice emulator` needs to know."""

    control_url: str
    config: Path | None


def load(flags: Flags, environ: Mapping[str, str]) -> Settings:
    settings = Settings(**_resolve(table.SERVE, flags, environ))
    _require_pair(settings, "control_certificate", "control_key")
    _require_sound_endpoint(settings)
    names = [gate.name for gate in settings.gate]
    if len(names) != len(set(names)):
        raise SettingError("gate has the same name twice: give each its own")
    return settings


def load_edge(flags: Flags, environ: Mapping[str, str]) -> EdgeSettings:
    found = _resolve(table.EDGE, flags, environ)
    for name, key, flag in (("host", "edge_host", "--host host-a"), ("nats", "nats", "--nats nats://127.0.0.1:4222")):
        if not found[name]:
            why = f"an edge needs {key}: give it in the settings file, or as {flag}"
            raise SettingError(why, setting=key)
    settings = EdgeSettings(**found)
    _require_sound_endpoint(settings)
    return settings


def load_nats(flags: Flags, environ: Mapping[str, str]) -> NatsSettings:
    settings = NatsSettings(**_resolve(table.NATS, flags, environ))
    _require_pair(settings, "nats_certificate", "nats_key")
    if not settings.nats:
        raise SettingError("no NATS server is given: give one, such as --nats nats://127.0.0.1:4222", setting="nats")
    return settings


def _require_pair(settings: msgspec.Struct, one: str, other: str) -> None:
    if bool(getattr(settings, one)) != bool(getattr(settings, other)):
        raise SettingError(f"{one} and {other} need each other: give both or neither")


def _require_sound_endpoint(settings: EndpointSettings) -> None:
    _require_pair(settings, "proxy_trusted", "proxy_secret_file")
    _require_pair(settings, "nats_certificate", "nats_key")
    if not settings.metadata:
        raise SettingError("metadata names no listener: give at least one, such as 127.0.0.1:8254")
    places = [listener.place for listener in settings.metadata if isinstance(listener.at, Path) or listener.at.port]
    if len(places) != len(set(places)):
        raise SettingError(
            "metadata names the same listener twice: give each address or socket once for each interface and network "
            "namespace"
        )


def _load(kind: type[S], rows: Sequence[Setting], flags: Flags, environ: Mapping[str, str]) -> S:
    return kind(**_resolve(rows, flags, environ))


load_operator = partial(_load, OperatorSettings, table.OPERATOR)
load_lab = partial(_load, LabSettings, table.LAB)
load_cluster_demo = partial(_load, ClusterDemoSettings, table.CLUSTER_DEMO)
load_guest = partial(_load, GuestSettings, table.GUEST)
load_agent = partial(_load, AgentSettings, table.AGENT)
load_emulator = partial(_load, EmulatorSettings, table.EMULATE)
load_driver = partial(_load, DriverSettings, table.EMULATOR)


def _resolve(rows: Sequence[Setting], flags: Flags, environ: Mapping[str, str]) -> dict[str, Any]:
    config = next(_given(table.CONFIG, flags, environ, {}, ""), None) if table.CONFIG in rows else None
    path = None if config is None else _read(table.CONFIG, *config)
    file = _file(path) if isinstance(path, Path) else {}
    found: dict[str, Any] = {}
    for row in rows:
        given = next(_given(row, flags, environ, file, str(path)), None)
        if given is None:
            default = row.demo if found.get("demo") and row.demo is not None else row.default
            given = ("default", () if default is None else (default,))
        found[row.attribute] = _read(row, *given)
    return found


def _given(
    row: Setting, flags: Flags, environ: Mapping[str, str], file: Mapping[str, object], path: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Where a setting was given, first come first served, with its words."""
    flag = flags.get(row.name)
    if flag not in (None, (), [], False):
        yield row.flag, _words(row, row.flag, flag)
    # An empty variable counts as none: that is how a unit file or a shell takes one back.
    if variable := environ.get(row.variable):
        yield row.variable, _several(row, variable) if row.repeatable else (variable,)
    if row.in_file and row.name in file:
        origin = f"{row.name} in {path}"
        yield origin, _words(row, origin, file[row.name])


def _several(row: Setting, variable: str) -> tuple[str, ...]:
    if row.by_line:
        return tuple(line for line in variable.splitlines() if line.strip())
    return tuple(variable.replace(",", " ").split())


def _words(row: Setting, origin: str, value: object) -> tuple[str, ...]:
    match value:
        case bool():
            return ("true" if value else "false",)
        case str() | int() | float():
            return (str(value),)
        case list() | tuple() if row.repeatable and all(isinstance(item, str) for item in value):
            return tuple(value)
    wanted = "a text or a list of texts" if row.repeatable else "one value"
    raise SettingError(f"{origin}: {wanted} is needed, such as {row.default or row.metavar}", setting=row.name)


def _read(row: Setting, origin: str, words: tuple[str, ...]) -> object:
    try:
        read = tuple(row.read(word) for word in words)
    except ValueError as error:
        raise SettingError(f"{origin}: {error}", setting=row.name) from None
    if row.repeatable:
        return read
    return read[0] if read else None


def _file(path: Path) -> Mapping[str, object]:
    """Others must not be able to change it: they could have the service run a gate, or tokens sent elsewhere."""
    # Only where there is a file: every command pays for what is imported at its start.
    from forenotice import toml

    text = toml.read(path, "the settings file", SettingError, links=True)
    content = text.parse()
    known = {row.name: row for row in table.everything().values() if row.in_file}
    for key in content:
        if key not in known:
            raise text.complaint((key,), toml.nearest(key, sorted(known), "setting"))
    if "token" in content or PASSWORD.match(str(content.get("database", ""))):
        toml.read(path, "the settings file, which holds a secret,", SettingError, secret=True, links=True)
    return content
