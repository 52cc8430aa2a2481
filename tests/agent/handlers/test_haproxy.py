"""Against the real HAProxy, started here on loopback."""

import contextlib
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.running import HOST, until
from tests.agent.handlers.work import done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import Outcome, tables
from forenotice.agent.handlers.haproxy import Haproxy
from forenotice.agent.rules.policy import Phase

CONFIG = """
global
    stats socket {directory}/admin mode 600 level admin
    stats socket {directory}/user mode 600 level user
    stats socket ipv4@{host}:{port} level admin
defaults
    mode tcp
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend front
    bind unix@{directory}/front
    default_backend web
backend web
    server one 127.0.0.1:{backend}
    server two 127.0.0.1:{backend}
    server out 127.0.0.1:{backend} disabled
backend api
    server one 127.0.0.1:{backend}
"""


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while said := self.request.recv(100):
            self.request.sendall(said)


class Proxy:
    def __init__(self, directory: Path, backend: int) -> None:
        self.directory = directory
        self.port = free_port()
        self._config = directory / "haproxy.cfg"
        self._config.write_text(CONFIG.format(directory=directory, host=HOST, port=self.port, backend=backend))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(["/usr/sbin/haproxy", "-db", "-q", "-f", self._config])
        until(self._is_up, 10, "HAProxy")

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait(60)

    def ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(self.directory / "admin"))
            connected.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: connected.recv(65536), b"")).decode()

    def states(self) -> dict[str, str]:
        rows = [line.split(",") for line in self.ask("show stat -1 4 -1").splitlines()]
        return {f"{row[0]}/{row[1]}": row[17] for row in rows[1:] if len(row) > 17}

    @contextlib.contextmanager
    def session(self) -> Iterator[socket.socket]:
        """One that has reached a server."""
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(5)
            connected.connect(str(self.directory / "front"))
            connected.sendall(b"hello")
            assert connected.recv(100) == b"hello"
            yield connected

    def handler(self, *servers: str, wait: bool = True, place: str = "") -> Haproxy:
        config = tables.Haproxy(
            name="lb", socket=place or str(self.directory / "admin"), servers=servers or ("web/one",), wait=wait
        )
        return Haproxy(config, RUNTIME)

    def _is_up(self) -> bool:
        try:
            return bool(self.ask("show info"))
        except OSError:
            return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@pytest.fixture
def down(tmp_path: Path) -> Iterator[Proxy]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as backend:
        backend.daemon_threads = True
        threading.Thread(target=backend.serve_forever, args=(0.01,), daemon=True).start()
        proxy = Proxy(tmp_path, backend.server_address[1])
        yield proxy
        proxy.stop()
        backend.shutdown()


@pytest.fixture
def proxy(down: Proxy) -> Proxy:
    down.start()
    return down


def test_servers_are_drained_and_made_ready_again(proxy: Proxy) -> None:
    memos: list[tuple[str, str]] = []
    drain = proxy.handler("web/one", "api/one", "web/two")
    outcome = drain.run(work(remember=lambda memo: memos.append((memo, proxy.states()["web/one"]))))
    assert outcome == done("drained web/one, api/one, web/two; no session is left")
    assert memos == [('["web/one","api/one","web/two"]', "no check")]
    assert proxy.states() == {"web/one": "DRAIN", "web/two": "DRAIN", "web/out": "MAINT", "api/one": "DRAIN"}

    outcome = drain.run(work(phase=Phase.RECOVER, memo=memos[0][0]))
    assert outcome == done("made ready web/one, api/one, web/two")
    assert proxy.states() == {"web/one": "no check", "web/two": "no check", "web/out": "MAINT", "api/one": "no check"}


def test_draining_takes_until_the_last_session_has_ended(proxy: Proxy) -> None:
    ended: list[Outcome] = []
    with proxy.session() as session:
        drain = proxy.handler("web/one", "web/two")
        thread = threading.Thread(target=lambda: ended.append(drain.run(work())))
        thread.start()
        until(lambda: proxy.states()["web/two"] == "DRAIN")
        session.sendall(b"still here")
        assert session.recv(100) == b"still here"
        assert thread.is_alive()
    thread.join(60)
    assert ended == [done("drained web/one, web/two; no session is left")]


def test_a_session_that_outlasts_the_time_is_a_failure(proxy: Proxy) -> None:
    with proxy.session(), proxy.session(), proxy.session():
        begun = time.monotonic()
        outcome = proxy.handler("web/one", "web/two").run(work(seconds_left=1.0))
        assert time.monotonic() - begun < 30
        assert outcome == failed("3 sessions left on web/one, web/two")


def test_it_stops_waiting_when_the_agent_asks(proxy: Proxy) -> None:
    with proxy.session():
        given = work(seconds_left=60)
        threading.Timer(0.2, given.stop.set).start()
        begun = time.monotonic()
        outcome = proxy.handler("web/one", "web/two").run(given)
        assert time.monotonic() - begun < 30
        assert outcome == failed("stopped, as the agent asked")


def test_it_need_not_wait(proxy: Proxy) -> None:
    with proxy.session():
        outcome = proxy.handler("web/one", "web/two", wait=False).run(work())
        assert outcome == done("drained web/one, web/two")


def test_what_an_administrator_took_out_is_not_brought_back(proxy: Proxy) -> None:
    proxy.ask("set server web/two state drain")
    memos: list[str] = []
    servers = ("web/one", "web/two", "web/out")
    assert proxy.handler(*servers).run(work(remember=memos.append)).ok
    assert memos == ['["web/one"]']
    assert proxy.handler(*servers).run(work(phase=Phase.UNDO, memo=memos[0])).ok
    assert proxy.states() == {"web/one": "no check", "web/two": "DRAIN", "web/out": "MAINT", "api/one": "no check"}


def test_where_all_were_out_nothing_is_done(proxy: Proxy) -> None:
    proxy.ask("set server web/two state drain")
    memos: list[str] = []
    outcome = proxy.handler("web/two", "web/out").run(work(remember=memos.append))
    assert outcome == done("all servers were out already; no session is left")
    outcome = proxy.handler("web/two", "web/out").run(work(phase=Phase.RECOVER, memo=memos[0]))
    assert outcome == done("no server was drained")
    assert proxy.states()["web/two"] == "DRAIN"


def test_what_an_administrator_decided_meanwhile_stays(proxy: Proxy) -> None:
    assert proxy.handler("web/one", "web/two").run(work()).ok
    proxy.ask("set server web/two state maint")
    outcome = proxy.handler("web/one", "web/two").run(work(phase=Phase.RECOVER, memo='["web/one","web/two"]'))
    assert outcome == done("made ready web/one")
    assert proxy.states()["web/two"] == "MAINT"


@pytest.mark.parametrize("gone", ["web/gone", "gone/one"])
def test_a_server_that_is_no_longer_configured_does_not_keep_the_others_out(proxy: Proxy, gone: str) -> None:
    assert proxy.handler("web/one", "api/one").run(work()).ok
    outcome = proxy.handler("web/one", gone, "api/one").run(
        work(phase=Phase.RECOVER, memo=f'["web/one","{gone}","api/one"]')
    )
    admin = proxy.directory / "admin"
    assert outcome == done(f"made ready web/one, api/one; HAProxy at {admin} has no server {gone}")
    assert proxy.states()["web/one"] == proxy.states()["api/one"] == "no check"


def test_without_a_memo_all_drained_ones_are_made_ready(proxy: Proxy) -> None:
    proxy.ask("set server web/two state drain")
    outcome = proxy.handler("web/one", "web/two", "web/out").run(work(phase=Phase.RECOVER))
    assert outcome == done("made ready web/two")
    assert proxy.states()["web/out"] == "MAINT"


def test_a_second_attempt_keeps_what_the_first_found(proxy: Proxy) -> None:
    proxy.ask("set server web/one state drain")
    memos: list[str] = []
    assert proxy.handler("web/one", "web/two").run(work(attempt=2, memo='["web/one"]', remember=memos.append)).ok
    assert memos == ['["web/one"]']
    assert proxy.states()["web/two"] == "no check"


def test_nothing_is_drained_that_cannot_be_remembered(proxy: Proxy) -> None:
    def fail(_: str) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        proxy.handler().run(work(remember=fail))
    assert proxy.states()["web/one"] == "no check"


def test_it_speaks_over_tcp_too(proxy: Proxy) -> None:
    place = f"{HOST}:{proxy.port}"
    assert proxy.handler(place=place).run(work()).ok
    assert proxy.states()["web/one"] == "DRAIN"
    assert proxy.handler(place=place).rehearse() == done(f"would drain web/one through {place}")


def test_errors_are_replies_and_are_told(proxy: Proxy) -> None:
    admin, user = proxy.directory / "admin", proxy.directory / "user"
    assert proxy.handler("web/nope").run(work()) == failed(f"HAProxy at {admin} has no server web/nope")
    assert proxy.handler("nope/one").run(work()) == failed(f"HAProxy at {admin} has no server nope/one")
    assert proxy.handler(place=str(user)).run(work()) == failed(
        "HAProxy answered `set server web/one state drain` with: Permission denied"
    )


def test_a_rehearsal_looks_and_changes_nothing(proxy: Proxy) -> None:
    admin, user = proxy.directory / "admin", proxy.directory / "user"
    assert proxy.handler().rehearse() == done(f"would drain web/one through {admin}")
    assert proxy.handler("web/nope").rehearse() == failed(f"HAProxy at {admin} has no server web/nope")
    assert proxy.handler(place=str(user)).rehearse() == failed(
        f"{user} gives us the level user only: give that socket `level admin`"
    )
    assert proxy.states()["web/one"] == "no check"


def test_one_that_is_away_is_told(down: Proxy) -> None:
    admin = down.directory / "admin"
    away = failed(f"HAProxy at {admin}: no such file or directory")
    assert down.handler().run(work()) == away
    assert down.handler().rehearse() == away
    assert down.handler().run(work(phase=Phase.RECOVER, seconds_left=0.4)) == away
    assert down.handler(place=f"{HOST}:{down.port}").run(work()) == failed(
        f"HAProxy at {HOST}:{down.port}: connection refused"
    )


def test_recovering_waits_for_one_that_is_still_starting(down: Proxy) -> None:
    ended: list[Outcome] = []
    thread = threading.Thread(target=lambda: ended.append(down.handler().run(work(phase=Phase.RECOVER))))
    thread.start()
    down.start()
    thread.join(60)
    assert ended == [done("no server was drained")]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"", "HAProxy answered `show servers state web` with: nothing"),
        (b"1\n# be_name srv_name\nweb one\n", "HAProxy answered without srv_admin_state"),
        (b"\x1b[2J" + b"x" * 1000, f"HAProxy answered `show servers state web` with: [2J{'x' * 196}"),
        (b"1\n" * 3_000_000, "HAProxy at {}: its reply has no end"),
        (None, "HAProxy at {}: timed out"),
        (b"no numbers", "HAProxy answered `show stat web` with: no numbers"),
    ],
)
def test_whatever_else_listens_there_does_no_harm(reply: bytes | None, said: str) -> None:
    class Stranger(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked = self.request.recv(100)
            if reply is None:
                self.request.recv(1)
            known = b"1\n# be_name srv_name srv_admin_state\nweb one 8\n" if reply == b"no numbers" else reply
            with contextlib.suppress(OSError):
                self.request.sendall((known if b"state" in asked else reply) or b"")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stranger) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        drain = Haproxy(tables.Haproxy(name="lb", socket=place, servers=("web/one",)), RUNTIME)
        outcome = drain.run(work(seconds_left=0.3 if reply is None else 5))
        assert outcome == failed(said.format(place))
        server.shutdown()
