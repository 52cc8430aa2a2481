"""The program `forenotice`: its commands, and how every failure ends in one sentence and an exit code."""

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from forenotice import __version__
from forenotice.cli import commands
from forenotice.core import errors

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
USAGE_CODES = frozenset({"usage", "setting", "config"})
"""The codes of errors in the command as it was typed, or in its configuration."""
NOT_UTF8 = re.compile(r'[^"\s]*[\ud800-\udfff][^"\s]*')
"""A word in which Python keeps bytes that are not UTF-8: it can name a file, but not be sent."""
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("server.serve", "Run the service: the metadata endpoint for guests, the control plane for operators."),
    "vm": ("inventory.vm", "VMs: add, change, restart, redeploy, evict, delete."),
    "host": ("inventory.host", "Hosts: add, cordon, update, reboot, migrate."),
    "group": ("inventory.group", "Groups: VMs that share a document, and their policy."),
    "event": ("operations.events", "Events: list, explain, approve, cancel."),
    "operation": ("operations.app", "Operations: list, explain, cancel."),
    "rollout": ("rollouts.app", "Rollouts: plan, start, wait, explain, pause, resume, cancel."),
    "watch": ("watch.watch", "Watch live events with their countdowns, rollouts and the latest history, until Ctrl-C."),
    "history": ("history.app", "Show what happened, newest last."),
    "subscription": ("subscriptions.app", "Subscriptions: push journal entries to webhooks."),
    "fleet": ("fleet.app", "The whole fleet as a file: discover, apply, compare, export."),
    "network": ("network.app", "The network of guests: nftables rules that hold each VM to its own addresses."),
    "token": ("tokens.app", "Operators' tokens: create, list, rotate, revoke."),
    "backup": ("server.backup", "Copy the database to a file, also while the service runs."),
    "restore": ("server.restore", "Restore the database from a backup, while the service is stopped."),
    "migrate": ("server.migrate", "Create the database, or upgrade it to what this version needs."),
    "clock": ("server.clock", "Accept a clock that has been corrected."),
    "guest": ("guest.app", "Inside a VM: list its events, approve them, find what is wrong."),
    "agent": ("agent.app", "The agent in a VM: prepares for events, approves them, recovers afterwards."),
    "edge": ("edge.app", "Edges: run one on a host, list, forget; make, renew and revoke their credentials."),
    "cluster": (
        "cluster.app",
        "The cluster through which the service reaches its edges: keys for NATS, what is wrong with it, a demo.",
    ),
    "emulate": ("emulator.emulate", "Emulate the platform for guests, by a scenario or as you drive it, until Ctrl-C."),
    "emulator": ("emulator.app", "Drive a running emulator: events, time, faults."),
    "lab": ("lab.app", "Real VMs on this machine: libvirt hosts, guests that poll and approve, and the service."),
    "record": (
        "recording.record",
        "Record the responses of a metadata endpoint whenever they change; approves nothing.",
    ),
    "replay": ("recording.replay", "Replay a recording to guests, from now on, until Ctrl-C."),
    "conformance": (
        "conformance.conformance",
        "Check any metadata endpoint against the protocol; with --client, check a handler.",
    ),
}
"""Where each command is defined in this package, and its summary: known without importing it."""


class Program(commands.Group):
    """Lists and completes its commands from the table, and imports the one that is run."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        (module, attribute), summary = COMMANDS[cmd_name][0].split("."), COMMANDS[cmd_name][1]
        command: click.Command = getattr(import_module(f"forenotice.cli.{module}"), attribute)
        command.help = summary
        return command

    def summaries(self) -> list[tuple[str, str]]:
        return [(name, summary) for name, (_, summary) in COMMANDS.items()]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in self.summaries() if name.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)


def _completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    """Print the script by which a shell completes."""
    if shell:
        from click.shell_completion import shell_complete

        ctx.exit(shell_complete(program, {}, "forenotice", VARIABLE, f"{shell}_source"))


VARIABLE = "_FORENOTICE_COMPLETE"
program = Program(
    help="Scheduled Events for virtual machines: told, prepared, approved, carried out.",
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--show-completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            help='Print the completion script of a shell: eval "$(forenotice --show-completion bash)".',
            callback=_completion,
            is_eager=True,
            expose_value=False,
        ),
    ],
)
click.version_option(__version__, message="%(prog)s %(version)s", help="Show the version.")(program)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        result = program.main(arguments, "forenotice", VARIABLE, standalone_mode=False)
        sys.stdout.flush()
    except errors.ForenoticeError as error:
        commands.complain(error.message)
        return USAGE if error.code in USAGE_CODES else FAILED
    except click.ClickException as error:
        _explain(error)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not flush into it once more.
        sys.stdout = None
        return FAILED
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and (found := NOT_UTF8.search(error.object)):
            commands.complain(f"{found[0][:80]!r} is not text: give UTF-8")
            return USAGE
        if sys.flags.dev_mode:
            raise
        commands.complain(f"this is a defect in forenotice, please report it ({type(error).__name__}: {error})")
        return FAILED
    return result if isinstance(result, int) else DONE


def _explain(error: click.ClickException) -> None:
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # The message is the help of a group of commands.
        sys.stderr.write(message.rstrip("\n") + "\n")
        return
    context: click.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context else "forenotice"
    said = " ".join(message.split())
    commands.complain(f"{said.rstrip('.')}{' See' if said.endswith('?') else '; see'} `{path} -h`")
