"""Readiness exchanged between the agents of VMs that one event names: signed, and told until it is acknowledged.

Only for agents that have peers: what signs costs more memory than a lone agent needs.
"""

import contextlib
import hmac
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from forenotice import __version__, secretfiles
from forenotice.agent.config import checks, file
from forenotice.agent.listener import Reply, Request
from forenotice.agent.metrics import Exchange
from forenotice.client.connection import Connection, ProtocolError
from forenotice.client.events import same_name
from forenotice.core import errors

HEADER = "X-Forenotice-Signature"
WINDOW = timedelta(seconds=60)
"""How far the clocks of two VMs, and a message's way, may be apart."""
SHORTEST_SECRET = 16
LARGEST_ANSWER = 4 * 1024
MOST_HEARD = 10_000
"""Events and names within the window."""
ACKNOWLEDGED = Reply.json({"heard": True})
_SIGNATURE = re.compile(r"t=([0-9]{1,11}),v1=([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """All in seconds."""

    first: float = 1.0
    """Between a failure and the next attempt; each time twice as long."""
    longest: float = 10.0
    again: float = 30.0
    """Who has acknowledged is told again: it may have lost its state since."""
    timeout: float = 5.0
    at_a_time: int = 8


USUAL = Pace()


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    event_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    names: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """The VMs that are ready, or are not."""
    resources: tuple[str, ...]
    ready_at: Moment | None
    """None: they are not, whatever was said before."""


class Message(Readiness, frozen=True, kw_only=True):
    said_at: Moment
    """By the sender's clock: what it says later counts, in whichever order it arrives."""


class Order:
    """Of what is said and of what is heard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said_at = datetime.min.replace(tzinfo=UTC)
        self._heard: dict[tuple[str, str], datetime] = {}

    def stamp(self, now: datetime) -> datetime:
        """Later than the one before, also when the clock was set back a little."""
        with self._lock:
            if now <= self._said_at < now + WINDOW / 2:
                now = self._said_at + timedelta(microseconds=1)
            self._said_at = now
            return now

    def is_latest(self, event_id: str, name: str, said_at: datetime, now: datetime) -> bool:
        """Whether nothing later was heard. What is older than the window need not be known: it is not heard at all."""
        with self._lock:
            self._heard = {key: at for key, at in self._heard.items() if at >= now - WINDOW}
            key = (event_id, name.lower())
            latest = self._heard.get(key, said_at)
            if key in self._heard or len(self._heard) < MOST_HEARD:
                self._heard[key] = max(latest, said_at)
            return said_at >= latest


class Seal:
    """Knows whether a message comes from somebody who has the secret, and is of now."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def read(cls, path: str) -> "Seal":
        try:
            secret = secretfiles.read(Path(path), "the peers' secret").strip()
        except errors.RefusedError as error:
            raise file.ConfigError(error.message) from None
        if len(secret) < SHORTEST_SECRET:
            raise file.ConfigError(f"the peers' secret {path} is too short: give {SHORTEST_SECRET} bytes")
        return cls(secret)

    def sign(self, method: str, path: str, body: bytes, now: datetime) -> str:
        stamp = str(int(now.timestamp()))
        return f"t={stamp},v1={self._mark(method, path, stamp, body)}"

    def holds(self, signature: str, method: str, path: str, body: bytes, now: datetime) -> bool:
        found = _SIGNATURE.fullmatch(signature)
        if not found or not hmac.compare_digest(found[2], self._mark(method, path, found[1], body)):
            return False
        return abs(now.timestamp() - int(found[1])) <= WINDOW.total_seconds()

    def _mark(self, method: str, path: str, stamp: str, body: bytes) -> str:
        signed = b"\n".join((method.encode(), path.encode(), stamp.encode(), body))
        return hmac.digest(self._secret, signed, "sha256").hex()


@dataclass(slots=True, eq=False)
class _Errand:
    """One peer, to be told of one event."""

    name: str
    said: Readiness
    due: float
    failures: int = 0
    away: bool = False
    why: str = "not told yet"
    """Empty once it has acknowledged."""


Heard = Callable[[str, str, datetime | None], None]
"""Told event id, the name as in Resources, and since when that VM is ready, None when it is not; from any thread, and
more than once."""
Said = Mapping[str, tuple[Sequence[str], datetime | None]]
"""By event: its Resources, and since when ours among them are ready, None when they are not."""


class Peers:
    def __init__(
        self,
        config: file.Peers,
        names: Sequence[str],
        heard: Heard,
        *,
        now: Callable[[], datetime],
        counted: Callable[[Exchange], None] = lambda _: None,
        order: Order | None = None,
        pace: Pace = USUAL,
    ) -> None:
        """`names` are the VMs that this agent acts for, `order` is known from before. ConfigError: the secret is not
        usable."""
        self._seal = Seal.read(config.secret_file)
        self._places = {name: checks.peer(address) for name, address in config.addresses.items()}
        self._port = config.port
        self._names = names
        self._heard = heard
        self._now = now
        self._counted = counted
        self._order = order or Order()
        self._pace = pace
        self._hearing = threading.Lock()
        self._changed = threading.Condition()
        self._errands: dict[str, dict[str, _Errand]] = {}
        """By event, then by peer."""
        self._postman: threading.Thread | None = None
        self._away = 0
        self._lines: set[Connection] = set()
        self._closed = False

    def tell(self, said: Said) -> None:
        """Tell all others that an event names, as long as it is said. Saying the same again changes nothing."""
        with self._changed:
            if self._closed:
                return
            known = self._errands
            told = {event.upper(): self._errands_for(event.upper(), *what) for event, what in said.items()}
            self._errands = {event: errands for event, errands in told.items() if errands}
            if self._errands:
                self._send_out()
            if self._errands != known:
                self._changed.notify_all()

    def _errands_for(self, event_id: str, resources: Sequence[str], ready_at: datetime | None) -> dict[str, _Errand]:
        mine = tuple(name for name in resources if any(same_name(name, own) for own in self._names))
        said = Readiness(event_id=event_id, names=mine, resources=tuple(resources), ready_at=ready_at)
        known = self._errands.get(event_id, {})
        errands = {}
        for name in (name for name in resources if mine and name not in mine):
            old = known.get(name)
            errands[name] = old if old and old.said == said else _Errand(name, said, time.monotonic())
        return errands

    def untold(self, event_id: str) -> Mapping[str, str]:
        """Who has not acknowledged, and why."""
        with self._changed:
            errands = self._errands.get(event_id.upper(), {})
            return {name: errand.why for name, errand in errands.items() if errand.why}

    def close(self) -> None:
        """Tell nobody anything more."""
        with self._changed:
            self._closed = True
            self._errands.clear()
            lines = list(self._lines)
            self._changed.notify_all()
        for line in lines:
            line.close()

    def hear(self, request: Request) -> Reply:
        """What a peer tells; in any thread."""
        signature = request.headers.get(HEADER.lower(), "")
        if not self._seal.holds(signature, request.method, request.path, request.body, self._now()):
            self._counted(Exchange.REFUSED)
            return Reply.json({"error": "not for you"}, 401)
        try:
            message = msgspec.json.decode(request.body, type=Message)
        except (msgspec.DecodeError, ValueError):
            self._counted(Exchange.REFUSED)
            return Reply.json({"error": "this is no message of a peer"}, 400)
        if not set(message.names) <= set(message.resources):
            self._counted(Exchange.REFUSED)
            return Reply.json({"error": "an event is only about what its Resources name"}, 400)
        if abs(message.said_at - self._now()) > WINDOW:
            self._counted(Exchange.REFUSED)
            return Reply.json({"error": "this was said at another time"}, 400)
        with self._hearing:
            self._pass_on(message)
        self._counted(Exchange.HEARD)
        return ACKNOWLEDGED

    def _pass_on(self, message: Message) -> None:
        event_id, now = message.event_id.upper(), self._now()
        # Nobody is ready in the future; its clock only differs from ours.
        ready_at = min(message.ready_at.astimezone(UTC), now) if message.ready_at else None
        for name in message.names:
            if self._order.is_latest(event_id, name, message.said_at, now):
                self._heard(event_id, name, ready_at)
                if ready_at is None:
                    self._remind(event_id, name)

    def _remind(self, event_id: str, name: str) -> None:
        """Who begins anew may have forgotten that we are ready. That we are not, it need not know: it would only remind
        us of the same."""
        with self._changed:
            errand = self._errands.get(event_id, {}).get(name)
            if errand and errand.said.ready_at:
                errand.due = time.monotonic()
                self._changed.notify_all()

    def _send_out(self) -> None:
        if self._postman is None:
            postman = threading.Thread(target=self._dispatch, name="peers", daemon=True)
            with contextlib.suppress(RuntimeError):  # No more threads: the next announcement tries again.
                postman.start()
                self._postman = postman

    def _dispatch(self) -> None:
        """Send somebody for each errand that is due, a few at a time."""
        while True:
            with self._changed:
                errand = self._next()
                while errand is None or errand.due > time.monotonic():
                    if not self._errands:
                        self._postman = None
                        return
                    self._changed.wait(None if errand is None else errand.due - time.monotonic())
                    errand = self._next()
                errand.away = True
                self._away += 1
            try:
                threading.Thread(target=self._run, args=(errand,), name="peers-errand", daemon=True).start()
            except RuntimeError as error:
                self._settle(errand, str(error))

    def _next(self) -> _Errand | None:
        if self._away >= self._pace.at_a_time:
            return None
        at_home = [errand for event in self._errands.values() for errand in event.values() if not errand.away]
        return min(at_home, key=lambda errand: errand.due, default=None)

    def _run(self, errand: _Errand) -> None:
        try:
            why = self._tell(errand)
        except (OSError, ProtocolError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self._settle(errand, why)

    def _tell(self, errand: _Errand) -> str:
        """Why it has not acknowledged."""
        host, port = self._place(errand.name)
        line = Connection(host, port)
        with self._changed:
            if self._closed:
                return "this agent is stopping"
            if self._errands.get(errand.said.event_id, {}).get(errand.name) is not errand:
                return "something else is to be said"
            self._lines.add(line)
            # While nobody can change what is to be said: so that what is said next is later.
            said_at = self._order.stamp(self._now())
        body = msgspec.json.encode(Message(said_at=said_at, **msgspec.structs.asdict(errand.said)))
        headers = {
            HEADER: self._seal.sign("POST", file.READY_PATH, body, self._now()),
            "Content-Type": "application/json",
            "User-Agent": f"forenotice/{__version__}",
            "Connection": "close",
        }
        try:
            answer = line.ask(
                "POST", file.READY_PATH, headers, body, timeout=self._pace.timeout, largest=LARGEST_ANSWER
            )
        finally:
            with self._changed:
                self._lines.discard(line)
            line.close()
        if answer.status == 401:
            return f"{host}:{port} has another secret, or our clocks differ by more than {WINDOW.seconds} s"
        if (answer.status, answer.body) != (ACKNOWLEDGED.status, ACKNOWLEDGED.body):
            return f"{host}:{port} answered {answer.status}: is that an agent with peers?"
        return ""

    def _settle(self, errand: _Errand, why: str) -> None:
        self._counted(Exchange.UNTOLD if why else Exchange.TOLD)
        with self._changed:
            errand.away = False
            self._away -= 1
            errand.why = why
            errand.failures = errand.failures + 1 if why else 0
            pause = min(self._pace.longest, self._pace.first * 2 ** min(errand.failures - 1, 16))
            errand.due = time.monotonic() + (pause if why else self._pace.again)
            self._changed.notify_all()

    def _place(self, name: str) -> tuple[str, int]:
        for known, place in self._places.items():
            if same_name(known, name):
                return place
        return name.removeprefix("_"), self._port
