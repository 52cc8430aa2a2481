"""Against the real HAProxy, started here on loopback."""

import contextlib
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.acceptance.running import HOST, until
from tests.agent.handlers.work import UNREMEMBERED, Tried, beside, done, failed, full
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
READY = {"web/one": "no check", "web/two": "no check", "web/out": "MAINT", "api/one": "no check"}


@contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while received := self.request.recv(100):
            self.request.sendall(received)


class Proxy:
    def __init__(self, directory: Path, backend: int) -> None:
        self.directory = directory
        self.admin, self.user = directory / "admin", directory / "user"
        with socket.create_server((HOST, 0)) as probe:
            self.port = probe.getsockname()[1]
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
            connected.connect(str(self.admin))
            connected.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: connected.recv(65536), b"")).decode()

    def states(self) -> dict[str, str]:
        rows = [line.split(",") for line in self.ask("show stat -1 4 -1").splitlines()]
        return {f"{row[0]}/{row[1]}": row[17] for row in rows[1:] if len(row) > 17}

    def set(self, server: str, state: str) -> None:
        self.ask(f"set server {server} state {state}")

    @contextmanager
    def session(self) -> Iterator[socket.socket]:
        """One that has reached a server."""
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(5)
            connected.connect(str(self.directory / "front"))
            connected.sendall(b"hello")
            assert connected.recv(100) == b"hello"
            yield connected

    def handler(self, *servers: str, wait: bool = True, place: object = "") -> Tried:
        return handler(str(place or self.admin), *(servers or ("web/one",)), wait=wait)

    def _is_up(self) -> bool:
        try:
            return bool(self.ask("show info"))
        except OSError:
            return False


def handler(place: str, *servers: str, wait: bool = True) -> Tried:
    return Tried(Haproxy(tables.Haproxy(name="lb", socket=place, servers=servers, wait=wait), RUNTIME))


@pytest.fixture
def down(tmp_path: Path) -> Iterator[Proxy]:
    with serving(Echo) as backend:
        proxy = Proxy(tmp_path, backend)
        yield proxy
        proxy.stop()


@pytest.fixture
def proxy(down: Proxy) -> Proxy:
    down.start()
    return down


def test_servers_are_drained_and_made_ready_again(proxy: Proxy) -> None:
    memos: list[tuple[str, str]] = []
    drain = proxy.handler("web/one", "api/one", "web/two")
    assert drain.run(remember=full) == UNREMEMBERED
    assert proxy.states() == READY, "nothing is drained that could not be remembered"
    outcome = drain.run(remember=lambda memo: memos.append((memo, proxy.states()["web/one"])))
    assert outcome == done("drained web/one, api/one, web/two; no session is left")
    assert memos == [('["web/one","api/one","web/two"]', "no check")]
    assert proxy.states() == {"web/one": "DRAIN", "web/two": "DRAIN", "web/out": "MAINT", "api/one": "DRAIN"}
    outcome = drain.run(phase=Phase.RECOVER, memo=memos[0][0])
    assert outcome == done("made ready web/one, api/one, web/two")
    assert proxy.states() == READY


def test_draining_takes_until_the_last_session_has_ended(proxy: Proxy) -> None:
    outcomes: list[Outcome] = []
    drain = proxy.handler("web/one", "web/two")
    with proxy.session() as session, beside(lambda: outcomes.append(drain.run())):
        until(lambda: proxy.states()["web/two"] == "DRAIN")
        session.sendall(b"still here")
        assert session.recv(100) == b"still here"
        session.close()
    assert outcomes == [done("drained web/one, web/two; no session is left")]


def test_sessions_that_do_not_end(proxy: Proxy) -> None:
    drain = proxy.handler("web/one", "web/two")
    with proxy.session(), proxy.session(), proxy.session():
        begun = time.monotonic()
        assert drain.run(seconds_left=1.0) == failed("3 sessions left on web/one, web/two")
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        assert drain.run(seconds_left=60, stop=stop) == failed("stopped, as the agent asked")
        assert time.monotonic() - begun < 30
        unwaited = proxy.handler("web/one", "web/two", wait=False)
        assert unwaited.run(memo='["web/one"]') == done("drained web/one")


def test_what_an_administrator_took_out_is_not_brought_back(proxy: Proxy) -> None:
    proxy.set("web/two", "drain")
    memos: list[str] = []
    drain = proxy.handler("web/one", "web/two", "web/out")
    assert drain.run(remember=memos.append).ok
    assert memos == ['["web/one"]']
    assert drain.run(attempt=2, memo=memos[0], remember=memos.append).ok
    assert memos[1] == memos[0], "a second attempt keeps what the first found"
    assert drain.run(phase=Phase.UNDO, memo=memos[0]).ok
    assert proxy.states() == READY | {"web/two": "DRAIN"}
    out = proxy.handler("web/two", "web/out")
    assert out.run(remember=memos.append) == done("all servers were out already; no session is left")
    assert out.run(phase=Phase.RECOVER, memo=memos[-1]) == done("no server was drained")
    assert proxy.states()["web/two"] == "DRAIN"
    assert drain.run(phase=Phase.RECOVER) == done("made ready web/two"), "without a memo, all that are drained"
    # What one decided meanwhile stays.
    assert proxy.handler("web/one", "web/two").run().ok
    proxy.set("web/two", "maint")
    outcome = proxy.handler("web/one", "web/two").run(phase=Phase.RECOVER, memo='["web/one","web/two"]')
    assert outcome == done("made ready web/one")
    assert proxy.states()["web/two"] == "MAINT"


@pytest.mark.parametrize("gone", ["web/gone", "gone/one"])
def test_a_server_that_is_no_longer_configured_does_not_keep_the_others_out(proxy: Proxy, gone: str) -> None:
    assert proxy.handler("web/one", "api/one").run().ok
    outcome = proxy.handler("web/one", gone, "api/one").run(phase=Phase.RECOVER, memo=f'["web/one","{gone}","api/one"]')
    assert outcome == done(f"made ready web/one, api/one; HAProxy at {proxy.admin} has no server {gone}")
    assert proxy.states() == READY


def test_a_rehearsal_changes_nothing_and_errors_are_shown(proxy: Proxy) -> None:
    place = f"{HOST}:{proxy.port}"
    assert proxy.handler().rehearse() == done(f"would drain web/one through {proxy.admin}")
    assert proxy.handler(place=place).rehearse() == done(f"would drain web/one through {place}")
    for name in ("web/nope", "nope/one"):
        missing = failed(f"HAProxy at {proxy.admin} has no server {name}")
        assert proxy.handler(name).rehearse() == proxy.handler(name).run() == missing
    weak = proxy.handler(place=proxy.user)
    assert weak.rehearse() == failed(f"{proxy.user} gives us the level user only: give that socket `level admin`")
    assert weak.run() == failed("HAProxy answered `set server web/one state drain` with: Permission denied")
    assert proxy.states() == READY
    assert proxy.handler(place=place).run().ok
    assert proxy.states()["web/one"] == "DRAIN"


def test_one_that_is_away_is_an_error_and_recovery_waits_for_it(down: Proxy) -> None:
    away = failed(f"HAProxy at {down.admin}: no such file or directory")
    assert down.handler().run() == down.handler().rehearse() == away
    assert down.handler().run(phase=Phase.RECOVER, seconds_left=0.4) == away
    outcome = down.handler(place=f"{HOST}:{down.port}").run()
    assert outcome == failed(f"HAProxy at {HOST}:{down.port}: connection refused")
    outcomes: list[Outcome] = []
    with beside(lambda: outcomes.append(down.handler().run(phase=Phase.RECOVER))):
        down.start()
    assert outcomes == [done("no server was drained")]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "HAProxy answered `show servers state web` with: nothing"),
        (b"1\n# be_name srv_name\nweb one\n", "HAProxy answered without srv_admin_state"),
        (b"\x1b[2J" + b"x" * 1000, f"HAProxy answered `show servers state web` with: [2J{'x' * 196}"),
        (b"1\n" * 3_000_000, "HAProxy at {}: its reply has no end"),
        (None, "HAProxy at {}: timed out"),
        (b"no numbers", "HAProxy answered `show stat web` with: no numbers"),
    ],
)
def test_whatever_else_listens_there_does_no_harm(reply: bytes | None, message: str) -> None:
    class Stranger(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            command = self.request.recv(100)
            if reply is None:
                self.request.recv(1)
            known = b"1\n# be_name srv_name srv_admin_state\nweb one 8\n" if reply == b"no numbers" else reply
            with contextlib.suppress(OSError):
                self.request.sendall((known if b"state" in command else reply) or b"")

    with serving(Stranger) as port:
        place = f"127.0.0.1:{port}"
        outcome = handler(place, "web/one").run(seconds_left=0.3 if reply is None else 5)
        assert outcome == failed(message.format(place))
