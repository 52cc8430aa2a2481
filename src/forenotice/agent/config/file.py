"""The whole of agent.toml."""

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from forenotice import secretfiles
from forenotice.agent.config import checks, complaints, values
from forenotice.agent.config.handlers import SOURCES, Handler
from forenotice.agent.rules.approval import Policy
from forenotice.agent.rules.handling import EVENT_TYPES, Match, Phase
from forenotice.core import errors
from forenotice.settings.spans import Span

STATE = "/var/lib/forenotice-agent"
WHEN = ("prepared", "always", "never")
READY_PATH = "/peers/ready"
"""Where an agent is told that a peer is ready."""


class ConfigError(errors.RefusedError):
    """The agent's configuration is not usable."""

    code = "config"


class AtOnce(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that need no preparation here."""

    types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    shorter_than: Span | None = None

    def __post_init__(self) -> None:
        checks.all_of("types", self.types, EVENT_TYPES)
        checks.all_of("sources", self.sources, SOURCES)
        if not (self.types or self.sources or self.shorter_than):
            raise ValueError("say which events need no preparation: types, sources or shorter_than")

    @property
    def match(self) -> Match:
        return Match(
            types=frozenset(self.types),
            sources=frozenset(self.sources),
            shorter_than=None if self.shorter_than is None else self.shorter_than.total_seconds(),
        )


class Approve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when: str = "prepared"
    """`prepared`; `always`: also what no handler prepares for; `never`."""
    at_once: tuple[AtOnce, ...] = ()

    def __post_init__(self) -> None:
        checks.one_of("when", self.when, WHEN)


class Peers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents of VMs that one event may name together with this one."""

    secret_file: str
    secret_files: dict[str, str] = {}
    """By VM name: of a secret that is shared with that one only."""
    addresses: dict[str, str] = {}
    """By VM name, HOST:PORT."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8256
    """Of those whose address is not given: their name is then a host name."""
    timeout: Span = Span(seconds=30)
    """How long the next one in Resources waits for the one before it to approve."""

    def __post_init__(self) -> None:
        checks.absolute("secret_file", self.secret_file, "/etc/forenotice/peers.secret")
        for path in self.secret_files.values():
            checks.absolute("secret_files", path, "/etc/forenotice/web-1.secret")
        for address in self.addresses.values():
            checks.peer(address)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    endpoint: str = ""
    state: str = STATE
    listen: str = ""
    """HOST:PORT of /healthz, /readyz, /metrics and of what peers tell; without it, nothing listens."""
    act_for: tuple[str, ...] = ()
    """Other VMs whose events are handled here as if they were this one's."""
    approve: Approve = Approve()
    peers: Peers | None = None
    handlers: tuple[Handler, ...] = msgspec.field(name="handler", default=())

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
        return tuple(
            kind for kind in EVENT_TYPES if not any(kind in match.types or not match.types for match in matches)
        )

    def __post_init__(self) -> None:
        names = [handler.name for handler in self.handlers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two handlers are called {name!r}")
        checks.absolute("state", self.state, STATE)
        if self.endpoint:
            checks.endpoint(self.endpoint)
        if self.listen:
            checks.listen(self.listen)
        if self.peers is not None and not self.listen:
            raise ValueError('peers need a place to tell things to: give listen, such as "0.0.0.0:8256"')


TABLES: complaints.Tables = {"": Config, "approve": Approve, "approve.at_once": AtOnce, "peers": Peers}


def load(path: Path) -> Config:
    try:
        content = tomllib.loads(secretfiles.read(path, "the configuration", secret=False).decode())
    except errors.RefusedError as error:
        raise ConfigError(error.message) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    if isinstance(content.get("approve"), str):
        content["approve"] = {"when": content["approve"]}
    try:
        return msgspec.convert(content, Config, dec_hook=values.read)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {complaints.reworded(str(error), content, TABLES)}") from None
