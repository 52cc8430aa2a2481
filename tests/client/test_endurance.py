"""10,000 polls under faults, without pauses: the memory stays what it was after 2,000."""

import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from tests.client.samples import EVENT, OTHER, STARTED, document
from tests.client.scripted import answer

MOST_GROWTH = 1024
"""KiB."""

TAG = re.compile(rb"if-none-match: (\S+)", re.IGNORECASE)
FAULTS: list[bytes | None] = [
    None,
    answer(),
    answer("404 Not Found", b'{"error":"unknown"}'),
    answer("410 Gone", b"<html>"),
    answer("429 Too Many Requests", b"", "Retry-After: 30"),
    answer("503 Service Unavailable", b"x" * 5000, "Retry-After: Mon, 11 Apr 2022 22:26:58 GMT"),
    answer(body=b"\xff" * 100),
    answer(body=document(EVENT)[:-9]),
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 999\r\n\r\n{",
    b"\x00\x01 no http\r\nConnection: close\r\n\r\n",
]


class Faulty(threading.Thread):
    """Quick rather than thorough: one connection after another, and of a request only the tag is read."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self._listening = listening
        self._number = 0

    def run(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                with accepted, suppress(ConnectionError):
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while asked := accepted.recv(65536):
                        said = self._answer(asked)
                        if said is not None:
                            accepted.sendall(said)
                        if said is None or b"Connection: close" in said:
                            break

    def _answer(self, asked: bytes) -> bytes | None:
        self._number += 1
        number = self._number
        if number % 7 == 3:
            return FAULTS[number // 7 % len(FAULTS)]
        tag = TAG.search(asked)
        if tag and number % 3:
            return answer("304 Not Modified", b"", f"ETag: {tag[1].decode()}")
        events = [EVENT | {"EventId": f"event {number}"}, STARTED, OTHER | {"Description": "x" * (number % 977)}]
        return answer("200 OK", document(*events[: number % 4], incarnation=number % 500), f'ETag: "{number}"')


@pytest.mark.parametrize(("kind", "polls"), [("sync", 10_000), ("async", 5_000)])
def test_memory_does_not_grow_with_polls_and_faults(kind: str, polls: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Faulty(listening).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        command = [sys.executable, "-m", "tests.client.endurance", kind, url, str(polls)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        listening.shutdown(socket.SHUT_RDWR)
    settled, after, *seen = ran.stdout.splitlines()
    assert int(after) - int(settled) < MOST_GROWTH
    assert sum(int(line.split()[0]) for line in seen) >= polls
    assert {line.partition(" ")[2] for line in seen} >= {
        "same",
        "changed",
        "answered 404",
        "answered 410",
        "answered 429",
        "answered 503",
        "no document",
        "ProtocolError",
    }
