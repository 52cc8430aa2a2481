"""`forenotice agent run`: puts the agent together and keeps it going. Loads neither Typer nor Rich."""

import contextlib
import os
import queue
import sys
from pathlib import Path

import msgspec

from forenotice.agent.approving import Approver
from forenotice.agent.config import file
from forenotice.agent.config.file import Config, ConfigError
from forenotice.agent.front import Front, Sources
from forenotice.agent.journal import JournalError
from forenotice.agent.locking import Lock
from forenotice.agent.log import Log, Outlet
from forenotice.agent.loop import Loop, Surroundings
from forenotice.agent.memory import Memory
from forenotice.agent.messages import Heard, Message, Quit, Reload
from forenotice.agent.metrics import Metrics
from forenotice.agent.polling import PACE, Polling
from forenotice.agent.posix import notify, signals
from forenotice.agent.reporting import Reporter
from forenotice.agent.sampling import Sampler
from forenotice.agent.working import Workers
from forenotice.client import Client, Pace
from forenotice.clock import MachineClock, boot_id
from forenotice.core import errors
from forenotice.settings import AgentSettings

LAST_WORDS = 1.0
"""Seconds that are left to whoever reads the log when the agent ends."""


class Agent:
    def __init__(self, settings: AgentSettings, pace: Pace = PACE) -> None:
        """RefusedError: agent.toml or the state directory cannot be used. ConflictError: another agent runs here."""
        self._settings = settings
        self._pace = pace
        self._config = read(settings)
        self._clock = MachineClock()
        self._outlet = Outlet(sys.stderr)
        self._log = Log(self._clock, settings.log_level, settings.log_format, self._outlet)
        self._directory = Path(self._config.state)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock: Lock | None = None
        self._conflict: errors.ConflictError | errors.RefusedError | None = None
        with contextlib.suppress(JournalError):
            # It is tried again whenever the journal is to be opened.
            self._take_the_lock()
        self._notifier = notify.take(os.environ)
        self._metrics = Metrics()

    def run(self) -> None:
        """Until SIGTERM. ConflictError, RefusedError: the state directory turned out not to be for this agent."""
        config, inbox, log, metrics = self._config, self._inbox, self._log, self._metrics
        signals.install(stop=lambda: inbox.put(Quit()), reload=lambda: inbox.put(Reload()))
        endpoint = config.endpoint or None
        client = Client(endpoint, name=config.name or None, pace=self._pace)
        polling = Polling(client, inbox.put, log, metrics, interval=self._pace.interval)
        observe = self._settings.observe
        boot = boot_id()
        memory = Memory(self._directory, log, metrics, self._take_the_lock, observe=observe, boot=boot)
        reporter = Reporter(self._directory, memory, polling, self._clock, log, metrics, self._notifier)
        front = Front(
            Sources(
                standing=lambda: reporter.standing,
                heard=lambda event, name, at: inbox.put(Heard(event, name, at)),
                now=lambda: self._clock.now() + polling.ahead,
            ),
            log,
            metrics,
        )
        around = Surroundings(
            memory=memory,
            polling=polling,
            approver=Approver(client, inbox.put),
            workers=Workers(inbox.put, observe=observe),
            front=front,
            sampler=Sampler(),
            clock=self._clock,
            log=log,
            metrics=metrics,
            boot=boot,
        )
        loop = Loop(inbox, config, around, observe=observe)

        def after_turn() -> None:
            untold = front.untold if self._config.peers else None
            reporter.report(loop.me, observe=observe, untold=untold)
            front.keep_up(self._config, loop.names)

        log.info(
            "The agent runs, and only observes" if observe else "The agent runs",
            action="agent.started",
            state=str(self._directory),
            handlers=len(config.handlers),
        )
        self._warn()
        polling.start()
        self._notifier.ready()
        try:
            loop.run(reload=lambda: self._reload(loop), after_turn=after_turn)
        finally:
            self._notifier.stopping()
            polling.stop()
            front.close()
        log.info("The agent has stopped", action="agent.stopped")
        self._outlet.flush(LAST_WORDS)
        if self._conflict:
            raise self._conflict

    def _reload(self, loop: Loop) -> None:
        self._notifier.reloading()
        try:
            config = read(self._settings)
        except ConfigError as error:
            self._log.error("The new configuration is not used", action="agent.reload_failed", reason=error.message)
        else:
            fixed = ("state", "endpoint", "name")
            changed = [key for key in fixed if getattr(config, key) != getattr(self._config, key)]
            self._config = config
            loop.configure(config)
            self._log.info("The configuration was read again", action="agent.reloaded", needs_a_restart=changed)
            self._warn()
        self._notifier.ready()

    def _warn(self) -> None:
        if self._config.unapproved:
            self._log.warning(
                'No handler prepares for some events, and approve = "always" is not set: they are not approved',
                action="agent.unapproved",
                types=self._config.unapproved,
            )

    def _take_the_lock(self) -> None:
        """JournalError while that is not possible.

        ConflictError if another agent has it, RefusedError if other users can change the directory: it then ends.
        """
        if self._lock and not self._lock.is_there():
            self._lock.release()
            self._lock = None
        try:
            self._lock = self._lock or Lock(self._directory)
        except (errors.ConflictError, errors.RefusedError) as error:
            self._conflict = error
            self._inbox.put(Quit())
            raise


def read(settings: AgentSettings) -> Config:
    """agent.toml, with what flags and variables say instead."""
    config = file.load(settings.config)
    given = {
        "state": settings.state and str(settings.state.absolute()),
        "endpoint": settings.endpoint,
        "name": settings.name,
    }
    return msgspec.structs.replace(config, **{key: value for key, value in given.items() if value})
