"""Handlers at work, each in a thread of its own."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from forenotice.agent.handlers import GRACE, Handler, Outcome, Work, tables
from forenotice.agent.handlers.child import ChildHandler
from forenotice.agent.handlers.command import Command
from forenotice.agent.handlers.file import File
from forenotice.agent.handlers.haproxy import Haproxy
from forenotice.agent.handlers.systemd import Systemd
from forenotice.agent.handlers.tables import Handler as HandlerConfig
from forenotice.agent.handlers.webhook import Webhook
from forenotice.agent.rules.policy import Phase, Rule

PATIENCE = 5.0
"""Seconds after which a handler that should have been killed is given up."""


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
    """An agent before this one has begun it, and this one has ended it."""


@dataclass(slots=True, kw_only=True)
class _Running:
    stop: threading.Event
    begun: float
    ends_by: float


class Workers:
    """Belongs to the loop's thread; what has ended is posted to it."""

    def __init__(self, post: Callable[[Ended], None], *, observe: bool = False) -> None:
        """With `observe`, handlers say what they would do, and do nothing."""
        self._post = post
        self._observe = observe
        self._running: dict[Job, _Running] = {}

    def begin(self, job: Job, handler: Handler, work: Work) -> None:
        now = time.monotonic()
        ends_by = now + work.seconds_left + GRACE + PATIENCE
        self._running[job] = _Running(stop=work.stop, begun=now, ends_by=ends_by)
        name = f"{job.phase} {job.handler}"
        threading.Thread(target=self._work, args=(job, handler, work), name=name, daemon=True).start()

    def end(self, job: Job, act: Callable[[], bool]) -> None:
        """`act` ends what an agent before this one has left; whether nothing of it is left, it says."""
        now = time.monotonic()
        threading.Thread(target=self._end, args=(job, act), name=f"end {job.handler}", daemon=True).start()
        self._running[job] = _Running(stop=threading.Event(), begun=now, ends_by=now + GRACE + 2 * PATIENCE)

    def knows(self, job: Job) -> bool:
        return job in self._running

    def unbegun(self, job: Job, error: Exception) -> Ended:
        """What is to be told of one that could not be begun."""
        self._running.setdefault(job, _Running(stop=threading.Event(), begun=0.0, ends_by=float("inf")))
        return Ended(job=job, outcome=Outcome(ok=False, said=f"{type(error).__name__}: {error}"), seconds=0.0)

    def stop(self, job: Job) -> None:
        if running := self._running.get(job):
            running.stop.set()
            running.ends_by = min(running.ends_by, time.monotonic() + GRACE + PATIENCE)

    def stop_all(self) -> None:
        for job in self._running:
            self.stop(job)

    def finish(self, ended: Ended) -> bool:
        """Whether it was still waited for."""
        return self._running.pop(ended.job, None) is not None

    def give_up(self) -> list[Ended]:
        """Those that neither ended nor could be killed: they are left behind."""
        now = time.monotonic()
        return [
            Ended(job=job, outcome=Outcome(ok=False, said="did not end when told to"), seconds=now - running.begun)
            for job, running in self._running.items()
            if now > running.ends_by
        ]

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def _end(self, job: Job, act: Callable[[], bool]) -> None:
        begun = time.monotonic()
        ended = act()
        said = "ended, as an earlier agent had left it" if ended else "left by an earlier agent, and cannot be killed"
        seconds = time.monotonic() - begun
        self._post(Ended(job=job, outcome=Outcome(ok=False, said=said), seconds=seconds, interrupted=ended))

    def _work(self, job: Job, handler: Handler, work: Work) -> None:
        begun = time.monotonic()
        try:
            outcome = handler.rehearse() if self._observe else handler.run(work)
        except Exception as error:
            outcome = Outcome(ok=False, said=f"{type(error).__name__}: {error}")
        self._post(Ended(job=job, outcome=outcome, seconds=time.monotonic() - begun))


PRESENT = ("stage", "timeout", "retries", "on_failure")
"""How a handler is run, not what it does: as agent.toml says now."""
JOINED = 32
"""Crews that are kept, of as many sagas at least."""
_READER: msgspec.json.Decoder[HandlerConfig] = msgspec.json.Decoder(HandlerConfig, dec_hook=tables.read)


class HandlerSet:
    def __init__(self, configs: Iterable[HandlerConfig]) -> None:
        self._configs = {config.name: config for config in configs}
        self.rules: Sequence[Rule] = [config.rule for config in self._configs.values()]
        self._made: dict[str, Handler] = {}
        self._joined: dict[tuple[tuple[str, str], ...], HandlerSet] = {}

    def stage(self, name: str) -> int:
        return self._configs[name].stage

    def handler(self, name: str) -> Handler:
        if name not in self._made:
            self._made[name] = make(self._configs[name])
        return self._made[name]

    def written(self, names: Iterable[str]) -> Mapping[str, str]:
        """Their configuration, to be kept with what they prepare."""
        return {name: msgspec.json.encode(self._configs[name], enc_hook=tables.write).decode() for name in names}

    def joined_by(self, written: Mapping[str, str]) -> "HandlerSet":
        """With those that prepared as they were then: as a handler began, so it ends."""
        key = tuple(written.items())
        if key not in self._joined:
            if len(self._joined) >= JOINED:
                del self._joined[next(iter(self._joined))]
            self._joined[key] = self._join(written)
        return self._joined[key]

    def _join(self, written: Mapping[str, str]) -> "HandlerSet":
        then = {name: self._run_as_now(config) for name, text in written.items() if (config := _read(text))}
        configs = {**self._configs, **then}
        if configs == self._configs:
            return self
        handlers = HandlerSet(configs.values())
        handlers._made = {name: made for name, made in self._made.items() if configs[name] == self._configs[name]}
        return handlers

    def _run_as_now(self, config: HandlerConfig) -> HandlerConfig:
        now = self._configs.get(config.name)
        if type(now) is not type(config):
            return config
        return msgspec.structs.replace(config, **{key: getattr(now, key) for key in PRESENT})


def _read(text: str) -> HandlerConfig | None:
    """None: another version of the agent wrote it, in words that this one does not know."""
    try:
        return _READER.decode(text)
    except msgspec.MsgspecError:
        return None


def make(config: tables.Handler) -> Handler:
    match config:
        case tables.Command():
            return Command(config)
        case tables.Webhook():
            return Webhook(config)
        case tables.Systemd():
            return Systemd(config)
        case tables.File():
            return File(config)
        case tables.Haproxy():
            return Haproxy(config)
        case tables.Kubernetes() | tables.Notify() | tables.Python():
            return ChildHandler(config)
