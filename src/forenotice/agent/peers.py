"""Readiness exchanged between the agents of VMs that one event names: signed, and told until it is acknowledged.

Only for agents that have peers: what signs costs more memory than a lone agent needs.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from forenotice import __version__
from forenotice.agent import config
from forenotice.agent.listener import Reply, Request
from forenotice.agent.log import Log
from forenotice.agent.metrics import Exchange
from forenotice.agent.rules.policy import NOT_TOLD
from forenotice.agent.signature import HEADER, WINDOW, Addresses, Message, Readiness, Signer
from forenotice.client.events import same_name
from forenotice.client.http import Connection, ProtocolError, Response
from forenotice.core import backoff

LARGEST_ANSWER = 4 * 1024
MOST_HEARD = 10_000
"""Events and names within the window."""
ACKNOWLEDGED = Reply.json({"heard": True})


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


class Link:
    """Sends messages to peers, and says what came of each."""

    def __init__(self, config: config.Peers, me: str, listen: str, timeout: float) -> None:
        """ConfigError: a secret is not usable."""
        self.seal = Signer.read(config)
        self.addresses = Addresses(config)
        self._source = self.addresses.source(me, listen)
        self._timeout = timeout

    def connection(self, name: str) -> Connection:
        """From the address by which others know this VM, if it has several."""
        host, port = self.addresses.of(name)
        # From a loopback address nothing leaves the machine.
        usable = not _is_loopback(self._source) or _is_loopback(host)
        return Connection(host, port, source=self._source if usable else "")

    def say(self, message: Message, line: Connection) -> str:
        """Why the receiver has not acknowledged; empty when it has."""
        body = msgspec.json.encode(message)
        mark = self.seal.sign(message, body)
        headers = {
            HEADER: mark,
            "Content-Type": "application/json",
            "User-Agent": f"forenotice/{__version__}",
            "Connection": "close",
        }
        try:
            answer = line.request(
                "POST", config.READY_PATH, headers, body, timeout=self._timeout, largest=LARGEST_ANSWER
            )
        except TimeoutError as error:
            said = error.strerror or f"no answer within {self._timeout:g} s"
            return f"slow: {said}" if line.reached else f"unreachable: {said}"
        except (OSError, ProtocolError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return f"no answer: {said}" if line.reached else f"unreachable: {said}"
        return self._verdict(message, answer, mark)

    def _verdict(self, message: Message, answer: Response, mark: str) -> str:
        place = "{}:{}".format(*self.addresses.of(message.receiver))
        if self.seal.reply_holds(answer, message, mark):
            return "" if answer.status == ACKNOWLEDGED.status else f"refused: {_error(answer)}"
        if answer.status == 401:
            return f"wrong secret: {place} has another one than this VM, or another version of the agent"
        if answer.status == ACKNOWLEDGED.status:
            return f"wrong signature: whoever answers at {place} does not prove to be {message.receiver}"
        return f"no peer: {place} answered {answer.status}; is that an agent with [peers]?"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _error(answer: Response) -> str:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, str])["error"]
    except (msgspec.MsgspecError, KeyError):
        return str(answer.status)


def attempt(config: config.Peers, me: str, name: str, now: datetime, listen: str = "") -> str:
    """Try whether a peer hears this VM; why not, or empty. Changes nothing there. ConfigError, as for `Link`."""
    link = Link(config, me, listen, USUAL.timeout)
    with contextlib.closing(link.connection(name)) as line:
        return link.say(Message(sender=me, receiver=name, said_at=now, readiness=None), line)


@dataclass(slots=True, eq=False)
class _Errand:
    """One peer, to be told of one event by one of the VMs that this agent acts for."""

    sender: str
    name: str
    said: Readiness
    due: float
    failures: int = 0
    away: bool = False
    why: str = NOT_TOLD
    """Empty once it has acknowledged."""


Heard = Callable[[str, str, datetime | None], None]
"""Told event id, the name as in Resources, and since when that VM is ready, None when it is not; from any thread, and
more than once."""
Said = Mapping[str, tuple[Sequence[str], datetime | None]]
"""By event: its Resources, and since when ours among them are ready, None when they are not."""


class Peers:
    def __init__(
        self,
        config: config.Peers,
        names: Sequence[str],
        heard: Heard,
        *,
        now: Callable[[], datetime],
        log: Log,
        listen: str = "",
        counted: Callable[[Exchange], None] = lambda _: None,
        order: Order | None = None,
        pace: Pace = USUAL,
    ) -> None:
        """`names` are the VMs that this agent acts for, `order` is known from before. ConfigError: a secret is not
        usable."""
        self._link = Link(config, names[0], listen, pace.timeout)
        self._names = names
        self._heard = heard
        self._now = now
        self._log = log
        self._counted = counted
        self._order = order or Order()
        self._pace = pace
        self._hearing = threading.Lock()
        self._changed = threading.Condition()
        self._errands: dict[str, dict[tuple[str, str], _Errand]] = {}
        """By event, then by sender and peer."""
        self._refusals: dict[str, str] = {}
        """Why a peer was last not believed, by its lower-case name."""
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

    def _errands_for(
        self, event_id: str, resources: Sequence[str], ready_at: datetime | None
    ) -> dict[tuple[str, str], _Errand]:
        mine = [name for name in resources if self._is_mine(name)]
        said = Readiness(event_id=event_id, resources=tuple(resources), ready_at=ready_at)
        known = self._errands.get(event_id, {})
        errands = {}
        for key in ((sender, name) for sender in mine for name in resources if name not in mine):
            old = known.get(key)
            if old is None or old.said != said:
                old = _Errand(*key, said, time.monotonic(), why=(old.why if old else "") or NOT_TOLD)
            errands[key] = old
        return errands

    def untold(self, event_id: str) -> Mapping[str, str]:
        """Who has not acknowledged, or cannot tell this agent anything, and why."""
        with self._changed:
            errands = self._errands.get(event_id.upper(), {}).values()
            found = {errand.name: errand.why for errand in errands if errand.why}
            for name in {errand.name for errand in errands}:
                refused = self._refusals.get(name.lower())
                if refused and found.get(name, NOT_TOLD) == NOT_TOLD:
                    found[name] = f"refused here: {refused}"
            return found

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
        try:
            message = msgspec.json.decode(request.body, type=Message)
            holds = self._link.seal.holds(request, message)
        except (msgspec.DecodeError, ValueError):
            holds = False
        if not holds:
            self._refused("its signature does not hold: another secret, or another version", request, of="")
            return Reply.json({"error": "not for you"}, 401)
        flaw = self._flaw(message, request.source)
        if flaw:
            self._refused(flaw, request, of=message.sender)
            if len(self._refusals) < MOST_HEARD:
                self._refusals[message.sender.lower()] = flaw
            return self._link.seal.sign_reply(Reply.json({"error": flaw}, 403), message, request)
        if message.readiness is not None:
            with self._hearing:
                self._pass_on(message.sender, message.readiness, message.said_at)
        self._refusals.pop(message.sender.lower(), None)
        self._counted(Exchange.HEARD)
        self._log.over("A peer is heard again", action="peer.refused", of=message.sender, peer=message.sender)
        return self._link.seal.sign_reply(ACKNOWLEDGED, message, request)

    def _refused(self, reason: str, request: Request, *, of: str) -> None:
        self._counted(Exchange.REFUSED)
        named = {"peer": of} if of else {}
        self._log.trouble(
            "A message was refused", action="peer.refused", reason=reason, of=of, source=request.source, **named
        )

    def _flaw(self, message: Message, source: str) -> str:
        """Why a message is not believed although its sender has the secret."""
        ahead = (message.said_at - self._now()).total_seconds()
        if abs(ahead) > WINDOW.total_seconds():
            return f"our clocks differ by {abs(ahead):.0f} s, and may by {WINDOW.total_seconds():.0f}"
        if not self._is_mine(message.receiver):
            return f"this agent acts for {', '.join(self._names)}, and not for {message.receiver}"
        if self._is_mine(message.sender):
            return f"this agent itself acts for {message.sender}"
        said = message.readiness
        if said is not None and not {message.sender, message.receiver} <= set(said.resources):
            return "an event is only about what its Resources name"
        return self._link.addresses.flaw(message.sender, source)

    def _is_mine(self, name: str) -> bool:
        return any(same_name(name, own) for own in self._names)

    def _pass_on(self, name: str, said: Readiness, said_at: datetime) -> None:
        event_id, now = said.event_id.upper(), self._now()
        # Nobody is ready in the future; its clock only differs from ours.
        ready_at = min(said.ready_at.astimezone(UTC), now) if said.ready_at else None
        if self._order.is_latest(event_id, name, said_at, now):
            self._heard(event_id, name, ready_at)
            if ready_at is None:
                self._remind(event_id, name)

    def _remind(self, event_id: str, name: str) -> None:
        """Who begins anew may have forgotten that we are ready. That we are not, it need not know: it would only remind
        us of the same."""
        with self._changed:
            for (_, receiver), errand in self._errands.get(event_id, {}).items():
                if receiver == name and errand.said.ready_at:
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
        self._settle(errand, self._tell(errand))

    def _tell(self, errand: _Errand) -> str:
        """Why it has not acknowledged."""
        line = self._link.connection(errand.name)
        with self._changed:
            if self._closed:
                return "this agent is stopping"
            if self._errands.get(errand.said.event_id, {}).get((errand.sender, errand.name)) is not errand:
                return "something else is to be said"
            self._lines.add(line)
            # While nobody can change what is to be said: so that what is said next is later.
            said_at = self._order.stamp(self._now())
        message = Message(sender=errand.sender, receiver=errand.name, said_at=said_at, readiness=errand.said)
        try:
            return self._link.say(message, line)
        finally:
            with self._changed:
                self._lines.discard(line)
            line.close()

    def _settle(self, errand: _Errand, why: str) -> None:
        self._counted(Exchange.UNTOLD if why else Exchange.TOLD)
        with self._changed:
            errand.away = False
            self._away -= 1
            errand.why = why
            errand.failures = errand.failures + 1 if why else 0
            pause = backoff.pause(errand.failures, self._pace.first, self._pace.longest)
            errand.due = time.monotonic() + (pause if why else self._pace.again)
            wanted = self._errands.get(errand.said.event_id, {}).get((errand.sender, errand.name)) is errand
            self._changed.notify_all()
        if not why:
            self._log.over("A peer answers again", action="peer.untold", of=errand.name, peer=errand.name)
        elif wanted:
            self._log.trouble(
                "A peer does not answer", action="peer.untold", reason=why, of=errand.name, peer=errand.name
            )
