"""Where the emulator's control listens, and how it begins and ends."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from time import monotonic

import pytest
from tests.acceptance.running import DEADLINE, Said, ask, until

from forenotice.core import errors
from forenotice.emulator.control import Control
from forenotice.emulator.emulator import Emulator
from forenotice.settings import Address

ANY = Address(host="127.0.0.1", port=0)
STATE = "/v1/emulator/state"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    found = Emulator(as_vm="web-0")
    found.start()
    yield found
    found.stop()


def test_it_listens_before_it_has_started_and_for_others_only_where_that_is_allowed(emulator: Emulator) -> None:
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        control = Control(emulator, Address(host=host, port=0))
        with socket.create_connection((control.address.host, control.address.port), timeout=60):
            pass
        control.stop()
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(errors.RefusedError, match=r"asks for no token.*--open-control"):
            Control(emulator, Address(host=host, port=0))
    for host in ("0.0.0.0", "::"):
        opened = Control(emulator, Address(host=host, port=0), to_others=True)
        assert opened.address.port
        with pytest.raises(errors.RefusedError, match=r"cannot listen on .*address already in use.*another --control"):
            Control(emulator, opened.address, to_others=True)
        # It ends without ever having been called.
        opened.start()
        opened.stop()
    with pytest.raises(errors.RefusedError, match=r"cannot listen on nowhere\.invalid:1"):
        Control(emulator, Address(host="nowhere.invalid", port=1))


def test_it_ends_though_a_request_takes_long(emulator: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    control = Control(emulator, ANY)
    control.start()
    found: list[Said] = []
    driving = threading.Thread(target=lambda: found.append(ask(str(control.address), "GET", STATE, None, {})))
    asked, ended = threading.Event(), threading.Event()

    def hold() -> None:
        driving.start()
        asked.set()
        ended.wait(DEADLINE)

    holding = threading.Thread(target=emulator.look, args=(hold,))
    holding.start()
    asked.wait(DEADLINE)
    until(lambda: any(thread.name.startswith("AnyIO") for thread in threading.enumerate()))
    began = monotonic()
    control.stop()
    assert monotonic() - began < 10
    driving.join(DEADLINE)
    ended.set()
    holding.join(DEADLINE)
    assert [(each.status, each.json["error"]["code"]) for each in found] == [(503, "unavailable")]
    assert caplog.records == []


def test_malformed_requests_are_not_logged(emulator: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    control = Control(emulator, ANY)
    control.start()
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert ask(str(control.address), "GET", STATE, None, upgrade).status == 200
    with socket.create_connection((control.address.host, control.address.port), timeout=60) as stranger:
        stranger.sendall(b"SSH-2.0\r\n\r\n")
        assert stranger.recv(12) == b"HTTP/1.1 400"
    control.stop()
    assert caplog.records == []


WITHOUT_WHAT_WINDOWS_LACKS = """
import socket, sys, urllib.request

for name in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None
pair, unix = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda *_: pair(unix)
for name in ("AF_UNIX", "MSG_DONTWAIT", "MSG_MORE"):
    delattr(socket, name)

from forenotice.emulator import run# The program; what follows is what it starts.
from forenotice.emulator.control import Control
from forenotice.emulator.emulator import ANY_PORT, Emulator

emulator = Emulator(as_vm="web-0")
control = Control(emulator, ANY_PORT)
emulator.start()
control.start()
print(urllib.request.urlopen(f"http://{control.address}/v1/emulator/state", timeout=60).status)
control.stop()
emulator.stop()
"""


def test_it_does_without_what_windows_lacks() -> None:
    command = [sys.executable, "-c", WITHOUT_WHAT_WINDOWS_LACKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("200\n", 0), done.stderr
