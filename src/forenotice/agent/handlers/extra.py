"""Handlers that need an extra or run code that is not ours: each time in a process of its own."""

import sys
import threading
from collections.abc import Callable

import msgspec

from forenotice.agent.config import values
from forenotice.agent.config.handlers import Kubernetes, Notify, Python
from forenotice.agent.handlers import facts
from forenotice.agent.handlers.interface import Outcome, Work
from forenotice.programs import process

# Neither modules in the directory it runs in nor the locale have a say.
ARGV = (sys.executable, "-P", "-X", "utf8", "-m", "forenotice.agent.handlers.child")
REHEARSAL = 30.0
"""Seconds that looking may take."""
FAILED = 1
"""The exit code of a child that says itself why it failed."""


class Extra:
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
        return msgspec.json.encode({"handler": self._config, **more}, enc_hook=values.write)


def _carried_out(
    program: process.Program, seconds: float, stop: threading.Event, born: Callable[[int], None] | None = None
) -> Outcome:
    try:
        ended = process.execute(program, seconds=seconds, stop=stop, born=born)
    except process.ProgramError as error:
        return Outcome(ok=False, said=error.message)
    in_its_own_words = ended.code == FAILED and ended.output and not ended.stopped
    return Outcome(ok=ended.ok, said=ended.output if in_its_own_words else ended.said)
