"""The rules' text: made of checked words only, and such as nft takes."""

import re
import shutil
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.namespaces import Namespace, require_namespaces

from forenotice.core import errors
from forenotice.network import nft
from forenotice.network.rules import METADATA, REMOVAL, Port, Ruleset
from forenotice.settings import Address

WEB = Port(port="vnet0", vm="web-0", mac="52:54:00:00:00:01", addresses=("10.0.0.4", "fd00::4"))
DB = Port(port="vnet1", vm="db", mac="52:54:00:00:00:02", addresses=("10.0.0.5",))
ENDPOINT6 = Address(host="fd00::fe", port=80)
VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "without VMs": {"ports": ()},
    "several bridges and uplinks": {"bridges": ("br0", "br-1.7"), "uplinks": ("eth0", "eth1")},
    "IPv6 alone": {"ports": (Port(port="v", vm="v", mac=WEB.mac, addresses=("fd00::4",)),), "endpoints": (ENDPOINT6,)},
    "both": {"endpoints": (METADATA, ENDPOINT6)},
    "led elsewhere": {"to": Address(host="10.0.0.1", port=8254)},
    "led elsewhere by IPv6": {"endpoints": (ENDPOINT6,), "to": Address(host="fd00::1", port=8254)},
}


def ruleset(**changes: Any) -> Ruleset:
    return Ruleset(**{"bridges": ("br0",), "ports": (WEB, DB), **changes})


def test_nft_takes_the_rules_again_and_again() -> None:
    require_namespaces("nft")
    with closing(Namespace()) as namespace:
        shown: dict[str, str] = {}
        for _ in range(2):
            for name, changes in VARIANTS.items():
                namespace.run("nft", "-f", "-", input=ruleset(**changes).text())
                rules = namespace.run("nft", "list", "ruleset")
                # Nothing is left of what was there before.
                assert shown.setdefault(name, rules) == rules
        for _ in range(2):
            namespace.run("nft", "-f", "-", input=REMOVAL)
            assert namespace.run("nft", "list", "ruleset") == ""


HOSTILE = ['x" accept', "a\nb", "a{", "a;b", "../x", "", "*", "a" * 16, "é", "$(id)", "a b", "#"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "place",
    [
        lambda text: {"bridges": (text,)},
        lambda text: {"uplinks": (text,)},
        lambda text: {"ports": (Port(port=text, vm="web-0", mac=WEB.mac, addresses=WEB.addresses),)},
        lambda text: (
            {"ports": (Port(port="vnet0", vm="web-0", mac=WEB.mac + text, addresses=WEB.addresses),)}
            if text
            else {"ports": (Port(port="vnet0", vm="web-0", mac="", addresses=WEB.addresses),)}
        ),
        lambda text: {"ports": (Port(port="vnet0", vm="web-0", mac=WEB.mac, addresses=("10.0.0.4", text)),)},
        lambda text: {"ports": (Port(port="vnet0", vm="web-0", mac=WEB.mac, addresses=(f"fe80::1%{text}",)),)},
        lambda text: {"endpoints": (Address(host=text, port=80),)},
        lambda text: {"to": Address(host=text, port=80)},
    ],
)
def test_nothing_but_names_and_addresses_gets_into_the_text(place: Any, text: str) -> None:
    with pytest.raises(errors.RefusedError):
        ruleset(**place(text)).text()


WORD = re.compile(r"[A-Za-z0-9_.:@,;!={}\"# \t/-]*")


@settings(deadline=None)
@given(words=st.lists(st.text(max_size=20), min_size=5, max_size=5))
def test_whatever_is_given_the_text_has_the_lines_that_it_always_has(words: list[str]) -> None:
    port, vm, mac, address, bridge = words
    try:
        text = ruleset(bridges=(bridge,), ports=(Port(port=port, vm=vm, mac=mac, addresses=(address,)),)).text()
    except errors.RefusedError:
        return
    assert all(WORD.fullmatch(line) for line in text.splitlines())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bridges": ()}, "give --bridge"),
        ({"uplinks": ("vnet0",)}, "same port is given twice"),
        ({"ports": (Port(port="v", vm="web-0", mac=WEB.mac, addresses=()),)}, "forenotice vm set web-0 --address IP"),
        ({"ports": (Port(port="v", vm="a/b", mac=WEB.mac, addresses=("10.0.0.4",)),)}, "not the name of a VM"),
        ({"ports": (Port(port="v", vm="web-0", mac="52-54", addresses=("10.0.0.4",)),)}, "not a MAC"),
        ({"to": Address(host="127.0.0.1", port=8254)}, "the bridge's own address"),
        ({"to": Address(host="fd00::1", port=8254)}, "another IP version"),
        ({"endpoints": (Address(host="10.0.0.4", port=80),)}, "the address of a VM"),
        ({"to": Address(host="10.0.0.4", port=8254)}, "the address of a VM"),
        ({"endpoints": (Address(host="169.254.169.254", port=0),)}, "169.254.169.254:0: give the address and port"),
        ({"endpoints": (Address(host="0.0.0.0", port=80),)}, "give the address and port"),
        ({"endpoints": (Address(host="fe80::a9fe:a9fe", port=80),)}, "give the address and port"),
        ({"to": Address(host="224.0.0.1", port=80)}, "give the address and port"),
        ({"ports": (WEB, Port(port="v", vm="db", mac=WEB.mac, addresses=("10.0.0.5",)))}, "have the same MAC"),
    ],
)
def test_what_would_not_work_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        ruleset(**changes)


def test_the_link_local_address_of_a_mac() -> None:
    assert str(WEB.ips[-1]) == "fe80::5054:ff:fe00:1"


def test_nft_says_what_it_did_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    require_namespaces("nft")
    with pytest.raises(nft.NftError, match=r"did not load the rules \(.*syntax error"):
        nft.load("table bridge {")
    with pytest.raises(errors.RefusedError, match="no interface nosuch0 here"):
        nft.require_interfaces(["lo", "nosuch0"])
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(nft.NftError, match="nft is not installed: apt-get install nftables"):
        nft.load(REMOVAL)
