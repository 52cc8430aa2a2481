"""Which names a Host header may have."""

import pytest

from forenotice.wire import host_header

NAMES = {"metadata.example", "emulator"}
KNOWN = "169.254.169.254 169.254.169.254:80 127.0.0.1: [fd00::1]: [fd00::1] [fd00::1]:8254 ::1 localhost LocalHost:8254"
OTHERS = (
    ":80 rebound.example rebound.example:8254 127.0.0.1.rebound.example localhost.rebound.example localhost:http 1.2.3"
)


@pytest.mark.parametrize("host", [*KNOWN.split(), "metadata.example", "Emulator:8254"])
def test_addresses_localhost_and_given_names_are_allowed(host: str) -> None:
    assert host_header.is_allowed(host, NAMES)


@pytest.mark.parametrize("host", [*OTHERS.split(), "", "metadata.example.", "169.254.169.254 rebound.example"])
def test_any_other_name_is_not(host: str) -> None:
    assert not host_header.is_allowed(host, NAMES)
    assert not host_header.is_allowed("emulator")
