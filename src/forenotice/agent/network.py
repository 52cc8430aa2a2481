"""Keeps the listener and the exchange with peers as the configuration asks; an address that is taken is retried."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from forenotice.agent import status
from forenotice.agent.config import READY_PATH, Config, ConfigError
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.context import CONTENT_TYPE, Context
from forenotice.agent.listener import Listener, Request, Response
from forenotice.agent.rules.policy import NOT_SENT
from forenotice.settings import values

if TYPE_CHECKING:
    from forenotice.agent.peers import Announced, Order, Peers, Received

PAUSE = 5.0


class Network:
    """Belongs to the loop's thread."""

    def __init__(
        self,
        health: Callable[[], status.Health],
        received: "Received",
        now: Callable[[], datetime],
        context: Context,
        *,
        pause: float = PAUSE,
    ) -> None:
        """`received` gets peers' readiness; `now` is the endpoint's time."""
        self._health = health
        self._received = received
        self._now = now
        self._context = context
        self._log, self._runtime = context.log, context.runtime
        self._pause = pause
        self._listener: Listener | None = None
        self._listen = ""
        self._peers: Peers | None = None
        self._unjoined = NOT_SENT
        self._order: Order | None = None
        self._announced: Announced = {}
        self._company: tuple[PeersConfig | None, tuple[str, ...]] = (None, ())
        self._again_at = 0.0

    def apply(self, config: Config, names: Sequence[str]) -> None:
        """Follow the configuration, as soon as that is possible."""
        company = (config.peers, tuple(names))
        # By identity: when the file is read again, the peers' secret may have changed.
        regrouped = company[0] is not self._company[0] or company[1] != self._company[1]
        if config.listen != self._listen:
            self._stop_listening()
        if regrouped:
            self._leave_peers()
        if config.listen != self._listen or regrouped:
            self._listen, self._company, self._again_at = config.listen, company, 0.0
        if self._runtime.monotonic() < self._again_at:
            return
        if config.peers is not None and names and self._peers is None:
            self._try(partial(self._join_peers, config.peers, names), of="peers")
        if config.listen and self._listener is None:
            self._try(partial(self._start_listening, config.listen), of="listen")

    def announce(self, announced: "Announced") -> None:
        self._announced = announced
        if self._peers is not None:
            self._peers.announce(announced)

    def unacknowledged(self, event_id: str) -> Mapping[str, str]:
        if self._peers is not None:
            return self._peers.unacknowledged(event_id)
        resources, _ = self._announced.get(event_id, ((), None))
        return dict.fromkeys(resources, self._unjoined) if self._company[0] else {}

    def close(self) -> None:
        self._stop_listening()
        self._leave_peers()

    def _try(self, act: Callable[[], None], *, of: str) -> None:
        try:
            act()
        except (OSError, ConfigError) as error:
            self._again_at = self._runtime.monotonic() + self._pause
            self._log.trouble("The agent cannot listen", action="listen.failed", reason=str(error), of=of)
        else:
            self._log.over("The agent can listen at last", action="listen.failed", of=of)

    def _start_listening(self, listen: str) -> None:
        address = values.address(listen)
        routes = {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics,
            ("POST", READY_PATH): self._receive,
        }
        listener = Listener(address.host, address.port, routes, self._runtime, failed=self._route_failed)
        listener.start()
        self._listener = listener
        host, port = listener.address
        self._log.info("Listening", action="listen.started", host=host, port=port)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    def _join_peers(self, config: PeersConfig, names: Sequence[str]) -> None:
        # Only here: it loads OpenSSL, some megabytes that few agents need.
        from forenotice.agent.peers import Order, Peers

        self._order = self._order or Order()
        try:
            self._peers = Peers(
                config, names, self._received, self._now, self._context, listen=self._listen, order=self._order
            )
        except ConfigError as error:
            self._unjoined = error.message
            raise
        self._peers.announce(self._announced)

    def _leave_peers(self) -> None:
        if self._peers is not None:
            self._peers.close()
        self._peers = None

    # In the connection's thread.

    def _healthz(self, _: Request) -> Response:
        health = self._health()
        return Response.json({"ok": health.polling_ok, "why": health.polling_why}, 200 if health.polling_ok else 503)

    def _readyz(self, _: Request) -> Response:
        health = self._health()
        return Response.json({"ok": health.ready, "why": health.ready_why}, 200 if health.ready else 503)

    def _metrics(self, _: Request) -> Response:
        return Response(kind=CONTENT_TYPE, body=self._context.metrics.render().encode())

    def _receive(self, request: Request) -> Response:
        peers = self._peers
        return peers.receive(request) if peers is not None else Response.text("This agent has no peers.", 404)

    def _route_failed(self, path: str, error: Exception) -> None:
        self._log.error("A request failed", action="listen.broken", path=path, reason=repr(error))
