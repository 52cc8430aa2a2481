"""What the service and its edges share: messages, subjects and streams in NATS, the connection to it, and keys."""

import asyncio
import importlib.util
from collections.abc import Collection
from typing import Any

from forenotice.core import errors

CANCEL_SECONDS = 0.5
PACKAGES = {"nats": "nats-py", "httptools": "httptools", "structlog": "structlog"}
"""What the extra brings, by the module."""


def require() -> None:
    """RefusedError: the extra is not installed."""
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        names, are = ", ".join(missing), "is" if len(missing) == 1 else "are"
        raise errors.RefusedError(f"edges need {names}, which {are} not installed: pip install 'forenotice[cluster]'")


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Until they have ended: NATS's client loses a cancellation that comes together with what it waits for."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
