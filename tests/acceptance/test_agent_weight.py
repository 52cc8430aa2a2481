"""What an agent weighs, and that it does not grow."""

import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.acceptance.agents import agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.running import DEADLINE, environment, until
from tests.client.endurance import own_memory
from tests.client.samples import EVENT, OTHER, document
from tests.client.scripted import answer

from forenotice.agent.journal import KEPT

MOST = 30 * 1024
"""KiB."""
MOST_GROWTH = 1024
UNWANTED = ("asyncio", "email", "http.client", "http.server", "rich", "ssl", "structlog", "click", "urllib.request")
IMPORTED = re.compile(r"^import time:.*\| +(\S+)$", re.MULTILINE)


def resident(process: int) -> int:
    """KiB."""
    (found,) = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return int(found)


def light_and_without_heavy_modules(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    flag = f'[[handler]]\nname = "flag"\ntype = "file"\npath = "{home / "flag"}"\n'
    config = 'listen = "127.0.0.1:0"\n' + diary() + flag
    with agent(home, vm.endpoint, config, PYTHONPROFILEIMPORTTIME="1") as guest:
        vm.maintain_host("host-update")
        guest.until_state("done")
        assert guest.page("/metrics").status == 200
        assert resident(guest.pid) < MOST
        loaded = set(IMPORTED.findall(guest.errors))
    assert {"h11", "msgspec", "forenotice.agent.loop"} <= loaded
    assert loaded.isdisjoint(UNWANTED)


POLLS = 6_000
TAG = re.compile(rb"if-none-match: (\S+)", re.IGNORECASE)
OWN = EVENT | {"NotBefore": "Mon, 11 Apr 2122 22:26:58 GMT", "Resources": ["me"]}
FAULTS: list[bytes | None] = [
    None,
    answer(),
    answer("404 Not Found", b'{"error":"unknown"}'),
    answer("429 Too Many Requests", b"", "Retry-After: 30"),
    answer("503 Service Unavailable", b"x" * 5000),
    answer(body=b"\xff" * 100),
    answer(body=document(EVENT)[:-9]),
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 999\r\n\r\n{",
    b"\x00\x01 no http\r\nConnection: close\r\n\r\n",
]


class Faulty(threading.Thread):
    """An endpoint that fails every fourth time, and shows this VM a new event now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.polls = 0
        self.approvals = 0

    def run(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listening.accept()[0],), daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(ConnectionError):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while asked := line.recv(65536):
                said = self._answer(asked)
                if said is not None:
                    line.sendall(said)
                if said is None or b"Connection: close" in said:
                    return

    def _answer(self, asked: bytes) -> bytes | None:
        if asked.startswith(b"POST"):
            self.approvals += 1
            return answer()
        self.polls += 1
        number = self.polls
        if number % 4 == 3:
            return FAULTS[number // 4 % len(FAULTS)]
        tag = TAG.search(asked)
        if tag and number % 3:
            return answer("304 Not Modified", b"", f"ETag: {tag[1].decode()}")
        others = OTHER | {"EventId": f"event {number}", "Description": "x" * (number % 977)}
        own = [OWN | {"EventId": f"own event {number // 20}"}] if number % 20 < 10 else []
        return answer("200 OK", document(others, *own, incarnation=number % 500), f'ETag: "{number}"')


def no_heavier_after_6_000_more_polls(home: Path, _: Fleet) -> None:
    """Without pauses, and with faults; events begin and end all along."""
    home.mkdir()
    (home / "agent.toml").write_text(
        'name = "me"\napprove = "always"\n' + command("nothing", {"recover": "true"}, types=["Terminate"])
    )

    def events_over() -> int:
        return (home / "log").read_text().count('"state": "done"')

    endpoint = Faulty()
    endpoint.start()
    env = environment(home, FORENOTICE_ENDPOINT=endpoint.url)
    start = [sys.executable, "-m", "tests.acceptance.restless", str(home / "agent.toml"), str(home / "state")]
    with (home / "log").open("wb") as log, subprocess.Popen(start, env=env, stderr=log) as process:
        try:
            # It grows with its events until it forgets the first, and its journal has been through all of its file.
            until(lambda: events_over() > 2 * KEPT or process.poll() is not None, what="more events than are kept")
            settled, polls = own_memory(process.pid), endpoint.polls
            until(lambda: endpoint.polls >= polls + POLLS or process.poll() is not None)
            assert own_memory(process.pid) - settled < MOST_GROWTH
            process.terminate()
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
            endpoint.close()
    written = (home / "log").read_text()
    assert endpoint.approvals > 2 * KEPT
    assert "agent.defect" not in written
    assert "poll.broken" not in written


def test_weight(fleet: Fleet, tmp_path: Path) -> None:
    tell(tmp_path, fleet, light_and_without_heavy_modules, no_heavier_after_6_000_more_polls)
