"""The file that describes drivers: what is called, for which hosts, how often, and how many at once."""

import string
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from forenotice import toml, validation
from forenotice.core import errors, selectors
from forenotice.core.operations import Kind
from forenotice.core.selectors import Selector
from forenotice.core.timing import Retries
from forenotice.settings.values import Span

OF_TASK = frozenset({"operation", "kind", "host", "host_address", "attempt", "duration"})
OF_VM = frozenset({"vm", "vm_id", "event", "shutdown_timeout"})
OF_MOVE = frozenset({"target", "target_address"})
OURS = "FORENOTICE_"
"""The service's own variables may be secret, and are not passed on."""

Argv = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1000)]
Number = Annotated[int, msgspec.Meta(ge=1, le=256)]


class DriverFileError(errors.RefusedError):
    """The driver's file is not usable."""

    code = "driver_file"


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    pause: Span = Span(seconds=2)
    """After the first try that failed; twice as long after each further one."""

    @property
    def retries(self) -> Retries:
        return Retries(tries=self.tries, first_pause=self.pause)


class Common(RetrySettings, frozen=True, kw_only=True, tag_field="driver"):
    time_limit: Span = Span(minutes=1)
    """Of one call."""
    at_once: Number = 8
    at_once_per_host: Number = 2

    def __post_init__(self) -> None:
        if not self.time_limit:
            raise ValueError('time_limit is no time at all: give one such as "1m"')

    @property
    def each_vm(self) -> frozenset[Kind]:
        """Kinds of which each VM is a call of its own."""
        return frozenset()


class Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: Argv
    each: str = "vm"
    """`vm`: called once for each VM; `host`: once for all VMs of the operation, which are on one host."""

    def __post_init__(self) -> None:
        if self.each not in ("vm", "host"):
            raise ValueError(f'{self.each!r} in each is not known: give "vm" or "host"')

    def known(self, kind: Kind) -> frozenset[str]:
        """What may stand in braces."""
        if self.each == "host":
            return OF_TASK
        return OF_TASK | OF_VM | (OF_MOVE if kind.traits.moves else frozenset())


class Actions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    default: Argv | Action | None = None
    """For the kinds that are left out."""
    restart: Argv | Action | None = None
    redeploy: Argv | Action | None = None
    eviction: Argv | Action | None = None
    deletion: Argv | Action | None = None
    host_update: Argv | Action | None = None
    host_reboot: Argv | Action | None = None
    live_migration: Argv | Action | None = None
    degraded_hardware: Argv | Action | None = None
    hardware_failure: Argv | Action | None = None

    def __post_init__(self) -> None:
        for kind in Kind:
            action = self.of(kind)
            name = "default" if self._own(kind) is None else kind.value
            for placeholder in (found for word in action.run for found in placeholders(word)):
                if placeholder not in action.known(kind):
                    known = ", ".join(f"{{{one}}}" for one in sorted(action.known(kind)))
                    raise ValueError(f"{name}: {{{placeholder}}} is not known for {kind}: use {known}")

    def of(self, kind: Kind) -> Action:
        found = self._own(kind) or self.default
        if found is None:
            raise ValueError(f"{kind} is missing: say what to run, or give default")
        return found if isinstance(found, Action) else Action(run=found)

    def _own(self, kind: Kind) -> Argv | Action | None:
        found: Argv | Action | None = getattr(self, kind.name.lower())
        return found


class Command(Common, frozen=True, kw_only=True, tag="command"):
    actions: Actions
    passed: tuple[str, ...] = msgspec.field(name="pass", default=())
    """Variables of the service's environment that commands get too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.passed:
            if name.startswith(OURS):
                raise ValueError(f"pass: {name} is the service's own and may be secret: leave it out")

    @property
    def each_vm(self) -> frozenset[Kind]:
        return frozenset(kind for kind in Kind if self.actions.of(kind).each == "vm")


class Webhook(Common, frozen=True, kw_only=True, tag="webhook"):
    url: str
    secret_file: str
    ca_file: str = ""
    """Certificates to trust in place of the system's."""
    completion_limit: Span = Span(hours=1)
    """Until what was only accepted must be done."""


class Libvirt(Common, frozen=True, kw_only=True, tag="libvirt"):
    time_limit: Span = Span(minutes=10)
    """Of one try, without the time for guests to shut down and to come back."""
    alive_limit: Span = Span(minutes=5)
    """Until a guest must be seen alive."""
    fence: Argv | None = None
    """Powers off a host that does not answer."""
    reboot: Argv | None = None
    """Reboots a host whose VMs have ended."""
    storage: Literal["checked", "shared", "copied"] = "checked"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alive_limit:
            raise ValueError('alive_limit is no time at all: give one such as "5m"')
        for name, argv in (("fence", self.fence), ("reboot", self.reboot)):
            for placeholder in (found for word in argv or () for found in placeholders(word)):
                if placeholder not in OF_TASK:
                    known = ", ".join(f"{{{one}}}" for one in sorted(OF_TASK))
                    raise ValueError(f"{name}: {{{placeholder}}} is not known: use {known}")

    @property
    def each_vm(self) -> frozenset[Kind]:
        return frozenset(Kind) - {Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.HARDWARE_FAILURE}


class Several(RetrySettings, frozen=True, kw_only=True):
    """A driver for each part of the hosts: the first whose `hosts` select one is its driver."""

    drivers: list[dict[str, Any]]


Config = Command | Webhook | Libvirt
Choice = tuple[Selector | None, Config]
"""The hosts that a driver is for, and its settings; None: all that no driver before it is for."""


def load(path: Path) -> tuple[Retries, list[Choice]]:
    # A user who can change the file decides what the service runs.
    content = toml.read(path, "the driver's file", DriverFileError, links=True).parse()
    if "drivers" not in content:
        one = _driver(content, str(path))
        return one.retries, [(None, one)]
    several: Several = _converted(content, Several, str(path))
    found = [_entry(table, f"drivers[{number}] in {path}") for number, table in enumerate(several.drivers)]
    if [selector is None for selector, _ in found] != [False] * (len(found) - 1) + [True]:
        raise DriverFileError(f"every driver in {path} needs hosts, except for the last, which is for all others")
    return several.retries, found


def _entry(table: dict[str, Any], place: str) -> Choice:
    hosts = table.pop("hosts", None)
    for key in RetrySettings.__struct_fields__:
        if key in table:
            raise DriverFileError(f"{key} in {place} would be for all drivers: give it before [[drivers]]")
    try:
        selector = None if hosts is None else selectors.of_hosts(str(hosts))
    except errors.RefusedError as error:
        raise DriverFileError(f"hosts in {place}: {error.message}") from None
    return selector, _driver(table, place)


def _driver(table: dict[str, Any], place: str) -> Config:
    if table.get("driver") not in ("command", "libvirt", "webhook"):
        raise DriverFileError(f'driver in {place} must be "command", "libvirt" or "webhook"')
    found: Config = _converted(table, Config, place)
    return found


def _converted(table: dict[str, Any], kind: Any, place: str) -> Any:
    try:
        return msgspec.convert(table, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        sentence = validation.sentence(error, kind, place)
        if (unknown := validation.problem(error).unknown) is not None:
            kinds = (Command, Webhook, Libvirt, Actions, Action, Several)
            known = {key for each in kinds for key in each.__struct_encode_fields__}
            near = get_close_matches(unknown, known, 1)
            sentence += f": did you mean {near[0]}?" if near else ""
        raise DriverFileError(sentence) from None


def placeholders(word: str) -> Iterator[str]:
    try:
        found = list(string.Formatter().parse(word))
    except ValueError:
        found = [("", "", "!", None)]
    for _, name, form, conversion in found:
        if form or conversion:
            raise ValueError(f"{word!r} has a brace that is no placeholder: write {{{{ and }}}} for braces as such")
        if name is not None:
            yield name


def _read(kind: type, value: object) -> object:
    """msgspec's hook: durations are the only thing here that it does not know."""
    assert kind is Span
    return Span.read(value)
