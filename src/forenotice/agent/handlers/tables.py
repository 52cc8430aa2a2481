"""The `[[handler]]` tables of agent.toml: what all have in common, and each type's own keys.

A ValueError says what would be right, and repeats nothing that may be secret.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from forenotice.agent.handlers import facts
from forenotice.agent.rules.policy import EVENT_TYPES, Match, Phase, Rule
from forenotice.core import fleet
from forenotice.settings import values
from forenotice.settings.values import Span
from forenotice.validation import pattern

SOURCES = ("Platform", "User")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SET_BY_REQUEST = ("host", "content-length", "transfer-encoding", "connection")
PATHS = {
    "path": "/run/forenotice/drained",
    "directory": "/srv",
    "ca_file": "/etc/forenotice/ca.pem",
    "kubeconfig": "/etc/forenotice/kubeconfig",
    "urls_file": "/etc/forenotice/urls",
}
"""Keys whose value is an absolute path, with an example."""
TEMPLATES = ("title", "body")
_LEAD = re.compile(r"NotBefore\s*-\s*(.+)", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")

Name = Annotated[str, pattern(fleet.NAME.pattern, fleet.IS_NAME)]
Argv = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
Retries = Annotated[int, msgspec.Meta(ge=0, le=100)]


def require(ok: object, remedy: str) -> None:
    if not ok:
        raise ValueError(remedy)


def require_known(key: str, given: Iterable[str], known: Collection[str]) -> None:
    for value in given:
        require(value in known, f"{value!r} in {key} is not one of {', '.join(known)}")


def require_absolute(key: str, path: str, example: str) -> None:
    """A daemon's working directory and home are not the administrator's."""
    usable = os.path.isabs(path) and "\0" not in path
    require(usable, f"{path!r} in {key} is not an absolute path: give one such as {example}")


def _require_no_nul(key: str, given: Iterable[str]) -> None:
    require(not any("\0" in word for word in given), f"{key} holds a NUL character, which no program can be given")


def _is_address(text: str) -> bool:
    try:
        values.address(text)
    except ValueError:
        return False
    return True


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        return False
    return usable and text.isascii() and text.isprintable() and " " not in text


class When:
    """`at once`, or `NotBefore - 5m`."""

    __slots__ = ("lead",)

    def __init__(self, lead: timedelta | None = None) -> None:
        self.lead = lead

    def __eq__(self, other: object) -> bool:
        return isinstance(other, When) and self.lead == other.lead

    def __hash__(self) -> int:
        return hash(self.lead)

    @classmethod
    def read(cls, text: object) -> "When":
        words = text.strip() if isinstance(text, str) else ""
        if words.lower() == "at once":
            return cls()
        if found := _LEAD.fullmatch(words):
            return cls(Span.read(found[1]))
        raise ValueError(f'{text!r} is not a time to begin: give "at once" or one such as "NotBefore - 5m"')


def read(kind: type, value: object) -> object:
    """msgspec's hook for types that it does not know."""
    if kind in (Span, When):
        return kind.read(value)
    raise NotImplementedError(f"no way to read a {kind.__name__}")


def write(value: object) -> object:
    match value:
        case timedelta():
            return f"{value.total_seconds():.3f}s"
        case When(lead=None):
            return "at once"
        case When(lead=timedelta() as lead):
            return f"NotBefore - {write(lead)}"
    raise NotImplementedError(f"no way to write a {type(value).__name__}")


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    name: Name
    stage: int = 0
    """Stages prepare from the lowest up, and recover from the highest down; within one, all at the same time."""
    types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    shorter_than: Span | None = None
    longer_than: Span | None = None
    when: When = When()
    timeout: Span = Span(minutes=1)
    retries: Retries = 2
    on_failure: str = "block"
    always_recover: bool = False

    def __post_init__(self) -> None:
        require_known("types", self.types, EVENT_TYPES)
        require_known("sources", self.sources, SOURCES)
        require_known("on_failure", [self.on_failure], ("block", "continue"))
        require(self.timeout, "timeout is no time at all: give one such as 30s")
        for key, example in PATHS.items():
            path = getattr(self, key, None)
            if path or (path == "" and key in ("path", "directory")):
                require_absolute(key, path, example)
        for key in TEMPLATES:
            flaw = facts.template_flaw(getattr(self, key, ""))
            require(not flaw, f"{key}: {flaw}")
        self._check()

    def _check(self) -> None:
        """What a type of handler requires beyond that."""

    @property
    def phases(self) -> frozenset[Phase]:
        return frozenset({Phase.PREPARE, Phase.RECOVER, Phase.UNDO})

    @property
    def rule(self) -> Rule:
        return Rule(
            name=self.name,
            phases=self.phases,
            match=Match(
                types=frozenset(self.types),
                # Older versions do not tell the source; then it is better to prepare in vain.
                sources=frozenset({*self.sources, None} if self.sources else ()),
                shorter_than=self.shorter_than,
                longer_than=self.longer_than,
            ),
            stage=self.stage,
            lead=self.when.lead,
            timeout=self.timeout,
            retries=self.retries,
            blocks=self.on_failure == "block",
            always_recover=self.always_recover,
        )


class Chosen(Common, frozen=True, kw_only=True):
    """A handler that does the same in every phase that `phases` lists."""

    phases_given: Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1)] = msgspec.field(
        name="phases", default=(Phase.PREPARE, Phase.RECOVER, Phase.UNDO)
    )

    @property
    def phases(self) -> frozenset[Phase]:
        return frozenset(self.phases_given)


class Command(Common, frozen=True, kw_only=True, tag="command"):
    prepare: Argv | None = None
    on_started: Argv | None = None
    recover: Argv | None = None
    undo: Argv | None = None
    shell: bool = False
    """Each command is one text for /bin/sh: `prepare = ["systemctl stop a && sync"]`."""
    environment: dict[str, str] = {}
    directory: str = "/"

    def _check(self) -> None:
        require(self.commands, "give it something to run: prepare, on_started, recover or undo")
        one_each = not self.shell or all(len(argv) == 1 for argv in self.commands.values())
        require(one_each, "with shell = true each command is a list of one text")
        for phase, argv in self.commands.items():
            _require_no_nul(phase, argv)
            require(argv[0].strip(), f'{phase} names no program: give one such as ["/usr/local/bin/drain", "now"]')
        for name, value in self.environment.items():
            remedy = f"{name!r} in environment cannot be a variable: names have no '=', and nothing has a NUL"
            require(name and "=" not in name and "\0" not in name + value, remedy)

    @property
    def commands(self) -> dict[Phase, Argv]:
        given = {
            Phase.PREPARE: self.prepare,
            Phase.ON_STARTED: self.on_started,
            Phase.RECOVER: self.recover,
            Phase.UNDO: self.undo or self.recover,
        }
        return {phase: argv for phase, argv in given.items() if argv}

    @property
    def phases(self) -> frozenset[Phase]:
        return frozenset(self.commands)


class Webhook(Chosen, frozen=True, kw_only=True, tag="webhook"):
    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    header_files: dict[str, str] = {}
    body: str = ""
    """A template with $FORENOTICE_... and $EVENT_...; without it, all facts as JSON."""
    ca_file: str = ""

    def _check(self) -> None:
        require(_is_url(self.url), "url is not one to send to: give one such as https://hooks.example.com/drain")
        require_known("method", [self.method], METHODS)
        _require_headers("headers", self.headers)
        _require_headers("header_files", dict.fromkeys(self.header_files, ""))
        for path in self.header_files.values():
            require_absolute("header_files", path, "/etc/forenotice/token")


def _require_headers(key: str, given: Mapping[str, str]) -> None:
    for name, value in given.items():
        usable = _TOKEN.fullmatch(name) and value.isascii() and value.isprintable() and value == value.strip()
        require(usable, f"{name!r} in {key} cannot be a header: give a name and one line of plain ASCII")
        remedy = f"{name!r} in {key} is set by the request itself: leave it out"
        require(name.lower() not in SET_BY_REQUEST, remedy)


class Systemd(Common, frozen=True, kw_only=True, tag="systemd"):
    units: Argv

    def _check(self) -> None:
        _require_no_nul("units", self.units)
        require(all(unit.strip() for unit in self.units), "units holds an empty name: leave it out")


class File(Common, frozen=True, kw_only=True, tag="file"):
    path: str


class Haproxy(Common, frozen=True, kw_only=True, tag="haproxy"):
    socket: str
    """Path of the runtime socket, or HOST:PORT."""
    servers: Argv
    """Each BACKEND/SERVER: drained to prepare, made ready again."""
    wait: bool = True

    def _check(self) -> None:
        require(
            (os.path.isabs(self.socket) and "\0" not in self.socket) or _is_address(self.socket),
            f"{self.socket!r} in socket is neither an absolute path nor HOST:PORT:"
            " give one such as /run/haproxy/admin.sock or 127.0.0.1:9999",
        )
        for server in self.servers:
            remedy = f"{server!r} in servers is not BACKEND/SERVER: give one such as web/web-1"
            require(_SERVER.fullmatch(server), remedy)


class Kubernetes(Common, frozen=True, kw_only=True, tag="kubernetes"):
    node: str = ""
    """Without it, this VM's name in lower case."""
    kubeconfig: str = ""
    """Without it, the service account's, when this runs in a pod."""
    context: str = ""
    grace_period: Span | None = None
    timeout: Span = Span(minutes=15)
    """The drain ends after this, and shortly before NotBefore at the latest."""
    escalate: Span = Span(seconds=30)
    """This long before the deadline, pods that a budget still protects are deleted; 0s: never."""


class Notify(Chosen, frozen=True, kw_only=True, tag="notify"):
    urls: tuple[str, ...] = ()
    urls_file: str = ""
    title: str = "$EVENT_TYPE of $FORENOTICE_NAME: $FORENOTICE_PHASE"
    body: str = "$EVENT_DESCRIPTION Not before $EVENT_NOTBEFORE."
    on_failure: str = "continue"
    """Not `block` as elsewhere: a sink that is down is no reason to delay a VM's preparation."""
    retries: Retries = 0
    """A sink that fails is tried again by itself; a retry notifies all of them again."""

    def _check(self) -> None:
        require(self.urls or self.urls_file, "say where to notify: urls or urls_file")


class Python(Chosen, frozen=True, kw_only=True, tag="python"):
    entry_point: str
    """MODULE:FUNCTION, or a name in the entry point group `forenotice.handlers`."""
    options: dict[str, Any] = {}

    def _check(self) -> None:
        remedy = f"{self.entry_point!r} in entry_point names no function: give MODULE:FUNCTION or an entry point's name"
        require(all(part.strip() for part in self.entry_point.split(":", 1)), remedy)


Handler = Command | Webhook | Systemd | File | Haproxy | Kubernetes | Notify | Python
