"""Handlers that need an extra or run code that is not ours: each time in a process of its own.

`ChildHandler` is the agent's side. The child, `python -m forenotice.agent.handlers.child`, imports what is heavy.
"""

import importlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from forenotice.agent.handlers import HandlerError, Work, facts, tables
from forenotice.agent.handlers.tables import Kubernetes, Notify, Python
from forenotice.programs import process
from forenotice.runtime import Runtime

# Neither modules in the directory it runs in nor the locale have a say.
ARGV = (sys.executable, "-P", "-X", "utf8", "-m", "forenotice.agent.handlers.child")
REHEARSAL_SECONDS = 30.0
FAILED = 1
"""The exit code of a child whose output says why it failed."""
RESERVE = 1.0
"""Seconds before its time is up at which a handler ends by itself, to report what is missing."""
EXTRAS = {"apprise": "notify", "kubernetes": "kubernetes"}
GROUP = "forenotice.handlers"
T = TypeVar("T")
Function = Callable[[str, Mapping[str, Any], Mapping[str, object]], object]


class ChildHandler:
    def __init__(self, config: Kubernetes | Notify | Python, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime

    def run(self, work: Work) -> str:
        order = self._order(work=facts.document(work), rehearse=False)
        program = process.Program(argv=ARGV, environment=facts.environment(work), stdin=order)
        return self._execute(program, work.seconds_left, work.stop, work.on_start)

    def rehearse(self) -> str:
        program = process.Program(argv=ARGV, stdin=self._order(work={}, rehearse=True))
        return self._execute(program, REHEARSAL_SECONDS, threading.Event())

    def _order(self, **more: object) -> bytes:
        # On standard input: no other user can see it there, and it may name secrets.
        return msgspec.json.encode({"handler": self._config, **more}, enc_hook=tables.write)

    def _execute(
        self,
        program: process.Program,
        seconds: float,
        stop: threading.Event,
        on_start: Callable[[int], None] | None = None,
    ) -> str:
        ended = process.execute(program, self._runtime, seconds=seconds, stop=stop, on_start=on_start)
        if ended.ok:
            return ended.message
        explained = ended.code == FAILED and ended.output and not ended.stopped
        raise HandlerError(ended.output if explained else ended.message)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    handler: Kubernetes | Notify | Python
    work: dict[str, Any]
    rehearse: bool


def perform(order: Order, until: float, runtime: Runtime) -> str:
    """Do it by `until` on the monotonic clock."""
    try:
        match order.handler:
            case Kubernetes() as config:
                from forenotice.agent.handlers import kubernetes

                if order.rehearse:
                    return kubernetes.rehearse(config)
                return kubernetes.run(config, order.work, kubernetes.Retrier(until, runtime))
            case Notify() as config:
                from forenotice.agent.handlers import notify

                return notify.rehearse(config) if order.rehearse else notify.run(config, until, runtime)
            case Python() as config:
                return rehearse_python(config) if order.rehearse else run_python(config, order.work)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise HandlerError(f"{package} is missing: install forenotice[{EXTRAS[package]}]") from None


def run_python(config: Python, work: Mapping[str, Any]) -> str:
    result = _told(lambda: _find(config.entry_point)(work["phase"], work, config.options))
    match result:
        case None | True:
            return ""
        case str():
            return result
        case False:
            raise HandlerError(f"{config.entry_point} returned False")
    raise HandlerError(f"{config.entry_point} returned a {type(result).__name__}: give None, True, False or a text")


def rehearse_python(config: Python) -> str:
    _told(lambda: _find(config.entry_point))
    return f"would call {config.entry_point}"


def _told(act: Callable[[], T]) -> T:
    """An exception that a handler's own code raised, by the last line of its traceback."""
    try:
        return act()
    except Exception as error:
        raise HandlerError(" ".join(traceback.format_exception_only(error)[-1].split())) from None


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


def main() -> int:
    runtime = Runtime()
    begun = runtime.monotonic()

    def end(*_: object) -> NoReturn:
        # Clean-ups run, such as that of the files in which kubernetes keeps a client's key.
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order, dec_hook=tables.read)
    until = begun + order.work.get("seconds_left", 0.0) - RESERVE
    try:
        message, code = perform(order, until, runtime), 0
    except HandlerError as error:
        message, code = error.message, FAILED
    if message:
        print(message, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
