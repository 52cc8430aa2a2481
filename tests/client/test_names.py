"""This VM's own name: given, by variable, from the endpoint, or the host name."""

import socket

import pytest
from tests.client.samples import EVENT, OTHER, document, said
from tests.client.steps import Failing, in_turn, perform, remote

from forenotice.client import EndpointError
from forenotice.client.endpoint import Name
from forenotice.client.http import Response

HOST = socket.gethostname().partition(".")[0]


def test_what_is_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENOTICE_NAME", "by-variable")
    assert perform(remote(name="given-to-us").find_name(), in_turn()) == Name("given-to-us", "given")
    assert perform(remote().find_name(), in_turn()) == Name("by-variable", "FORENOTICE_NAME")


def test_the_endpoint_is_asked_once() -> None:
    guest = remote()
    assert perform(guest.find_name(), in_turn(said(b"web_0\n"))) == Name("web_0", "the endpoint")
    assert perform(guest.me(), in_turn()) == "web_0"


def test_a_byte_order_mark_is_no_part_of_the_name() -> None:
    assert perform(remote().me(), in_turn(said(b"\xef\xbb\xbfweb_0"))) == "web_0"


@pytest.mark.parametrize(
    "answer",
    [said(status=404), said(b"web_0", status=400), said(b"<html>"), said(b'{"a":1}'), said(b"x" * 300)],
    ids=str,
)
def test_an_endpoint_that_does_not_know_leaves_the_host_name_and_is_asked_again(answer: Response) -> None:
    guest = remote()
    assert perform(guest.find_name(), lambda _: answer) == Name(HOST, "host name")
    assert perform(guest.me(), in_turn(said(b"web_0"))) == "web_0"


@pytest.mark.parametrize(
    "fault",
    [
        *(said(b"web_0", status=status) for status in (204, 302, 401, 403, 405, 410, 429, 500, 503)),
        said(b""),
        said(b" \r\n"),
        said(b"\xef\xbb\xbf"),
        TimeoutError(),
        ConnectionRefusedError(),
    ],
    ids=str,
)
def test_an_endpoint_that_cannot_be_asked_is_no_reason_to_guess(fault: Response | Failing) -> None:
    with pytest.raises(EndpointError):
        perform(remote().me(), in_turn(fault))


def test_events_of_this_vm() -> None:
    body = document(EVENT, OTHER)
    (mine,) = perform(remote().events(True), in_turn(said(body), said(b"OTHER")))
    assert mine.type == "Reboot"
    assert len(perform(remote().events(False), in_turn(said(body)))) == 2
    assert perform(remote().events(True), in_turn(said(document()))) == ()
