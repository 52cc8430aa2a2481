"""Which commands there are, what they are for, and where they live: known without importing them."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group


class Place(NamedTuple):
    module: str
    """In this package. It has an `app`, or registers its commands."""
    help: str


COMMANDS: Mapping[str, Place] = {
    "serve": Place("serve", "Run the service: the metadata endpoint for guests, and the control plane for operators."),
    "vm": Place("vms", "VMs: add, change, restart, redeploy, evict, delete."),
    "host": Place("hosts", "Hosts: add, cordon, update, reboot, migrate."),
    "group": Place("groups", "Groups: VMs that share a document, and their policy."),
    "event": Place("events", "Events: list, explain, approve, cancel."),
    "operation": Place("operations", "Operations: list, explain, cancel."),
    "rollout": Place("rollouts", "Rollouts: plan, start, wait, explain, pause, resume, cancel."),
    "watch": Place("watch", "Show live events with their countdowns, rollouts, and what just happened, until Ctrl-C."),
    "history": Place("history", "Show what happened, the newest last."),
    "subscription": Place("subscriptions", "Subscriptions: push what happens to webhooks."),
    "fleet": Place("fleet", "The whole fleet as a file: apply, compare, export."),
    "token": Place("tokens", "Tokens of operators: create, list, rotate, revoke."),
    "backup": Place("database", "Copy the database to a file, also while the service runs."),
    "restore": Place(
        "database",
        "Restore the database from a backup, while the service is stopped.",
    ),
    "migrate": Place("database", "Bring the database to what this version needs; makes it when there is none."),
    "clock": Place("clock", "Accept a clock that has been corrected."),
    "guest": Place("guest", "Inside a VM: what is going to happen to it, and its approval."),
    "agent": Place("agent", "The agent in a VM: prepares for what is announced, approves, recovers."),
    "emulate": Place("emulate", "Answer guests as the platform would, by a scenario or as you drive it, until Ctrl-C."),
    "emulator": Place("emulator", "Drive an emulator that runs: events, time, faults."),
    "record": Place(
        "recording", "Keep what a metadata endpoint says, whenever it differs from before; it approves nothing."
    ),
    "replay": Place("recording", "Let the endpoint say once more what was recorded, from now on, until Ctrl-C."),
    "conformance": Place(
        "conformance", "Judge a metadata endpoint, anybody's, by what the protocol promises; with --client, a handler."
    ),
}


class Root(TyperGroup):
    """Shows and completes its commands from the catalogue, and loads the one that is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if found and name else None, rest


def announce(app: typer.Typer) -> None:
    for name, place in COMMANDS.items():
        app.command(name, help=place.help)(_announced)


def _announced() -> None:
    """Stands for a command until it is loaded."""


def load(name: str) -> Any:
    return _loaded(COMMANDS[name].module, name)[name]


@cache
def _loaded(module: str, name: str) -> Mapping[str, Any]:
    found = import_module(f"forenotice.cli.{module}")
    part = typer.Typer(rich_markup_mode=None)
    part.callback()(_announced)
    if hasattr(found, "app"):
        part.add_typer(found.app, name=name)
    else:
        found.register(part)
    return get_group(part).commands
