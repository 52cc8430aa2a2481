"""Networks that something may come from."""

import pytest

from forenotice.core import errors, roles


def test_they_are_kept_as_networks_each_once() -> None:
    assert roles.parse_networks(["10.0.0.0/8", " 192.0.2.7", "2001:DB8::/48", "10.0.0.0/8"]) == (
        "10.0.0.0/8",
        "192.0.2.7/32",
        "2001:db8::/48",
    )
    assert roles.parse_networks([]) == ()


@pytest.mark.parametrize("wrong", [["10.0.0.1/8"], ["here"], [""], ["10.0.0.0/8"] * 33])
def test_what_is_no_network(wrong: list[str]) -> None:
    with pytest.raises(errors.RefusedError):
        roles.parse_networks(wrong)


@pytest.mark.parametrize(
    ("origin", "included"),
    [
        ("10.9.8.7", True),
        ("::ffff:10.9.8.7", True),
        ("11.0.0.1", False),
        ("::1", True),
        ("127.0.0.1", False),
        ("", False),
    ],
)
def test_an_address_is_in_one_of_them(origin: str, included: bool) -> None:
    assert roles.in_networks(["10.0.0.0/8", "::1/128"], origin) is included


def test_those_without_an_address_come_from_here() -> None:
    assert roles.in_networks(["127.0.0.0/8"], "")
