"""Commands on Click: options from the table of settings, shared options, completion, and an operator's command."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import click

from forenotice import settings, views
from forenotice.core import errors
from forenotice.settings import table
from forenotice.settings.table import Setting

if TYPE_CHECKING:
    from forenotice.cli.api import Api

    Changing = TypeVar("Changing", bound=views.base.Request)

COMPLETION_SECONDS = 0.5
MOST_COMPLETIONS = 100
NOTHING = object()
"""The value of an option that takes something away, such as `off`; the API takes null."""
T = TypeVar("T")
Show = Callable[["Operator", T], None]
Registration = Callable[[Callable[..., object]], click.Command]
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


class UsageError(errors.RefusedError):
    """The command cannot be understood."""

    code = "usage"


class Read(click.ParamType[object, object]):
    """Reads the text of an option by a function, whose ValueError or refusal is the usage error."""

    name = "text"

    def __init__(self, reader: Callable[[str], object]) -> None:
        self._reader = reader

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self._reader(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)
        except errors.RefusedError as error:
            self.fail(error.message, param, ctx)


class Group(click.Group):
    """A group whose help shows summaries in full."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"no_args_is_help": True, **named})

    def summaries(self) -> list[tuple[str, str]]:
        return [(name, (command.help or "").partition("\n\n")[0]) for name, command in self.commands.items()]

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries())


# Options and arguments. Every parameter is an object that any number of commands share.


def option(flags: str, metavar: str | None, text: str, **named: Any) -> click.Option:
    """Its default is shown, if it has one."""
    return click.Option(flags.split(), metavar=metavar, help=text, show_default=bool(named.get("default")), **named)


def switch(flags: str, text: str, **named: Any) -> click.Option:
    """`--spot/--no-spot` is None unless one of the two is given."""
    default = {"default": None} if "/" in flags else {"is_flag": True}
    return click.Option(flags.split(), help=text, **default, **named)


def argument(name: str, text: str | None = None, **named: Any) -> click.Argument:
    return click.Argument([name], help=text, **named)


def several(name: str, text: str | None = None, **named: Any) -> click.Argument:
    return argument(name, text, nargs=-1, required=True, **named)


def of_setting(row: Setting) -> click.Option:
    """Its value stays text: the settings read it, so that all ways to give one agree."""
    if row.is_switch:
        return click.Option([row.flag, row.attribute], is_flag=True, help=row.described)
    return click.Option([row.flag, row.attribute], metavar=row.metavar, multiple=row.repeatable, help=row.described)


JSON = switch("--json", "Print JSON for machines.")
YES = switch("--yes -y", "Do not ask for confirmation.")
ALL = switch("--all everything", "Also those that have ended.")
KEY = option("--idempotency-key key", "KEY", "Repeat with the same key: it takes effect once in 24 hours.")
REASON = option("--reason", "TEXT", "Why; kept in the history.", default="")
PATTERN = option("--name", "PATTERN", "Only names that match, such as 'rack1-*,!rack1-07'.")


def command(
    app: click.Group | None,
    name: str,
    *parameters: click.Parameter,
    make: Callable[..., object],
    rows: Sequence[Setting],
    shared: Sequence[click.Parameter] = (JSON,),
    summary: str = "",
) -> Registration:
    """A function as a command; its first argument is made of the settings that were given and the shared options."""

    def register(function: Callable[..., object]) -> click.Command:
        def run(**values: Any) -> object:
            flags = {row.name: values.pop(row.attribute) for row in rows}
            common = {str(each.name): values.pop(str(each.name)) for each in shared}
            return function(make(flags, **common), **values)

        params = [*parameters, *shared, *map(of_setting, rows)]
        made = click.Command(name, callback=run, params=params, help=summary or cleandoc(function.__doc__ or ""))
        if app is not None:
            app.add_command(made)
        return made

    return register


# Operators' commands


class Operator:
    """What an operator's command works with: the API, the output, and what was given."""

    def __init__(self, flags: Mapping[str, object], *, json: bool, reason: str = "", key: str | None = None) -> None:
        from forenotice.cli.output import Output

        self.flags, self.reason, self._key = flags, reason, key
        self.out = Output(json=json)

    @cached_property
    def api(self) -> "Api":
        from forenotice.cli.api import Api

        return Api(settings.load_operator(self.flags, os.environ), key=self._key, reason=self.reason)


def operator(
    app: click.Group | None,
    name: str,
    *parameters: click.Parameter,
    changes: bool = False,
    rows: Sequence[Setting] = (),
    summary: str = "",
) -> Registration:
    """An operator's command; one that changes something also takes a key and a reason."""
    shared = (JSON, KEY, REASON) if changes else (JSON,)
    return command(app, name, *parameters, make=Operator, rows=(*table.OPERATOR, *rows), shared=shared, summary=summary)


def showing(app: click.Group, thing: click.Argument) -> Callable[[Show[T]], Show[T]]:
    """The command `show`, of a function that shows a view; the type of the view is that of its second parameter."""

    def register(show: Show[T]) -> Show[T]:
        @operator(app, "show", thing, summary=cleandoc(show.__doc__ or ""))
        def run(ctx: Operator, **named: str) -> None:
            kind: type[T] = list(get_type_hints(show).values())[1]
            show(ctx, ctx.api.get(kind, f"{thing.name}s", *named.values()))

        return show

    return register


def removal(
    app: click.Group, thing: click.Argument, noun: str, summary: str, *, where: str = "", with_: str = ""
) -> None:
    """The command `remove`: from where, and with what else, where that needs to be said."""

    @operator(app, "remove", thing, YES, changes=True, summary=summary)
    def run(ctx: Operator, *, yes: bool, **named: str) -> None:
        (name,) = named.values()
        confirm(f"Remove {noun} {name}{where}{with_}?", yes=yes)
        gone = ctx.api.delete(views.base.Removed, f"{thing.name}s", name)
        ctx.out.result(gone, f"{noun[0].upper()}{noun[1:]} {gone.removed} is removed{where}.")


def request(kind: type[T], clear: Mapping[str, object] | None = None, /, **options: object) -> T:
    """A request of the options that were given; `clear` has the values that `--no-` forms stand for."""
    given: Any = {}
    for name, value in (clear or {}).items():
        if options.pop(f"no_{name}"):
            if options.get(name) not in (None, ()):
                raise UsageError("an option and its --no- form exclude each other: give one of them")
            given[name] = value
    for name, option in options.items():
        if option is not None and option != ():
            given[name] = None if option is NOTHING else option
    return kind(**given)


def change(noun: str, body: "Changing") -> "Changing":
    if not body.given():
        raise UsageError(f"nothing to change: give at least one option, see `forenotice {noun} set -h`")
    return body


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone, if standard input is a terminal."""
    if not yes and sys.stdin.isatty() and not _agrees(question):
        raise errors.RefusedError("nothing was done: it was not confirmed")


def confirm_first_request(host: str, *, yes: bool) -> None:
    """A request to a real platform has an effect: it switches Scheduled Events on."""
    if yes or is_loopback(host):
        return
    effect = (
        "On the real platform a first request switches Scheduled Events on for this VM for a day, "
        "and its response may take two minutes."
    )
    if not sys.stdin.isatty():
        raise UsageError(f"{effect} This is not a terminal, so it cannot be confirmed: give --yes")
    if not _agrees(f"{effect} Continue?"):
        raise errors.RefusedError("no request was sent: it was not confirmed")


def _agrees(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def pairs(flag: str, texts: Iterable[str], example: str) -> dict[str, str]:
    """`NAME=VALUE` of an option that may be repeated."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag}: {text!r} is not NAME=VALUE: give one such as {flag} {example}")
        found[name] = value
    return found


@contextmanager
def using(
    file: object, access: str = "read", error: type[errors.ForenoticeError] = errors.RefusedError
) -> Iterator[None]:
    """A failure to read or write a file becomes a sentence."""
    try:
        yield
    except OSError as failure:
        raise error(f"{file} cannot be {access}: {failure.strerror}") from None
    except UnicodeDecodeError as failure:
        raise error(f"{file} cannot be {access}: it is not {failure.encoding.upper()}") from None


def complain(message: str) -> None:
    """The reason of a failure, in one sentence."""
    sys.stderr.write(f"forenotice: {plain(message)}\n")


def plain(text: str) -> str:
    """Without control characters, which could steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


# Completion: names from the service if it responds quickly, else none.


def names(noun: str) -> Completer:
    return lambda ctx, _, incomplete: _completions(ctx, noun, "name", name=f"{incomplete}*")


def ids(noun: str) -> Completer:
    """Of what is live: ids of what has ended are rarely typed."""
    return lambda ctx, _, incomplete: [
        each for each in _completions(ctx, noun, "id", live=True) if each.startswith(incomplete)
    ]


def host_selector(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The last name of several with commas between them, or after `!`."""
    start = max(incomplete.rfind(","), incomplete.rfind("!")) + 1
    return [incomplete[:start] + name for name in names("hosts")(ctx, _, incomplete[start:])]


def _completions(ctx: click.Context, noun: str, key: str, **query: object) -> list[str]:
    from forenotice.cli.api import Api, Named

    flags = {row.name: ctx.params.get(row.attribute) for row in table.OPERATOR}
    try:
        api = Api(settings.load_operator(flags, os.environ), timeout=COMPLETION_SECONDS)
        return [getattr(each, key) for each in api.items(Named, noun, limit=MOST_COMPLETIONS, **query)]
    except errors.ForenoticeError:
        return []


VM, HOST, GROUP = (argument(noun, shell_complete=names(f"{noun}s")) for noun in ("vm", "host", "group"))
EVENT, OPERATION, ROLLOUT = (
    argument(noun, shell_complete=ids(f"{noun}s")) for noun in ("event", "operation", "rollout")
)
