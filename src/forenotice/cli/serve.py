"""`forenotice serve`: the service itself."""

import os
from collections.abc import Mapping
from typing import Any

import typer

from forenotice import settings
from forenotice.cli import offline, options
from forenotice.settings import Settings, table


def register(app: typer.Typer) -> None:
    options.register(app, "serve", serve, rows=table.SERVE, shared=(), context=_settings)


def serve(found: Settings) -> int:
    """Run the service: the metadata endpoint for guests, and the control plane for operators."""
    with offline.server_packages():
        from forenotice.serving import run
    return run(found)


def _settings(flags: Mapping[str, object], _: Mapping[str, Any]) -> Settings:
    return settings.load(flags, os.environ)
