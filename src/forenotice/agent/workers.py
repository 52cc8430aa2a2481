"""Handlers as agent.toml and the journal configure them, and the threads that run them."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from forenotice.agent.context import Context
from forenotice.agent.handlers import GRACE, Handler, Outcome, Work, tables
from forenotice.agent.handlers.child import ChildHandler
from forenotice.agent.handlers.haproxy import Haproxy
from forenotice.agent.handlers.local import Command, File, Systemd
from forenotice.agent.handlers.webhook import Webhook
from forenotice.agent.rules.policy import Phase, Rule
from forenotice.runtime import Runtime

KILL_SECONDS = 5.0
"""After which a handler that should have been killed is given up."""
CURRENT = ("stage", "timeout", "retries", "on_failure")
"""How a handler is run, not what it does: always as agent.toml says now."""
CACHED = 32
_DECODER: msgspec.json.Decoder[tables.Handler] = msgspec.json.Decoder(tables.Handler, dec_hook=tables.read)


def make(config: tables.Handler, runtime: Runtime) -> Handler:
    match config:
        case tables.Command():
            return Command(config, runtime)
        case tables.Webhook():
            return Webhook(config, runtime)
        case tables.Systemd():
            return Systemd(config, runtime)
        case tables.File():
            return File(config, runtime)
        case tables.Haproxy():
            return Haproxy(config, runtime)
        case tables.Kubernetes() | tables.Notify() | tables.Python():
            return ChildHandler(config, runtime)


class HandlerSet:
    def __init__(self, configs: Iterable[tables.Handler]) -> None:
        self.configs = {config.name: config for config in configs}
        self.rules: Sequence[Rule] = [config.rule for config in self.configs.values()]
        self._joined = lru_cache(CACHED)(self._join)

    def written(self, names: Iterable[str]) -> Mapping[str, str]:
        return {name: msgspec.json.encode(self.configs[name], enc_hook=tables.write).decode() for name in names}

    def joined_by(self, written: Mapping[str, str]) -> "HandlerSet":
        """With those that prepared configured as they were then: a handler recovers as it prepared."""
        return self._joined(tuple(written.items()))

    def _join(self, written: tuple[tuple[str, str], ...]) -> "HandlerSet":
        then = {name: self._run_as_now(config) for name, text in written if (config := _decoded(text))}
        configs = {**self.configs, **then}
        return self if configs == self.configs else HandlerSet(configs.values())

    def _run_as_now(self, config: tables.Handler) -> tables.Handler:
        now = self.configs.get(config.name)
        if type(now) is not type(config):
            return config
        return msgspec.structs.replace(config, **{key: getattr(now, key) for key in CURRENT})


def _decoded(text: str) -> tables.Handler | None:
    """None: another version of the agent wrote it, with keys that this one does not know."""
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError:
        return None


@dataclass(frozen=True, slots=True)
class Job:
    saga: str
    phase: Phase
    handler: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    job: Job
    outcome: Outcome
    seconds: float


@dataclass(slots=True)
class _Running:
    stop: threading.Event
    begun: float
    ends_by: float


class Workers:
    """Belongs to the loop's thread; results are posted to it."""

    def __init__(
        self, post: Callable[[Ended], None], context: Context, make: Callable[[tables.Handler, Runtime], Handler] = make
    ) -> None:
        self._post = post
        self._runtime, self._observe = context.runtime, context.observe
        self._make = make
        self._running: dict[Job, _Running] = {}

    def begin(self, job: Job, config: tables.Handler, work: Work) -> None:
        def act() -> str:
            handler = self._make(config, self._runtime)
            return handler.rehearse() if self._observe else handler.run(work)

        try:
            self._start(job, lambda: Outcome.of(act), work.seconds_left, work.stop)
        except RuntimeError as error:
            # It counts as a failure, and is retried.
            self._running[job] = _Running(work.stop, 0.0, float("inf"))
            self._post(Ended(job, Outcome(ok=False, message=str(error)), 0.0))

    def end(self, job: Job, act: Callable[[], bool]) -> None:
        """`act` ends what an earlier agent left running, and returns whether nothing of it is left.

        RuntimeError: the system has no more threads; nothing has changed.
        """

        def outcome() -> Outcome:
            if act():
                message = "ended, because an earlier agent left it running"
                return Outcome(ok=False, message=message, interrupted=True)
            return Outcome(ok=False, message="left running by an earlier agent, and cannot be killed")

        self._start(job, outcome, KILL_SECONDS, threading.Event())

    def _start(self, job: Job, act: Callable[[], Outcome], seconds: float, stop: threading.Event) -> None:
        """RuntimeError: the system has no more threads."""

        def run() -> None:
            self._post(Ended(job, act(), self._runtime.monotonic() - begun))

        begun = self._runtime.monotonic()
        self._runtime.start_thread(run, f"{job.phase} {job.handler}")
        self._running[job] = _Running(stop, begun, begun + seconds + GRACE + KILL_SECONDS)

    def knows(self, job: Job) -> bool:
        return job in self._running

    def stop(self, job: Job) -> None:
        if running := self._running.get(job):
            running.stop.set()
            running.ends_by = min(running.ends_by, self._runtime.monotonic() + GRACE + KILL_SECONDS)

    def stop_all(self) -> None:
        for job in self._running:
            self.stop(job)

    def finish(self, ended: Ended) -> bool:
        return self._running.pop(ended.job, None) is not None

    def give_up(self) -> list[Ended]:
        """Those that neither ended nor could be killed: their threads are abandoned."""
        now, outcome = self._runtime.monotonic(), Outcome(ok=False, message="did not end when asked to")
        overdue = [(job, running) for job, running in self._running.items() if now > running.ends_by]
        return [Ended(job, outcome, now - running.begun) for job, running in overdue]

    @property
    def busy(self) -> bool:
        return bool(self._running)
