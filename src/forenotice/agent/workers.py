"""Handlers as agent.toml and the journal configure them, and the threads that run them."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from forenotice.agent.context import Context
from forenotice.agent.handlers import GRACE, Handler, Outcome, Work, tables
from forenotice.agent.handlers.child import ChildHandler
from forenotice.agent.handlers.command import Command
from forenotice.agent.handlers.file import File
from forenotice.agent.handlers.haproxy import Haproxy
from forenotice.agent.handlers.systemd import Systemd
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
    def __init__(self, configs: Iterable[tables.Handler], runtime: Runtime) -> None:
        self._configs = {config.name: config for config in configs}
        self._runtime = runtime
        self.rules: Sequence[Rule] = [config.rule for config in self._configs.values()]
        self._made: dict[str, Handler] = {}
        self._joined: dict[tuple[tuple[str, str], ...], HandlerSet] = {}

    def stage(self, name: str) -> int:
        return self._configs[name].stage

    def handler(self, name: str) -> Handler:
        if name not in self._made:
            self._made[name] = make(self._configs[name], self._runtime)
        return self._made[name]

    def written(self, names: Iterable[str]) -> Mapping[str, str]:
        return {name: msgspec.json.encode(self._configs[name], enc_hook=tables.write).decode() for name in names}

    def joined_by(self, written: Mapping[str, str]) -> "HandlerSet":
        """With those that prepared configured as they were then: a handler recovers as it prepared."""
        key = tuple(written.items())
        if key not in self._joined:
            if len(self._joined) >= CACHED:
                del self._joined[next(iter(self._joined))]
            self._joined[key] = self._join(written)
        return self._joined[key]

    def _join(self, written: Mapping[str, str]) -> "HandlerSet":
        then = {name: self._run_as_now(config) for name, text in written.items() if (config := _decoded(text))}
        configs = {**self._configs, **then}
        if configs == self._configs:
            return self
        joined = HandlerSet(configs.values(), self._runtime)
        joined._made = {name: made for name, made in self._made.items() if configs[name] == self._configs[name]}
        return joined

    def _run_as_now(self, config: tables.Handler) -> tables.Handler:
        now = self._configs.get(config.name)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    job: Job
    outcome: Outcome
    seconds: float
    interrupted: bool = False
    """An earlier agent began it, and this one has ended it."""


@dataclass(slots=True, kw_only=True)
class _Running:
    stop: threading.Event
    begun: float
    ends_by: float


class Workers:
    """Belongs to the loop's thread; results are posted to it."""

    def __init__(self, post: Callable[[Ended], None], context: Context) -> None:
        self._post = post
        self._runtime, self._observe = context.runtime, context.observe
        self._running: dict[Job, _Running] = {}

    def begin(self, job: Job, handler: Handler, work: Work) -> None:
        def run() -> Ended:
            try:
                outcome = handler.rehearse() if self._observe else handler.run(work)
            except Exception as error:
                outcome = Outcome(ok=False, message=f"{type(error).__name__}: {error}")
            return Ended(job=job, outcome=outcome, seconds=self._runtime.monotonic() - now)

        now = self._runtime.monotonic()
        ends_by = now + work.seconds_left + GRACE + KILL_SECONDS
        self._running[job] = _Running(stop=work.stop, begun=now, ends_by=ends_by)
        try:
            self._runtime.start_thread(lambda: self._post(run()), f"{job.phase} {job.handler}")
        except RuntimeError as error:
            self.fail(job, error)

    def fail(self, job: Job, error: Exception) -> None:
        """It could not begin: that counts as a failure, and is retried."""
        self._running.setdefault(job, _Running(stop=threading.Event(), begun=0.0, ends_by=float("inf")))
        message = f"{type(error).__name__}: {error}"
        self._post(Ended(job=job, outcome=Outcome(ok=False, message=message), seconds=0.0))

    def end(self, job: Job, act: Callable[[], bool]) -> None:
        """`act` ends what an earlier agent left running, and returns whether nothing of it is left."""

        def run() -> Ended:
            ended = act()
            message = "ended, because an earlier agent left it running"
            if not ended:
                message = "left running by an earlier agent, and cannot be killed"
            seconds = self._runtime.monotonic() - now
            return Ended(job=job, outcome=Outcome(ok=False, message=message), seconds=seconds, interrupted=ended)

        now = self._runtime.monotonic()
        self._runtime.start_thread(lambda: self._post(run()), f"end {job.handler}")
        self._running[job] = _Running(stop=threading.Event(), begun=now, ends_by=now + GRACE + 2 * KILL_SECONDS)

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
        return [
            Ended(job=job, outcome=outcome, seconds=now - running.begun)
            for job, running in self._running.items()
            if now > running.ends_by
        ]

    @property
    def busy(self) -> bool:
        return bool(self._running)
