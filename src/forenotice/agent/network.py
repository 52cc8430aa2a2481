"""What others see of the agent over HTTP, and what it tells its peers. An address that is taken is tried again."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from forenotice.agent import status
from forenotice.agent.config import READY_PATH, Config, ConfigError
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.listener import Listener, Reply, Request
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.rules.policy import NOT_TOLD
from forenotice.agent.status import Health
from forenotice.settings import values

if TYPE_CHECKING:
    from forenotice.agent.peers import Order, Peers, Said

PAUSE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the front has its facts from, and where it brings what it hears."""

    standing: Callable[[], Health]
    heard: Callable[[str, str, datetime | None], None]
    now: Callable[[], datetime]


class Network:
    """Belongs to the loop's thread."""

    def __init__(self, sources: Sources, log: Log, metrics: Metrics, *, pause: float = PAUSE) -> None:
        self._sources = sources
        self._log = log
        self._metrics = metrics
        self._pause = pause
        self._listener: Listener | None = None
        self._listen = ""
        self._peers: Peers | None = None
        self._unjoined = NOT_TOLD
        """Why this agent has not joined its peers."""
        self._order: Order | None = None
        self._said: Said = {}
        self._company: tuple[PeersConfig | None, tuple[str, ...]] = (None, ())
        self._again_at = 0.0

    def keep_up(self, config: Config, names: Sequence[str]) -> None:
        """Be what the configuration asks for, as soon as that is possible."""
        # Read again, the peers' secret may be another even where the configuration is the same.
        regrouped = config.peers is not self._company[0] or tuple(names) != self._company[1]
        if config.listen != self._listen:
            self._stop_listening()
        if regrouped:
            self._leave_peers()
        if config.listen != self._listen or regrouped:
            self._listen, self._company, self._again_at = config.listen, (config.peers, tuple(names)), 0.0
        if time.monotonic() < self._again_at:
            return
        if config.peers is not None and names and self._peers is None:
            self._try(partial(self._join_peers, config.peers, names), of="peers")
        if config.listen and self._listener is None:
            self._try(partial(self._start_listening, config.listen), of="listen")

    def tell(self, said: "Said") -> None:
        """All that peers are to know now: what is no longer said here is not told any more."""
        self._said = said
        if self._peers is not None:
            self._peers.tell(said)

    def untold(self, event_id: str) -> Mapping[str, str]:
        """Which peers have not acknowledged what they are told of an event, and why."""
        if self._peers is not None:
            return self._peers.untold(event_id)
        resources, _ = self._said.get(event_id, ((), None))
        return dict.fromkeys(resources, self._unjoined) if self._company[0] else {}

    def close(self) -> None:
        self._stop_listening()
        self._leave_peers()

    def _try(self, act: Callable[[], None], *, of: str) -> None:
        try:
            act()
        except (OSError, ConfigError) as error:
            self._again_at = time.monotonic() + self._pause
            self._log.trouble("Others cannot be answered", action="listen.failed", reason=str(error), of=of)
        else:
            self._log.over("Others can be answered at last", action="listen.failed", of=of)

    def _start_listening(self, listen: str) -> None:
        address = values.address(listen)
        routes = {
            **status.routes(self._sources.standing),
            **self._metrics.routes(),
            ("POST", READY_PATH): self._told_by_a_peer,
        }
        listener = Listener(address.host, address.port, routes, failed=self._page_failed)
        listener.start()
        self._listener = listener
        host, port = listener.address
        self._log.info("Listening", action="listen.started", host=host, port=port)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    def _join_peers(self, config: PeersConfig, names: Sequence[str]) -> None:
        # It loads OpenSSL, some megabytes that few need.
        from forenotice.agent.peers import Order, Peers

        self._order = self._order or Order()
        try:
            self._peers = Peers(
                config,
                names,
                self._sources.heard,
                now=self._sources.now,
                log=self._log,
                listen=self._listen,
                counted=self._metrics.exchanged,
                order=self._order,
            )
        except ConfigError as error:
            self._unjoined = error.message
            raise
        self._peers.tell(self._said)

    def _leave_peers(self) -> None:
        if self._peers is not None:
            self._peers.close()
        self._peers = None

    def _told_by_a_peer(self, request: Request) -> Reply:
        """In a thread of the listener."""
        peers = self._peers
        return peers.hear(request) if peers is not None else Reply.text("This agent has no peers.", 404)

    def _page_failed(self, path: str, error: Exception) -> None:
        self._log.error("A page could not be made", action="listen.broken", path=path, reason=repr(error))
