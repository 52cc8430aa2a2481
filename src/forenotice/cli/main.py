"""The program `forenotice`: its commands, and how every failure ends in one sentence and an exit code."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from forenotice import __version__
from forenotice.cli import catalogue
from forenotice.cli.output import complain
from forenotice.core import errors

DONE, FAILED, USAGE = 0, 1, 2
WRONGLY_TYPED = frozenset({"usage", "setting", "config"})
"""The codes of errors that whoever typed the command, or its configuration, must mend."""

NOT_UTF8 = re.compile(r'[^"\s]*[\ud800-\udfff][^"\s]*')
"""A word in which Python keeps bytes that are not UTF-8: it can name a file, but not be sent."""

app = typer.Typer(
    cls=catalogue.Root,
    help="Scheduled Events for virtual machines: told, prepared, approved, carried out.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"forenotice {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


catalogue.announce(app)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        result = app(arguments, prog_name="forenotice", standalone_mode=False)
        sys.stdout.flush()
    except errors.ForenoticeError as error:
        complain(error.message)
        return USAGE if error.code in WRONGLY_TYPED else FAILED
    except typer.TyperException as error:
        _explain(error)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not flush into it once more.
        sys.stdout = None
        return FAILED
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and (found := NOT_UTF8.search(error.object)):
            complain(f"{found[0][:80]!r} is not text: give UTF-8")
            return USAGE
        if sys.flags.dev_mode:
            raise
        complain(f"this is a defect in forenotice, please report it ({type(error).__name__}: {error})")
        return FAILED
    return result if isinstance(result, int) else DONE


def _explain(error: typer.TyperException) -> None:
    message = error.format_message()
    if "\n" in message:
        # A group of commands without one: the message is its help.
        sys.stderr.write(message.rstrip("\n") + "\n")
        return
    context: typer.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context else "forenotice"
    complain(f"{message.rstrip('.')}{' See' if message.endswith('?') else '; see'} `{path} -h`")
