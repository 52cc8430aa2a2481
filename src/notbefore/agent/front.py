"""What others see of the agent over HTTP, and what it tells its peers. An address that is taken is tried again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from notbefore.agent import health
from notbefore.agent.config.file import Config, ConfigError
from notbefore.agent.health import Standing
from notbefore.agent.listener import Listener
from notbefore.agent.log import Log
from notbefore.agent.metrics import Metrics
from notbefore.settings import values

if TYPE_CHECKING:
    from notbefore.agent.peers import Peers

PAUSE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the front has its facts from, and where it brings what it hears."""

    standing: Callable[[], Standing]
    heard: Callable[[str, str, datetime], None]
    now: Callable[[], datetime]


class Front:
    """Belongs to the loop's thread."""

    def __init__(self, sources: Sources, log: Log, metrics: Metrics) -> None:
        self._sources = sources
        self._log = log
        self._metrics = metrics
        self._wanted: tuple[object, ...] = ()
        self._listener: Listener | None = None
        self._peers: Peers | None = None
        self._again_at = 0.0

    def keep_up(self, config: Config, names: Sequence[str]) -> None:
        """Be what the configuration asks for, as soon as that is possible."""
        wanted = (config.listen, config.peers, tuple(names))
        if wanted != self._wanted:
            self.close()
            self._wanted, self._again_at = wanted, 0.0
        if config.listen and self._listener is None and time.monotonic() >= self._again_at:
            self._open(config, names)

    def announce(self, event_id: str, resources: Sequence[str], ready_at: datetime) -> None:
        if self._peers is not None and len(resources) > 1:
            self._peers.announce(event_id, resources, ready_at)

    def withdraw(self, event_id: str) -> None:
        if self._peers is not None:
            self._peers.withdraw(event_id)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._peers is not None:
            self._peers.close()
        self._listener = self._peers = None

    def _open(self, config: Config, names: Sequence[str]) -> None:
        try:
            address = values.address(config.listen)
            peers = self._peers_of(config, names)
            listener = Listener(
                address.host,
                address.port,
                {
                    **health.routes(self._sources.standing),
                    **self._metrics.routes(),
                    **(peers.routes() if peers else {}),
                },
                failed=lambda path, error: self._log.error(
                    "A page could not be made", action="listen.broken", path=path, reason=repr(error)
                ),
            )
            listener.start()
        except (OSError, ConfigError) as error:
            self._again_at = time.monotonic() + PAUSE
            self._log.trouble("Cannot listen", action="listen.failed", reason=str(error))
            return
        self._listener, self._peers = listener, peers
        host, port = listener.address
        self._log.over("Listening at last", action="listen.failed")
        self._log.info("Listening", action="listen.started", host=host, port=port)

    def _peers_of(self, config: Config, names: Sequence[str]) -> "Peers | None":
        if config.peers is None or not names:
            return None
        # It loads OpenSSL, some megabytes that few need.
        from notbefore.agent.peers import Peers

        return Peers(config.peers, names, self._sources.heard, now=self._sources.now, counted=self._metrics.exchanged)
