"""The process that carries out one phase for a handler that needs an extra or runs code that is not ours."""

import importlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from forenotice.agent.handlers import Outcome, Work, facts, tables
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python
from forenotice.programs import process

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
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order, dec_hook=tables.read)
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
            return rehearse_python(config) if order.rehearse else run_python(config, order.work)


def _end(*_: object) -> NoReturn:
    # Not at once: clean-ups run, such as that of the files in which kubernetes keeps a client's key.
    sys.exit(128 + signal.SIGTERM)


# Neither modules in the directory it runs in nor the locale have a say.
ARGV = (sys.executable, "-P", "-X", "utf8", "-m", "forenotice.agent.handlers.child")
REHEARSAL = 30.0
"""Seconds that looking may take."""
FAILED = 1
"""The exit code of a child that says itself why it failed."""


class ChildHandler:
    """The agent's side: what is heavy is imported by the child, and gone with it."""

    def __init__(self, config: Kubernetes | Notify | Python) -> None:
        self._config = config

    def run(self, work: Work) -> Outcome:
        program = process.Program(
            argv=ARGV, environment=facts.environment(work), stdin=self._order(work=facts.document(work), rehearse=False)
        )
        return _carried_out(program, work.seconds_left, work.stop, work.born)

    def rehearse(self) -> Outcome:
        program = process.Program(argv=ARGV, stdin=self._order(work={}, rehearse=True))
        return _carried_out(program, REHEARSAL, threading.Event())

    def _order(self, **more: object) -> bytes:
        # On standard input: nobody else sees it there, and it may name secrets.
        return msgspec.json.encode({"handler": self._config, **more}, enc_hook=tables.write)


def _carried_out(
    program: process.Program, seconds: float, stop: threading.Event, born: Callable[[int], None] | None = None
) -> Outcome:
    try:
        ended = process.execute(program, seconds=seconds, stop=stop, born=born)
    except process.ProgramError as error:
        return Outcome(ok=False, said=error.message)
    in_its_own_words = ended.code == FAILED and ended.output and not ended.stopped
    return Outcome(ok=ended.ok, said=ended.output if in_its_own_words else ended.said)


GROUP = "forenotice.handlers"

Function = Callable[[str, Mapping[str, Any], Mapping[str, object]], object]


def run_python(config: Python, facts: Mapping[str, Any]) -> Outcome:
    try:
        answer = _find(config.entry_point)(facts["phase"], facts, config.options)
    except Exception as error:
        return Outcome(ok=False, said=_last_line(error))
    match answer:
        case None | True:
            return Outcome(ok=True)
        case str():
            return Outcome(ok=True, said=answer)
        case False:
            return Outcome(ok=False, said=f"{config.entry_point} returned False")
    return Outcome(
        ok=False, said=f"{config.entry_point} returned a {type(answer).__name__}: give None, True, False or a text"
    )


def rehearse_python(config: Python) -> Outcome:
    try:
        _find(config.entry_point)
    except Exception as error:
        return Outcome(ok=False, said=_last_line(error))
    return Outcome(ok=True, said=f"would call {config.entry_point}")


def _find(name: str) -> Function:
    module, colon, path = name.partition(":")
    if colon:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    else:
        # Only in the child: it loads more than the rest of the agent.
        from importlib import metadata

        points = metadata.entry_points(group=GROUP, name=name)
        if not points:
            raise LookupError(f"there is no entry point {name!r} in the group {GROUP}: is its package installed?")
        found = next(iter(points)).load()
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__} and cannot be called")
    function: Function = found
    return function


def _last_line(error: Exception) -> str:
    return " ".join(traceback.format_exception_only(error)[-1].split())


if __name__ == "__main__":
    sys.exit(main())
