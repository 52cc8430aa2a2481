"""Signatures between peers, and the addresses that they may speak from."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forenotice.agent import config, listener
from forenotice.agent.config import READY_PATH
from forenotice.agent.listener import Request
from forenotice.agent.signature import HEADER, Addresses, Message, Signer
from forenotice.client.http import Response

NAMES = st.text(min_size=1, max_size=8)


def message(sender: str, receiver: str) -> Message:
    return Message(sender=sender, receiver=receiver, sent_at=datetime(2026, 1, 1, tzinfo=UTC), readiness=None)


def request(mark: str, body: bytes, *, method: str = "POST", path: str = READY_PATH) -> Request:
    return Request(method=method, path=path, headers={HEADER.lower(): mark}, body=body)


def answer(response: listener.Response) -> Response:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(status=response.status, reason="", headers=headers, body=response.body)


@given(sender=NAMES, receiver=NAMES, other=NAMES, body=st.binary(max_size=99), secret=st.binary(min_size=16))
def test_a_signature_holds_for_what_it_was_made_for_and_for_nothing_else(
    sender: str, receiver: str, other: str, body: bytes, secret: bytes
) -> None:
    seal, said = Signer(secret), message(sender, receiver)
    mark = seal.sign(said, body)
    assert seal.is_valid(request(mark, body), said)
    assert not seal.is_valid(request(mark, body + b"x"), said)
    assert not seal.is_valid(request(mark, body, method="PUT"), said)
    assert not seal.is_valid(request(mark, body, path="/peers/other"), said)
    assert not seal.is_valid(request("é", body), said)
    assert not Signer(secret + b"x").is_valid(request(mark, body), said)
    if other.removeprefix("_").lower() != sender.removeprefix("_").lower():
        assert not seal.is_valid(request(mark, body), message(other, receiver))
    if other.removeprefix("_").lower() != receiver.removeprefix("_").lower():
        assert not seal.is_valid(request(mark, body), message(sender, other))


def test_a_response_holds_for_one_request_and_comes_from_its_receiver() -> None:
    seal, said = Signer(b"sixteen or more bytes"), message("alice", "bob")
    mark = seal.sign(said, b"{}")
    response = seal.sign_response(listener.Response.text("yes"), said, request(mark, b"{}"))
    assert seal.is_valid_response(answer(response), said, mark)
    assert not seal.is_valid_response(answer(response), said, seal.sign(said, b"[]"))
    changed = listener.Response(status=403, headers=response.headers, body=response.body)
    assert not seal.is_valid_response(answer(changed), said, mark)
    assert not seal.is_valid_response(answer(listener.Response.text("yes")), said, mark)
    reflected = listener.Response(status=200, headers={HEADER: mark}, body=b"{}")
    assert not seal.is_valid_response(answer(reflected), said, mark)


def test_a_secret_of_one_vm_is_used_with_it_alone() -> None:
    common, own = b"known to all of them", b"known to two of them"
    alice, bob, carol = Signer(common, {"bob": own}), Signer(common, {"ALICE": own}), Signer(common)
    to_bob, to_carol = message("alice", "bob"), message("alice", "carol")
    mark = alice.sign(to_bob, b"")
    assert bob.is_valid(request(mark, b""), to_bob)
    assert not bob.is_valid(request(carol.sign(to_bob, b""), b""), to_bob)
    assert carol.is_valid(request(alice.sign(to_carol, b""), b""), to_carol)
    response = bob.sign_response(listener.Response.text("yes"), to_bob, request(mark, b""))
    assert alice.is_valid_response(answer(response), to_bob, mark)
    assert not carol.is_valid_response(answer(response), to_bob, mark)


@pytest.mark.parametrize(
    ("address", "source", "believed"),
    [
        ("10.0.0.5:8256", "10.0.0.5", True),
        ("10.0.0.5:8256", "::ffff:10.0.0.5", True),
        ("10.0.0.5:8256", "10.0.0.6", False),
        ("[fe80::1]:8256", "fe80::1%eth0", True),
        ("[fd00::0:1]:8256", "fd00::1", True),
        ("[fd00::1]:8256", "fd00::2", False),
        ("localhost:8256", "127.0.0.1", True),
    ],
)
def test_a_vm_speaks_from_its_address(address: str, source: str, believed: bool) -> None:
    addresses = Addresses(config.Peers(secret_file="/x", addresses={"web-1": address}))
    assert (addresses.flaw("_WEB-1", source) == "") == believed
    assert addresses.flaw("web-2", source) == ""


@pytest.mark.parametrize(
    ("listen", "addresses", "source"),
    [
        ("10.0.0.5:8256", {}, "10.0.0.5"),
        ("[fd00::5]:8256", {}, "fd00::5"),
        ("0.0.0.0:8256", {}, ""),
        ("[::]:8256", {}, ""),
        ("web-0.example:8256", {}, ""),
        ("0.0.0.0:8256", {"WEB-0": "10.0.0.6:8256"}, "10.0.0.6"),
        ("10.0.0.5:8256", {"web-0": "web-0.example:8256"}, ""),
    ],
)
def test_a_vm_speaks_from_the_address_that_others_know(listen: str, addresses: dict[str, str], source: str) -> None:
    assert Addresses(config.Peers(secret_file="/x", addresses=addresses)).source("web-0", listen) == source
