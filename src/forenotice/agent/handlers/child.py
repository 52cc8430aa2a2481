"""The process that carries out one phase for a handler that needs an extra or runs code that is not ours."""

import signal
import sys
import time
from typing import Any, NoReturn

import msgspec

from forenotice.agent.config import values
from forenotice.agent.config.handlers import Kubernetes, Notify, Python
from forenotice.agent.handlers.interface import Outcome

BEGAN = time.monotonic()
LAST_WORDS = 1.0
"""Seconds before its time is up at which a handler ends by itself, to say what is missing."""
EXTRAS = {"apprise": "notify", "kubernetes": "kubernetes"}
"""Which extra brings which package."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    handler: Kubernetes | Notify | Python
    work: dict[str, Any]
    """The facts, as commands get them."""
    rehearse: bool


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order, dec_hook=values.read)
    outcome = perform(order, BEGAN + order.work.get("seconds_left", 0.0) - LAST_WORDS)
    if outcome.said:
        print(outcome.said, flush=True)
    return 0 if outcome.ok else 1


def perform(order: Order, until: float) -> Outcome:
    """Do it by `until` on the monotonic clock."""
    try:
        return _perform(order, until)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return Outcome(ok=False, said=f"{package} is missing: install forenotice[{EXTRAS[package]}]")


def _perform(order: Order, until: float) -> Outcome:
    match order.handler:
        case Kubernetes() as config:
            from forenotice.agent.handlers import kubernetes

            return kubernetes.rehearse(config) if order.rehearse else kubernetes.run(config, order.work, until)
        case Notify() as config:
            from forenotice.agent.handlers import notify

            return notify.rehearse(config) if order.rehearse else notify.run(config, until)
        case Python() as config:
            from forenotice.agent.handlers import python

            return python.rehearse(config) if order.rehearse else python.run(config, order.work)


def _end(*_: object) -> NoReturn:
    # Not at once: clean-ups run, such as that of the files in which kubernetes keeps a client's key.
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
