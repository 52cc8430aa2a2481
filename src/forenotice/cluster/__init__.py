"""What the service and its edges share: messages, subjects and streams in NATS, the connection to it, and keys."""

import importlib.util

from forenotice.core import errors

PACKAGES = {"nats": "nats-py", "httptools": "httptools", "structlog": "structlog"}
"""What the extra brings, by the module."""


def require() -> None:
    """RefusedError: the extra is not installed."""
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        names, are = ", ".join(missing), "is" if len(missing) == 1 else "are"
        raise errors.RefusedError(f"edges need {names}, which {are} not installed: pip install 'forenotice[cluster]'")
