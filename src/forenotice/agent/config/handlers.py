"""The `[[handler]]` tables of agent.toml: what all have in common, and each type's own keys."""

from typing import Annotated, Any

import msgspec

from forenotice.agent.config import checks
from forenotice.agent.config.values import When
from forenotice.agent.rules.handling import EVENT_TYPES, Match, Phase, Rule
from forenotice.settings.spans import Span

SOURCES = ("Platform", "User")
BACK = frozenset({Phase.RECOVER, Phase.UNDO})
THERE_AND_BACK = frozenset({Phase.PREPARE}) | BACK

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Argv = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


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
        checks.all_of("types", self.types, EVENT_TYPES)
        checks.all_of("sources", self.sources, SOURCES)
        checks.one_of("on_failure", self.on_failure, ("block", "continue"))
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
            checks.program(phase, argv)
        checks.variables(self.environment)
        checks.absolute("directory", self.directory, "/srv")

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
        checks.url(self.url)
        checks.one_of("method", self.method, checks.METHODS)
        checks.headers("headers", self.headers)
        checks.headers("header_files", dict.fromkeys(self.header_files, ""))
        for path in self.header_files.values():
            checks.absolute("header_files", path, "/etc/forenotice/token")
        checks.template("body", self.body)
        if self.ca_file:
            checks.absolute("ca_file", self.ca_file, "/etc/forenotice/ca.pem")


class Systemd(Common, frozen=True, kw_only=True, tag="systemd"):
    units: Argv
    """Stopped to prepare; those that ran before are started again."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        checks.units(self.units)


class File(Common, frozen=True, kw_only=True, tag="file"):
    path: str
    """There from the start of preparing until recovered."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        checks.absolute("path", self.path, "/run/forenotice/drained")


class Haproxy(Common, frozen=True, kw_only=True, tag="haproxy"):
    socket: str
    """Path of the runtime socket, or HOST:PORT."""
    servers: Argv
    """Each BACKEND/SERVER: drained to prepare, made ready again."""
    wait: bool = True
    """Preparing takes until their last session has ended."""

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        checks.runtime_socket(self.socket)
        checks.servers(self.servers)


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
            checks.absolute("kubeconfig", self.kubeconfig, "/etc/forenotice/kubeconfig")


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
            checks.absolute("urls_file", self.urls_file, "/etc/forenotice/urls")
        checks.template("title", self.title)
        checks.template("body", self.body)


class Python(Chosen, frozen=True, kw_only=True, tag="python"):
    entry_point: str
    """MODULE:FUNCTION, or a name in the entry point group `forenotice.handlers`."""
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        checks.entry_point(self.entry_point)


Handler = Command | Webhook | Systemd | File | Haproxy | Kubernetes | Notify | Python
