"""Signals that tell the agent to end or to read its configuration again."""

import signal
from collections.abc import Callable


def install(*, stop: Callable[[], None], reload: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda _number, _frame: reload())
