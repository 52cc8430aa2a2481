"""The whole of agent.toml."""

import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from forenotice import toml, validation
from forenotice.agent.handlers import tables
from forenotice.agent.handlers.tables import require, require_absolute, require_known
from forenotice.agent.rules.policy import EVENT_TYPES, Match, Phase, Policy
from forenotice.core import errors
from forenotice.settings import values
from forenotice.settings.values import Span

STATE = "/var/lib/forenotice-agent"
WHEN = ("prepared", "always", "never")
READY_PATH = "/peers/ready"
KINDS: Mapping[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in typing.get_args(tables.Handler)
}


class ConfigError(errors.RefusedError):
    """The agent's configuration is not usable."""

    code = "config"


class AtOnce(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that need no preparation here."""

    types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    shorter_than: Span | None = None

    def __post_init__(self) -> None:
        require_known("types", self.types, EVENT_TYPES)
        require_known("sources", self.sources, tables.SOURCES)
        any_given = self.types or self.sources or self.shorter_than
        require(any_given, "say which events need no preparation: types, sources or shorter_than")

    @property
    def match(self) -> Match:
        return Match(types=frozenset(self.types), sources=frozenset(self.sources), shorter_than=self.shorter_than)


class Approve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when: str = "prepared"
    """`prepared`; `always`: also events that no handler prepares for; `never`."""
    at_once: tuple[AtOnce, ...] = ()

    def __post_init__(self) -> None:
        require_known("when", [self.when], WHEN)


class Peers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents of VMs that one event may name together with this one."""

    secret_file: str
    secret_files: dict[str, str] = {}
    """By VM name: of a secret that is shared with that VM only."""
    addresses: dict[str, str] = {}
    """By VM name, HOST:PORT."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8256
    """Of those whose address is not given: their name is then a host name."""
    timeout: Span = Span(seconds=30)
    """How long the next VM in Resources waits for the one before it to approve."""

    def __post_init__(self) -> None:
        require_absolute("secret_file", self.secret_file, "/etc/forenotice/peers.secret")
        for path in self.secret_files.values():
            require_absolute("secret_files", path, "/etc/forenotice/web-1.secret")
        for address in self.addresses.values():
            peer_address(address)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    endpoint: str = ""
    state: str = STATE
    listen: str = ""
    """HOST:PORT of /healthz, /readyz, /metrics and of peers' messages; without it, nothing listens."""
    act_for: tuple[str, ...] = ()
    """Other VMs whose events are handled here as if they were this one's."""
    approve: Approve = Approve()
    peers: Peers | None = None
    handlers: tuple[tables.Handler, ...] = msgspec.field(name="handler", default=())

    def __post_init__(self) -> None:
        names = [handler.name for handler in self.handlers]
        for name in names:
            require(names.count(name) == 1, f"two handlers are called {name!r}")
        require_absolute("state", self.state, STATE)
        if self.endpoint:
            _require_readable(
                values.endpoint,
                self.endpoint,
                "endpoint: this is not a metadata endpoint: give one such as http://169.254.169.254",
            )
        if self.listen:
            remedy = f"{self.listen!r} in listen is not HOST:PORT: give one such as 127.0.0.1:8256"
            _require_readable(values.address, self.listen, remedy)
        reachable = self.peers is None or self.listen
        require(reachable, 'peers need an address to send to: give listen, such as "0.0.0.0:8256"')

    @property
    def policy(self) -> Policy:
        return Policy(
            approves=self.approve.when != "never",
            unprepared=self.approve.when == "always",
            at_once=tuple(rule.match for rule in self.approve.at_once),
            peer_timeout=self.peers.timeout if self.peers else None,
        )

    @property
    def unapproved(self) -> tuple[str, ...]:
        """Types of events that no handler prepares for, so the agent does not approve them."""
        if self.approve.when != "prepared":
            return ()
        matches = [rule.match for rule in self.approve.at_once]
        matches += [handler.rule.match for handler in self.handlers if Phase.PREPARE in handler.phases]
        return tuple(kind for kind in EVENT_TYPES if all(match.types and kind not in match.types for match in matches))


def peer_address(address: str) -> tuple[str, int]:
    """Host and port; the host may have an underscore in its name, as VMs may."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or re.search(r"[@/?#\s]", address):
        raise ValueError(f"{address!r} in addresses is not HOST:PORT: give one such as 10.0.0.5:8256")
    return host, port


def _require_readable(read: Callable[[str], object], text: str, remedy: str) -> None:
    try:
        read(text)
    except ValueError:
        raise ValueError(remedy) from None


def load(path: Path) -> Config:
    text = toml.read(path, "the configuration", ConfigError)
    content = text.parse()
    if isinstance(content.get("approve"), str):
        content["approve"] = {"when": content["approve"]}
    try:
        return msgspec.convert(content, Config, dec_hook=tables.read)
    except msgspec.ValidationError as error:
        raise text.complaint(validation.problem(error).keys, _problem(error, content.get("handler"))) from None


def _problem(error: msgspec.ValidationError, handlers: Any) -> str:
    """Handlers are named rather than numbered."""

    def title(found: re.Match[str]) -> str:
        number = int(found[1])
        name = handlers[number].get("name") if isinstance(handlers[number], dict) else None
        return f'handler "{name}"' if isinstance(name, str) else f"handler {number + 1}"

    what, where, missing, unknown = validation.problem(error)
    if unknown is not None:
        structs: list[type[msgspec.Struct]] = [Config, Approve, AtOnce, Peers, *KINDS.values()]
        known = {field for struct in structs for field in struct.__struct_encode_fields__}
        remedy = toml.nearest(unknown, sorted(known), "key")
        text = f"{where}: {remedy}" if where else remedy
    elif isinstance(error.__cause__, ValueError):
        text = f"{where}: {error.__cause__}" if where else str(error.__cause__)
    else:
        text = validation.sentence(error, Config, "agent.toml")
    if where in ("handler", "approve.at_once"):
        text += f": begin it with [[{where}]], in two brackets"
    elif what.startswith("Invalid value") or missing == "type":
        text += f": give one of {', '.join(KINDS)}"
    return re.sub(r"handler\[(\d+)\]", title, text)
