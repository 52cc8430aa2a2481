"""`forenotice agent run`: puts the agent together and keeps it going. Loads neither Click nor Rich."""

import argparse
import contextlib
import os
import queue
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forenotice import settings
from forenotice.agent import config as configs
from forenotice.agent import posix
from forenotice.agent.config import Config, ConfigError
from forenotice.agent.endpoint import PACE, Approver, Poller
from forenotice.agent.freeze import Sampler
from forenotice.agent.journal import JournalError, Lock
from forenotice.agent.log import Log, Outlet
from forenotice.agent.loop import Heard, Loop, Message, Parts, Quit, Reload
from forenotice.agent.metrics import Metrics
from forenotice.agent.network import Network, Sources
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import Reporter
from forenotice.agent.workers import Workers
from forenotice.client import Client, Pace
from forenotice.clock import MachineClock, boot_id
from forenotice.core import errors
from forenotice.settings import AgentSettings, table

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
        self._notifier = posix.take(os.environ)
        self._metrics = Metrics()

    def run(self) -> None:
        """Until SIGTERM. ConflictError, RefusedError: the state directory turned out not to be for this agent."""
        config, inbox, log, metrics = self._config, self._inbox, self._log, self._metrics
        posix.install(stop=lambda: inbox.put(Quit()), reload=lambda: inbox.put(Reload()))
        endpoint = config.endpoint or None
        client = Client(endpoint, name=config.name or None, pace=self._pace)
        polling = Poller(client, inbox.put, log, metrics, interval=self._pace.interval)
        observe = self._settings.observe
        boot = boot_id()
        memory = Sagas(self._directory, log, metrics, self._take_the_lock, observe=observe, boot=boot)
        reporter = Reporter(self._directory, memory, polling, self._clock, log, metrics, self._notifier)
        front = Network(
            Sources(
                standing=lambda: reporter.standing,
                heard=lambda event, name, at: inbox.put(Heard(event, name, at)),
                now=lambda: self._clock.now() + polling.ahead,
            ),
            log,
            metrics,
        )
        around = Parts(
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
    config = configs.load(settings.config)
    given = {
        "state": settings.state and str(settings.state.absolute()),
        "endpoint": settings.endpoint,
        "name": settings.name,
    }
    return msgspec.structs.replace(config, **{key: value for key, value in given.items() if value})


DONE, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    if sys.stderr is None:
        # Closed by whoever started us: what is said goes nowhere.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    parser = argparse.ArgumentParser(prog="forenotice agent run", description="Run the agent of this VM until SIGTERM.")
    for row in table.AGENT:
        if row.is_switch:
            parser.add_argument(row.flag, dest=row.name, action="store_true", help=row.described)
        else:
            parser.add_argument(row.flag, dest=row.name, metavar=row.metavar, help=row.described)
    flags = vars(parser.parse_args(arguments))
    try:
        Agent(settings.load_agent(flags, os.environ)).run()
    except errors.RefusedError as error:
        return _complain(error, USAGE)
    except errors.ForenoticeError as error:
        return _complain(error, FAILED)
    return DONE


def _complain(error: errors.ForenoticeError, code: int) -> int:
    sys.stderr.write(f"forenotice: {error.message}\n")
    return code
