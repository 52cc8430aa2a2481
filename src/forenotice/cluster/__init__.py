"""What the service and its edges share: messages, subjects and streams in NATS, the connection to it, and keys."""

import importlib.util

from forenotice.core import errors


def require() -> None:
    """RefusedError: the extra is not installed."""
    if importlib.util.find_spec("nats") is None:
        raise errors.RefusedError("NATS needs nats-py, which is not installed: pip install 'forenotice[cluster]'")
