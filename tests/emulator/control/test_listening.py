"""Where the emulator's control listens, and how it begins and ends."""

import socket
from collections.abc import Iterator

import pytest

from notbefore.core import errors
from notbefore.emulator.control.listening import Control
from notbefore.emulator.emulator import Emulator
from notbefore.settings import Address


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    found = Emulator(as_vm="web-0")
    found.start()
    yield found
    found.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_drive_it_only_where_that_is_allowed(emulator: Emulator, host: str) -> None:
    with pytest.raises(errors.RefusedError, match=r"asks for no token.*--open-control"):
        Control(emulator, Address(host=host, port=0))
    if host != "192.0.2.1":
        opened = Control(emulator, Address(host=host, port=0), to_others=True)
        assert opened.address.port
        opened.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_it_listens_before_it_has_started(emulator: Emulator, host: str) -> None:
    control = Control(emulator, Address(host=host, port=0))
    with socket.create_connection((control.address.host, control.address.port), timeout=5):
        pass
    control.stop()


def test_it_ends_without_ever_having_been_called(emulator: Emulator) -> None:
    control = Control(emulator, Address(host="127.0.0.1", port=0))
    control.start()
    control.stop()


def test_a_place_that_cannot_be_had(emulator: Emulator) -> None:
    control = Control(emulator, Address(host="127.0.0.1", port=0))
    with pytest.raises(errors.RefusedError, match=r"cannot listen on .*address already in use.*another --control"):
        Control(emulator, control.address)
    control.stop()
    with pytest.raises(errors.RefusedError, match=r"cannot listen on nowhere\.invalid:1"):
        Control(emulator, Address(host="nowhere.invalid", port=1))
