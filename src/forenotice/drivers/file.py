"""The file that describes an outside driver: what is called, how often, how many at once."""

import re
import string
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec

from forenotice import secretfiles
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.core.timing import Retries
from forenotice.settings.spans import Span

OF_TASK = frozenset({"operation", "kind", "host", "attempt"})
OF_VM = frozenset({"vm", "vm_id", "event"})
TARGET = "target"
OURS = "FORENOTICE_"
"""What the service itself is told by variables may be secret, and is not passed on."""

Argv = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1000)]
Number = Annotated[int, msgspec.Meta(ge=1, le=256)]

_PLACED = re.compile(r"(?P<said>.*) - at `(?:key in )?\$(?P<path>.*)`", re.DOTALL)

_WORDS = {"object": "a table", "array": "a list", "int": "a whole number", "str": "a text in quotes"}


class DriverFileError(errors.RefusedError):
    """The driver's file is not usable."""

    code = "driver_file"


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="driver"):
    tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    pause: Span = Span(seconds=2)
    """After the first try that failed; twice as long after each further one."""
    time_limit: Span = Span(minutes=1)
    """Of one call."""
    at_once: Number = 8
    at_once_per_host: Number = 2

    def __post_init__(self) -> None:
        if not self.time_limit:
            raise ValueError('time_limit is no time at all: give one such as "1m"')

    @property
    def retries(self) -> Retries:
        return Retries(tries=self.tries, first_pause=self.pause)

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
        return OF_TASK | OF_VM | ({TARGET} if kind.traits.moves else set())


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


def load(path: Path) -> Command | Webhook:
    try:
        # Whoever can change it says what the service runs.
        content = tomllib.loads(secretfiles.read(path, "the driver's file", secret=False, links=True).decode())
    except errors.RefusedError as error:
        raise DriverFileError(error.message) from None
    except (ValueError, RecursionError) as error:
        raise DriverFileError(f"the driver's file {path} is not TOML: {error}") from None
    try:
        return msgspec.convert(content, Command | Webhook, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise DriverFileError(f"{path}: {_reworded(str(error), content.get('driver'))}") from None


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


def _reworded(error: str, driver: object) -> str:
    """msgspec speaks of objects and their fields."""
    placed = _PLACED.fullmatch(error)
    said, place = (placed["said"], placed["path"].lstrip(".")) if placed else (error, "")
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        tables = {"": Webhook if driver == "webhook" else Command, "actions": Actions}
        table = tables.get(place, Action)
        near = get_close_matches(found[1], table.__struct_encode_fields__, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(table.__struct_encode_fields__)}"
        said = f"there is no key {found[1]!r}; {remedy}"
    elif found := re.fullmatch(r"Object missing required field `(.*)`", said):
        known = ': give "command" or "webhook"' if found[1] == "driver" else ""
        said = f"the key {found[1]!r} is missing{known}"
    elif found := re.fullmatch(r"Invalid value '(.*)'", said):
        said = f'{found[1]!r} is not known: give "command" or "webhook"'
    elif found := re.fullmatch(r"Expected `([^`]*)`(?:, got .*)?(.*)", said):
        kinds = [_WORDS.get(one, one) for one in found[1].split(" | ") if one != "null"]
        said = f"this must be {' or '.join(kinds)}{found[2]}"
    return f"{place}: {said}" if place else said
