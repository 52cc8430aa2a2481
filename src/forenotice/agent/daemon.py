"""`forenotice agent run`: assembles the agent and runs it. Loads neither Click nor Rich."""

import contextlib
import os
import queue
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forenotice import settings as all_settings
from forenotice.agent import config as configs
from forenotice.agent import posix
from forenotice.agent.config import Config, ConfigError
from forenotice.agent.context import Context, Log, Metrics, Outlet
from forenotice.agent.endpoint import PACE, Approver, Poller
from forenotice.agent.freeze import Sampler
from forenotice.agent.journal import JournalError, Lock
from forenotice.agent.loop import Loop, Message, Parts, PeerReady, Signal
from forenotice.agent.network import Network
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import Reporter
from forenotice.agent.workers import Workers
from forenotice.client import Client, Pace
from forenotice.clock import MachineClock, boot_id
from forenotice.core import errors
from forenotice.runtime import Runtime
from forenotice.settings import AgentSettings, table

DONE, FAILED, USAGE = 0, 1, 2
FLUSH_SECONDS = 1.0
"""For the reader of the log when the agent ends."""


def main(arguments: Sequence[str]) -> int:
    if sys.stderr is None:
        # Closed by the process that started us.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    parser = table.parser("forenotice agent run", "Run the agent of this VM until SIGTERM.", table.AGENT)
    flags = vars(parser.parse_args(arguments))
    try:
        Agent(all_settings.load_agent(flags, os.environ)).run()
    except errors.ForenoticeError as error:
        sys.stderr.write(f"forenotice: {error.message}\n")
        return USAGE if isinstance(error, errors.RefusedError) else FAILED
    return DONE


def read(settings: AgentSettings) -> Config:
    """agent.toml, overridden by flags and variables."""
    given = {
        "state": settings.state and str(settings.state.absolute()),
        "endpoint": settings.endpoint,
        "name": settings.name,
    }
    config = configs.load(settings.config)
    return msgspec.structs.replace(config, **{key: value for key, value in given.items() if value})


class Agent:
    def __init__(self, settings: AgentSettings, pace: Pace = PACE, runtime: Runtime | None = None) -> None:
        """RefusedError: agent.toml or the state directory cannot be used. ConflictError: another agent runs here."""
        self._settings = settings
        self._config = config = read(settings)
        runtime = runtime or Runtime()
        self._directory = Path(config.state)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._outlet = Outlet(sys.stderr, runtime)
        clock = MachineClock()
        self._log = log = Log(clock, settings.log_level, settings.log_format, self._outlet)
        self._lock: Lock | None = None
        self._conflict: errors.ConflictError | errors.RefusedError | None = None
        with contextlib.suppress(JournalError):
            # It is tried again whenever the journal is to be opened.
            self._take_lock()
        self._notifier = posix.take_notifier(os.environ, runtime.monotonic)

        post, metrics = self._inbox.put, Metrics(runtime.monotonic)
        context = Context(
            log=log, metrics=metrics, runtime=runtime, clock=clock, observe=settings.observe, boot=boot_id()
        )
        client = Client(config.endpoint or None, name=config.name or None, pace=pace)
        self._poller = poller = Poller(client, post, context, interval=pace.interval)
        sagas = Sagas(self._directory, context, self._take_lock)
        self._reporter = Reporter(self._directory, sagas, poller, self._notifier, context)
        self._network = Network(
            self._reporter.health,
            lambda event, name, at: post(PeerReady(event, name, at)),
            lambda: clock.now() + poller.ahead,
            context,
        )
        parts = Parts(
            sagas=sagas,
            poller=poller,
            approver=Approver(client, post, runtime),
            workers=Workers(post, context),
            network=self._network,
            sampler=Sampler(runtime),
            context=context,
        )
        self._loop = Loop(self._inbox, config, parts)

    def run(self) -> None:
        """Until SIGTERM. ConflictError, RefusedError: the state directory turned out not to be for this agent."""
        inbox = self._inbox
        posix.install_signals(stop=lambda: inbox.put(Signal.QUIT), reload=lambda: inbox.put(Signal.RELOAD))
        self._log.info(
            "The agent runs, and only observes" if self._settings.observe else "The agent runs",
            action="agent.started",
            state=str(self._directory),
            handlers=len(self._config.handlers),
        )
        self._warn()
        self._poller.start()
        self._notifier.ready()
        try:
            self._loop.run(reload=self._reload, after_turn=self._after_turn)
        finally:
            self._notifier.stopping()
            self._poller.stop()
            self._network.close()
        self._log.info("The agent has stopped", action="agent.stopped")
        self._outlet.flush(FLUSH_SECONDS)
        if self._conflict:
            raise self._conflict

    def _after_turn(self) -> None:
        unacknowledged = self._network.unacknowledged if self._config.peers else None
        self._reporter.report(self._loop.me, unacknowledged)
        self._network.apply(self._config, self._loop.names)

    def _reload(self) -> None:
        self._notifier.reloading()
        try:
            config = read(self._settings)
        except ConfigError as error:
            self._log.error("The new configuration is not used", action="agent.reload_failed", reason=error.message)
        else:
            fixed = ("state", "endpoint", "name")
            changed = [key for key in fixed if getattr(config, key) != getattr(self._config, key)]
            self._config = config
            self._loop.configure(config)
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

    def _take_lock(self) -> None:
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
            self._inbox.put(Signal.QUIT)
            raise
