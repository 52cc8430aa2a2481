"""`haproxy`: servers that are drained to prepare, and made ready again, over HAProxy's runtime API."""

import socket
import threading
from collections.abc import Mapping, Sequence

from forenotice.agent.handlers import HandlerError, StoppedError, Work, read_memo, tables, within, write_memo
from forenotice.agent.rules.policy import Phase
from forenotice.programs.process import plain, reason
from forenotice.runtime import Runtime

FORCED_MAINTENANCE, FORCED_DRAIN = 0x01, 0x08
"""Of srv_admin_state: what an administrator asked for over the runtime API or in the configuration."""
NO_BACKEND = "Can't find backend"
REPLY_TIMEOUT = 5.0
LARGEST_REPLY = 4 * 1024 * 1024
POLL = 0.25
"""Seconds between two counts of sessions, and between two attempts to reach a HAProxy that is still starting."""


class AwayError(HandlerError):
    """HAProxy cannot be reached."""


class Haproxy:
    def __init__(self, config: tables.Haproxy, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime

    def run(self, work: Work) -> str:
        api = Api(self._config.socket, self._runtime, seconds=work.seconds_left, stop=work.stop)
        ours = read_memo(work.memo)
        if work.phase is not Phase.PREPARE:
            return _make_ready(self._config.servers if ours is None else ours, api)
        if ours is None:
            states = api.states(self._config.servers)
            # A server that an administrator took out is not made ready again.
            ours = tuple(name for name, state in states.items() if not state & (FORCED_DRAIN | FORCED_MAINTENANCE))
        work.remember(write_memo(ours))
        for server in ours:
            api.set_state(server, "drain")
        message = f"drained {', '.join(ours)}" if ours else "all servers were out already"
        if not self._config.wait:
            return message
        while left := api.sessions(self._config.servers):
            if not api.pause():
                count = sum(left.values())
                sessions = "1 session" if count == 1 else f"{count} sessions"
                raise HandlerError(f"{sessions} left on {', '.join(left)}")
        return f"{message}; no session is left"

    def rehearse(self) -> str:
        api = Api(self._config.socket, self._runtime, seconds=REPLY_TIMEOUT, stop=threading.Event())
        level = api.send("show cli level").strip()
        states = api.states(self._config.servers)
        if level != "admin":
            raise HandlerError(f"{api.place} gives us the level {level[:20]} only: give that socket `level admin`")
        return f"would drain {', '.join(states)} through {api.place}"


def _make_ready(servers: Sequence[str], api: "Api") -> str:
    while True:
        try:
            states = api.known_states(servers)
            break
        except AwayError:
            # After a reboot of this VM it may still be starting.
            if not api.pause():
                raise
    # An administrator may have put one into maintenance since.
    drained = [name for name, state in states.items() if state & FORCED_DRAIN and not state & FORCED_MAINTENANCE]
    for server in drained:
        api.set_state(server, "ready")
    message = f"made ready {', '.join(drained)}" if drained else "no server was drained"
    # A server that is no longer configured does not keep the others out.
    gone = [name for name in servers if name not in states]
    return f"{message}; {api.lacks(gone)}" if gone else message


class Api:
    """One command, one connection, one reply; an error is a reply like any other."""

    def __init__(self, place: str, runtime: Runtime, *, seconds: float, stop: threading.Event) -> None:
        self.place = plain(place)
        self._place = place
        self._runtime = runtime
        self._until = runtime.monotonic() + seconds
        self._stop = stop

    def send(self, command: str) -> str:
        limit = min(self._until, self._runtime.monotonic() + REPLY_TIMEOUT)
        try:
            return within(lambda: self._exchange(command, limit), self._runtime, until=limit, stop=self._stop)
        except OSError as error:
            raise AwayError(f"HAProxy at {self.place}: {reason(error)}") from None

    def states(self, servers: Sequence[str]) -> Mapping[str, int]:
        return self._all_of(servers, self.known_states(servers))

    def known_states(self, servers: Sequence[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for backend in _backends(servers):
            command = f"show servers state {backend}"
            version, header, *rows = [*self.send(command).splitlines(), "", ""]
            if version.startswith(NO_BACKEND):
                continue
            if version != "1" or not header.startswith("# "):
                raise _refusal(command, version)
            table = [line.split() for line in (header.removeprefix("# "), *rows)]
            found |= _column(table, "be_name", "srv_name", "srv_admin_state")
        return {name: found[name] for name in servers if name in found}

    def sessions(self, servers: Sequence[str]) -> Mapping[str, int]:
        """Of those servers that still have some."""
        found: dict[str, int] = {}
        for backend in _backends(servers):
            header, *rows = [*self.send(f"show stat {backend} 4 -1").splitlines(), ""]
            if not header.startswith("# "):
                raise _refusal(f"show stat {backend}", header)
            table = [line.split(",") for line in (header.removeprefix("# "), *rows)]
            found |= _column(table, "pxname", "svname", "scur")
        return {name: count for name, count in self._all_of(servers, found).items() if count}

    def set_state(self, server: str, state: str) -> None:
        command = f"set server {server} state {state}"
        if reply := self.send(command).strip():
            raise _refusal(command, reply)

    def pause(self) -> bool:
        """Wait a little; whether there is time to go on."""
        if self._runtime.monotonic() + POLL >= self._until:
            return False
        if self._stop.wait(POLL):
            raise StoppedError
        return True

    def lacks(self, servers: Sequence[str]) -> str:
        return f"HAProxy at {self.place} has no server {', '.join(servers)}"

    def _all_of(self, servers: Sequence[str], found: Mapping[str, int]) -> Mapping[str, int]:
        if missing := [name for name in servers if name not in found]:
            raise HandlerError(self.lacks(missing))
        return {name: found[name] for name in servers}

    def _exchange(self, command: str, limit: float) -> str:
        reply = bytearray()
        with self._connect(self._left(limit)) as connection:
            connection.sendall(f"{command}\n".encode())
            while True:
                connection.settimeout(self._left(limit))
                piece = connection.recv(65536)
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

    def _left(self, limit: float) -> float:
        left = limit - self._runtime.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


def _refusal(command: str, reply: str) -> HandlerError:
    return HandlerError(f"HAProxy answered `{command}` with: {plain(reply)[:200].strip() or 'nothing'}")


def _backends(servers: Sequence[str]) -> Sequence[str]:
    return list(dict.fromkeys(server.partition("/")[0] for server in servers))


def _column(table: Sequence[Sequence[str]], backend: str, server: str, column: str) -> dict[str, int]:
    """Its numbers, by BACKEND/SERVER; the first row has the names of the columns."""
    found = {}
    for line in table[1:]:
        if len(line) > 1:
            row = dict(zip(table[0], line, strict=False))
            text = row.get(column, "")
            if not text.isdecimal():
                raise HandlerError(f"HAProxy answered without {column}")
            found[f"{row.get(backend)}/{row.get(server)}"] = int(text)
    return found
