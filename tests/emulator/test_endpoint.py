"""The endpoint in its thread: how it ends."""

import socket
from time import monotonic

from forenotice.emulator.emulator import Emulator


def test_half_a_request_does_not_hold_up_the_end() -> None:
    emulator = Emulator(as_vm="web-0")
    at = emulator.start()
    with socket.create_connection((at.host, at.port), timeout=60) as guest:
        guest.sendall(b"GET /metadata/versions HTTP/1.1\r\nHost: localhost\r\nMetadata: true\r\n\r\nGET /metadata/ver")
        assert guest.recv(12) == b"HTTP/1.1 200"
        began = monotonic()
        emulator.stop()
        assert monotonic() - began < 1.5
