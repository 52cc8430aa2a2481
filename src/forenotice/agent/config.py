"""The whole of agent.toml."""

import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from forenotice import toml
from forenotice.agent.handlers import tables
from forenotice.agent.handlers.tables import require, require_absolute, require_known
from forenotice.agent.rules.policy import EVENT_TYPES, Match, Phase, Policy
from forenotice.core import errors
from forenotice.settings import values
from forenotice.settings.spans import Span

STATE = "/var/lib/forenotice-agent"
WHEN = ("prepared", "always", "never")
READY_PATH = "/peers/ready"
"""Where peers send their readiness."""


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
    content = toml.read(path, "the configuration", ConfigError).parse()
    if isinstance(content.get("approve"), str):
        content["approve"] = {"when": content["approve"]}
    try:
        return msgspec.convert(content, Config, dec_hook=tables.read)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_reworded(str(error), content)}") from None


Tables = Mapping[str, type[msgspec.Struct]]
"""By path, all but the handlers: `""`, `peers`, `approve.at_once`."""
TABLES: Tables = {"": Config, "approve": Approve, "approve.at_once": AtOnce, "peers": Peers}
KINDS: Tables = {str(kind.__struct_config__.tag): kind for kind in typing.get_args(tables.Handler)}

_PLACED = re.compile(r"(?P<said>.*) - at `\$(?P<path>.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)(?:\[(\d+|\.\.\.)\])?")
_REPEATED = ("handler", "approve.at_once")
_WORDS = {
    "str": 'a text in quotes, such as "a"',
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": 'a list, such as ["a", "b"]',
    "object": "a table",
}
_GENERAL: Sequence[tuple[str, Callable[[re.Match[str]], str]]] = (
    (r"Object missing required field `type`", lambda _: f"the key 'type' is missing: give one of {', '.join(KINDS)}"),
    (r"Object missing required field `(.*)`", lambda found: f"the key {found[1]!r} is missing"),
    (r"Invalid value (.*)", lambda found: f"{found[1]} is not a type of handler: give one of {', '.join(KINDS)}"),
    (r"Invalid enum value (.*)", lambda found: f"{found[1]} is not a phase: give some of {', '.join(Phase)}"),
    (r"Expected `(\w+)( \| null)?`, got .*", lambda found: f"this must be {_WORDS.get(found[1], found[1])}"),
    (r"Expected `str` matching regex .*", lambda _: "this must be 1 to 64 letters, digits, '.', '_' or '-'"),
    (r"Expected `int` >= (.*)", lambda found: f"this must be at least {found[1]}"),
    (r"Expected `int` <= (.*)", lambda found: f"this must be at most {found[1]}"),
    (r"Expected `array` of length >= 1", lambda _: "this list must not be empty"),
)


def _reworded(error: str, content: Mapping[str, object]) -> str:
    """`handler "drain": there is no key 'tiemout'; did you mean 'timeout'?`"""
    placed = _PLACED.fullmatch(error)
    said, path = (placed["said"], placed["path"]) if placed else (error, "")
    steps = _STEP.findall(path)
    table = ".".join(key for key, _ in steps)
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL):
        message = toml.nearest(found[1], [*_keys(table, _handler(steps, content))], "key")
    elif table in _REPEATED and said.startswith("Expected `array`"):
        message = f"begin it with [[{table}]], in two brackets"
    elif table == "approve" and said.startswith("Expected `object`"):
        message = 'this must be a text or a table, such as approve = "always"'
    else:
        message = _general(said)
    return ": ".join([*_place(steps, content), message])


def _general(said: str) -> str:
    for pattern, reword in _GENERAL:
        if found := re.fullmatch(pattern, said, re.DOTALL):
            return reword(found)
    return said


def _keys(table: str, handler: Mapping[str, object]) -> Sequence[str]:
    if table == "handler":
        kind = KINDS.get(str(handler.get("type")), tables.Common)
        return ("type", *kind.__struct_encode_fields__)
    return TABLES[table].__struct_encode_fields__


def _handler(steps: Sequence[tuple[str, str]], content: Mapping[str, object]) -> Mapping[str, object]:
    """That the complaint is about, if it is about one."""
    given = content.get("handler")
    if steps and steps[0][0] == "handler" and steps[0][1] and isinstance(given, list):
        found = given[int(steps[0][1])]
        return found if isinstance(found, dict) else {}
    return {}


def _place(steps: Sequence[tuple[str, str]], content: Mapping[str, object]) -> Iterable[str]:
    keys = [key if not index.isdecimal() or key != "at_once" else f"{key} {int(index) + 1}" for key, index in steps]
    if steps and steps[0] != ("handler", "") and steps[0][0] == "handler":
        name = _handler(steps, content).get("name")
        yield f'handler "{name}"' if isinstance(name, str) else f"handler {int(steps[0][1]) + 1}"
        keys = keys[1:]
    if keys:
        yield ".".join(keys)
