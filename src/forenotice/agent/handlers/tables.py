"""The `[[handler]]` tables of agent.toml: what all have in common, and each type's own keys."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from forenotice.agent.handlers import facts
from forenotice.agent.rules.policy import EVENT_TYPES, Match, Phase, Rule
from forenotice.settings import values
from forenotice.settings.spans import Span

SOURCES = ("Platform", "User")
BACK = frozenset({Phase.RECOVER, Phase.UNDO})
THERE_AND_BACK = frozenset({Phase.PREPARE}) | BACK

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Argv = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


_LEAD = re.compile(r"NotBefore\s*-\s*(.+)", re.IGNORECASE)


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
        found = _LEAD.fullmatch(words)
        if not found:
            raise ValueError(f'{text!r} is not a time to begin: give "at once" or one such as "NotBefore - 5m"')
        return cls(Span.read(found[1]))


def read(kind: type, value: object) -> object:
    """msgspec's hook for what it does not know itself."""
    if kind in (Span, When):
        return kind.read(value)
    raise NotImplementedError(f"no way to read a {kind.__name__}")


def write(value: object) -> object:
    """And the way back."""
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
    retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 2
    on_failure: str = "block"
    always_recover: bool = False

    def __post_init__(self) -> None:
        all_of("types", self.types, EVENT_TYPES)
        all_of("sources", self.sources, SOURCES)
        one_of("on_failure", self.on_failure, ("block", "continue"))
        if not self.timeout:
            raise ValueError("timeout is no time at all: give one such as 30s")

    @property
    def phases(self) -> frozenset[Phase]:
        """In which it has something to do."""
        return THERE_AND_BACK

    @property
    def rule(self) -> Rule:
        return Rule(
            name=self.name,
            phases=self.phases,
            match=Match(
                types=frozenset(self.types),
                # Where older versions do not tell the source, it is better to prepare in vain.
                sources=frozenset({*self.sources, None} if self.sources else ()),
                shorter_than=None if self.shorter_than is None else self.shorter_than.total_seconds(),
                longer_than=None if self.longer_than is None else self.longer_than.total_seconds(),
            ),
            stage=self.stage,
            lead=self.when.lead,
            timeout=self.timeout,
            retries=self.retries,
            blocks=self.on_failure == "block",
            always_recover=self.always_recover,
        )


class Chosen(Common, frozen=True, kw_only=True):
    """A handler that does the same in every phase it is told to act in."""

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
    """Without it, what `recover` says."""
    shell: bool = False
    """Each command is one text for /bin/sh: `prepare = ["systemctl stop a && sync"]`."""
    environment: dict[str, str] = {}
    directory: str = "/"

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if not any((self.prepare, self.on_started, self.recover, self.undo)):
            raise ValueError("give it something to run: prepare, on_started, recover or undo")
        if self.shell and any(len(argv) > 1 for argv in self.commands.values()):
            raise ValueError("with shell = true each command is a list of one text")
        for phase, argv in self.commands.items():
            program(phase, argv)
        variables(self.environment)
        absolute("directory", self.directory, "/srv")

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
    """Headers whose value is a file's content: for secrets."""
    body: str = ""
    """A template with $FORENOTICE_... and $EVENT_...; without it, all facts as JSON."""
    ca_file: str = ""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        url(self.url)
        one_of("method", self.method, METHODS)
        headers("headers", self.headers)
        headers("header_files", dict.fromkeys(self.header_files, ""))
        for path in self.header_files.values():
            absolute("header_files", path, "/etc/forenotice/token")
        template("body", self.body)
        if self.ca_file:
            absolute("ca_file", self.ca_file, "/etc/forenotice/ca.pem")


class Systemd(Common, frozen=True, kw_only=True, tag="systemd"):
    units: Argv
    """Stopped to prepare; those that ran before are started again."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        units(self.units)


class File(Common, frozen=True, kw_only=True, tag="file"):
    path: str
    """There from the start of preparing until recovered."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        absolute("path", self.path, "/run/forenotice/drained")


class Haproxy(Common, frozen=True, kw_only=True, tag="haproxy"):
    socket: str
    """Path of the runtime socket, or HOST:PORT."""
    servers: Argv
    """Each BACKEND/SERVER: drained to prepare, made ready again."""
    wait: bool = True
    """Preparing takes until their last session has ended."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        runtime_socket(self.socket)
        servers(self.servers)


class Kubernetes(Common, frozen=True, kw_only=True, tag="kubernetes"):
    node: str = ""
    """Without it, this VM's name in lower case."""
    kubeconfig: str = ""
    """Without it, the service account's, when this runs in a pod."""
    context: str = ""
    grace_period: Span | None = None
    """Instead of each pod's own."""
    timeout: Span = Span(minutes=15)
    """Budgets take their time; the deadline is when this is over, and shortly before NotBefore at the latest."""
    escalate: Span = Span(seconds=30)
    """This long before the deadline, pods that a budget still protects are deleted; 0s: never."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if self.kubeconfig:
            absolute("kubeconfig", self.kubeconfig, "/etc/forenotice/kubeconfig")


class Notify(Chosen, frozen=True, kw_only=True, tag="notify"):
    urls: tuple[str, ...] = ()
    """Where to, in apprise's form."""
    urls_file: str = ""
    """One on each line: for secrets."""
    title: str = "$EVENT_TYPE of $FORENOTICE_NAME: $FORENOTICE_PHASE"
    body: str = "$EVENT_DESCRIPTION Not before $EVENT_NOTBEFORE."
    on_failure: str = "continue"
    """Other than elsewhere: a sink that is down is no reason to hold up a VM's preparation."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """A sink that fails is tried once more by itself; a retry tells all of them again."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if not (self.urls or self.urls_file):
            raise ValueError("say where to notify: urls or urls_file")
        if self.urls_file:
            absolute("urls_file", self.urls_file, "/etc/forenotice/urls")
        template("title", self.title)
        template("body", self.body)


class Python(Chosen, frozen=True, kw_only=True, tag="python"):
    entry_point: str
    """MODULE:FUNCTION, or a name in the entry point group `forenotice.handlers`."""
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        entry_point(self.entry_point)


Handler = Command | Webhook | Systemd | File | Haproxy | Kubernetes | Notify | Python


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
    if flaw := facts.flaw(text):
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
