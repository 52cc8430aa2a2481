"""`haproxy`: servers that are drained to prepare, and made ready again, over HAProxy's runtime API."""

import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from forenotice.agent import handlers
from forenotice.agent.handlers import Outcome, Work, facts, tables
from forenotice.agent.rules.policy import Phase
from forenotice.core import errors
from forenotice.programs import process

FORCED_MAINTENANCE = 0x01
FORCED_DRAIN = 0x08
"""Of srv_admin_state: what somebody asked for over the runtime API or in the configuration."""
NO_BACKEND = "Can't find backend"
"""How a reply begins when there is none of that name."""
REPLY_TIMEOUT = 5.0
LARGEST_REPLY = 4 * 1024 * 1024
LOOK = 0.25
"""Seconds between two counts of sessions, and between two tries to reach one that is still starting."""
_LONGEST_REASON = 200


class HaproxyError(errors.UnavailableError):
    """HAProxy did not do what it was told."""

    code = "haproxy"


class AwayError(HaproxyError):
    """HAProxy cannot be reached."""


class Haproxy:
    def __init__(self, config: tables.Haproxy) -> None:
        self._config = config

    def run(self, work: Work) -> Outcome:
        api = Api(self._config.socket, until=time.monotonic() + work.seconds_left, stop=work.stop)
        try:
            if work.phase is Phase.PREPARE:
                return self._drain(work, api)
            ours = handlers.read_memo(work.memo)
            return self._make_ready(self._config.servers if ours is None else ours, api)
        except (HaproxyError, handlers.StoppedError) as error:
            return Outcome(ok=False, said=error.message)

    def rehearse(self) -> Outcome:
        api = Api(self._config.socket, until=time.monotonic() + REPLY_TIMEOUT, stop=threading.Event())
        try:
            level = api.ask("show cli level").strip()
            states = api.states(self._config.servers)
        except HaproxyError as error:
            return Outcome(ok=False, said=error.message)
        if level != "admin":
            return Outcome(ok=False, said=f"{api.place} lets us be {level[:20]} only: give that socket `level admin`")
        return Outcome(ok=True, said=f"would drain {', '.join(states)} through {api.place}")

    def _drain(self, work: Work, api: "Api") -> Outcome:
        ours = handlers.read_memo(work.memo)
        if ours is None:
            states = api.states(self._config.servers)
            # What an administrator took out already is not ours to bring back.
            ours = tuple(name for name, state in states.items() if not state & (FORCED_DRAIN | FORCED_MAINTENANCE))
        work.remember(handlers.write_memo(ours))
        for server in ours:
            api.set_state(server, "drain")
        said = f"drained {', '.join(ours)}" if ours else "all servers were out already"
        if not self._config.wait:
            return Outcome(ok=True, said=said)
        while left := api.sessions(self._config.servers):
            if not api.pause():
                many = "1 session" if sum(left.values()) == 1 else f"{sum(left.values())} sessions"
                return Outcome(ok=False, said=f"{many} left on {', '.join(left)}")
        return Outcome(ok=True, said=f"{said}; no session is left")

    def _make_ready(self, servers: Sequence[str], api: "Api") -> Outcome:
        """Also of one that is still starting, as after a reboot of this VM."""
        while True:
            try:
                states = api.known_states(servers)
                break
            except AwayError:
                if not api.pause():
                    raise
        # Since then somebody may have decided otherwise.
        drained = [name for name, state in states.items() if state & FORCED_DRAIN and not state & FORCED_MAINTENANCE]
        for server in drained:
            api.set_state(server, "ready")
        said = f"made ready {', '.join(drained)}" if drained else "no server was drained"
        # What is no longer configured cannot be brought back, and is no reason to leave the others out.
        gone = [name for name in servers if name not in states]
        return Outcome(ok=True, said=f"{said}; {api.lacks(gone)}" if gone else said)


class Api:
    """One command, one connection, one reply; an error is a reply like any other."""

    def __init__(self, place: str, *, until: float, stop: threading.Event) -> None:
        self.place = facts.plain(place)
        self._place = place
        self._until = until
        self._stop = stop

    def ask(self, command: str) -> str:
        limit = min(self._until, time.monotonic() + REPLY_TIMEOUT)
        try:
            return handlers.within(
                lambda: self._exchange(command, limit), until=limit, stop=self._stop, interrupt=lambda: None
            )
        except OSError as error:
            raise AwayError(f"HAProxy at {self.place}: {process.of_error(error)}") from None

    def states(self, servers: Sequence[str]) -> Mapping[str, int]:
        """The administrative state of each."""
        return self._only(servers, self.known_states(servers))

    def known_states(self, servers: Sequence[str]) -> Mapping[str, int]:
        """Of those that there are."""
        found = {}
        for backend in _backends(servers):
            version, header, *rows = [*self.ask(f"show servers state {backend}").splitlines(), "", ""]
            if version.startswith(NO_BACKEND):
                continue
            if version != "1" or not header.startswith("# "):
                raise self._refusal(f"show servers state {backend}", version)
            for row in _rows(header.removeprefix("# ").split(), (line.split() for line in rows)):
                found[f"{row.get('be_name')}/{row.get('srv_name')}"] = _number(row, "srv_admin_state")
        return {name: found[name] for name in servers if name in found}

    def sessions(self, servers: Sequence[str]) -> Mapping[str, int]:
        """How many each still has; nothing of those that have none."""
        found = {}
        for backend in _backends(servers):
            header, *rows = [*self.ask(f"show stat {backend} 4 -1").splitlines(), ""]
            if not header.startswith("# "):
                raise self._refusal(f"show stat {backend}", header)
            for row in _rows(header.removeprefix("# ").split(","), (line.split(",") for line in rows)):
                found[f"{row.get('pxname')}/{row.get('svname')}"] = _number(row, "scur")
        return {name: count for name, count in self._only(servers, found).items() if count}

    def set_state(self, server: str, state: str) -> None:
        command = f"set server {server} state {state}"
        reply = self.ask(command).strip()
        if reply:
            raise self._refusal(command, reply)

    def pause(self) -> bool:
        """Wait a little; whether there is time to go on."""
        if time.monotonic() + LOOK >= self._until:
            return False
        if self._stop.wait(LOOK):
            raise handlers.StoppedError
        return True

    def lacks(self, servers: Sequence[str]) -> str:
        return f"HAProxy at {self.place} has no server {', '.join(servers)}"

    def _only(self, servers: Sequence[str], found: Mapping[str, int]) -> Mapping[str, int]:
        missing = [name for name in servers if name not in found]
        if missing:
            raise HaproxyError(self.lacks(missing))
        return {name: found[name] for name in servers}

    def _exchange(self, command: str, limit: float) -> str:
        reply = bytearray()
        with self._connect(_left(limit)) as connected:
            connected.sendall(f"{command}\n".encode())
            while True:
                connected.settimeout(_left(limit))
                piece = connected.recv(65536)
                if not piece:
                    return reply.decode(errors="replace")
                reply += piece
                if len(reply) > LARGEST_REPLY:
                    raise OSError("its reply has no end")

    def _connect(self, timeout: float) -> socket.socket:
        if "/" in self._place:
            from forenotice.agent import posix

            return posix.connect(self._place, timeout)
        host, _, port = self._place.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout)

    def _refusal(self, command: str, reply: str) -> HaproxyError:
        reason = facts.plain(reply)[:_LONGEST_REASON].strip() or "nothing"
        return HaproxyError(f"HAProxy answered `{command}` with: {reason}")


def _backends(servers: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(server.partition("/")[0] for server in servers))


def _rows(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterable[Mapping[str, str]]:
    return (dict(zip(header, line, strict=False)) for line in lines if len(line) > 1)


def _number(row: Mapping[str, str], column: str) -> int:
    text = row.get(column, "")
    if not text.isdecimal():
        raise HaproxyError(f"HAProxy answered without {column}")
    return int(text)


def _left(limit: float) -> float:
    left = limit - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
