"""Requests go only where they may, and come back within a time."""

import ipaddress
import ssl
import threading
from pathlib import Path

import pytest
from tests.agent.handlers import sink
from tests.cli.stranger import stranger

from forenotice import ssrf
from forenotice.core import errors
from forenotice.ssrf import EVERYWHERE, OutgoingClient, OutgoingError

PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "0.0.0.0"),
    *("224.0.0.1", "255.255.255.255", "192.0.0.192", "198.18.0.1", "168.63.129.16", "2001:db8::1"),
    *("::1", "::", "fe80::1", "fec0::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8"),
    *("::127.0.0.1", "2002:7f00:1::", "64:ff9b::10.0.0.1"),
)
NEVER = (
    *("169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.0.192", "168.63.129.16"),
    *("::", "fe80::1", "ff02::1", "::ffff:169.254.169.254", "2002:a9fe:a9fe::"),
    *("64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8", "fd00:ec2::254", "fd20:ce::254"),
)
HOSTS = (*(f"[{address}]" if ":" in address else address for address in PRIVATE), "localhost", "LOCALHOST.")


def test_public_addresses() -> None:
    assert [address for address in PRIVATE if ssrf.is_public(ipaddress.ip_address(address))] == []
    for address in ("8.8.8.8", "2606:4700::1111", "2002:808:808::", "64:ff9b::8.8.8.8"):
        assert ssrf.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", [*HOSTS, "a.localhost", "127.1", "2130706433", "0x7f000001"])
def test_private_targets_are_refused_at_once_unless_allowed(host: str) -> None:
    with pytest.raises(errors.RefusedError, match=r"allow_private_targets|are not allowed"):
        OutgoingClient().require(f"https://{host}:8443/hook")
    if host.strip("[]") not in NEVER:
        OutgoingClient(private=EVERYWHERE).require(f"http://{host}:8080/hook")


@pytest.mark.parametrize("address", NEVER)
def test_link_local_and_metadata_addresses_are_never_sent_to(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(errors.RefusedError, match="are not allowed"):
        OutgoingClient(private=EVERYWHERE).require(f"http://{host}/")


def test_only_the_networks_that_were_named_are_sent_to() -> None:
    some = OutgoingClient(private=[ipaddress.ip_network("10.1.0.0/16")])
    some.require("http://10.1.2.3/hook")
    with pytest.raises(errors.RefusedError, match="allow_private_targets"):
        some.require("http://10.2.2.3/hook")
    with sink.sink() as receiver, pytest.raises(OutgoingError, match="allow_private_targets"):
        some.post(f"http://localhost:{receiver.port}/", b"{}")


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_our_own_listeners_are_never_sent_to(bound: str) -> None:
    own: list[ssrf.SocketAddress] = []
    sending = OutgoingClient(private=EVERYWHERE, own=own)
    with sink.sink() as receiver:
        assert sending.get(receiver.at).status < 500
        own.append((ipaddress.ip_address(bound), receiver.port))
        with pytest.raises(errors.RefusedError, match="this service's own listener"):
            sending.require(receiver.at)
        with pytest.raises(OutgoingError, match="this service's own listener"):
            sending.get(f"http://localhost:{receiver.port}/")
        sending.require(f"http://127.0.0.1:{receiver.port + 1}/")


def test_plain_http_is_for_private_targets_only() -> None:
    careful, lenient = OutgoingClient(), OutgoingClient(private=EVERYWHERE)
    careful.require("https://hooks.example.com/a?b=c")
    lenient.require("http://hooks.internal/")
    with pytest.raises(errors.RefusedError, match="give an https URL"):
        careful.require("http://hooks.example.com/")
    with pytest.raises(errors.RefusedError, match="give an https URL"):
        lenient.require("http://8.8.8.8/")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://hooks.example.com/", "is not an http or https URL"),
        ("hooks.example.com", "is not an http or https URL"),
        ("https://", "is not an http or https URL"),
        ("https://hooks.example.com:99999/", "is not an http or https URL"),
        ("https://hooks.example.com:0/", "is not an http or https URL"),
        ("https://[::1/", "is not an http or https URL"),
        ("https://hooks.example.com/a b", "is not an http or https URL"),
        ("https://hooks.example.com\\@127.0.0.1/", "is not an http or https URL"),
        ("https://hooks.example.com/\r\nX: y", "is not an http or https URL"),
        ("https://bücher.example/", "is not an http or https URL"),
        ("https://me:secret@hooks.example.com/", "remove what is before the '@'"),
        ("https://hooks.example.com/#here", "remove what follows the '#'"),
        ("https://hooks.example.com/" + "a" * 2000, "too long"),
    ],
)
def test_what_is_no_url_is_refused_without_repeating_it(url: str, sentence: str) -> None:
    with pytest.raises(errors.RefusedError, match=sentence) as caught:
        OutgoingClient(private=EVERYWHERE).require(url)
    assert "secret" not in caught.value.message


def test_a_name_is_checked_where_it_leads_to() -> None:
    with sink.sink() as receiver, pytest.raises(OutgoingError, match="allow_private_targets"):
        OutgoingClient().post(f"https://localhost:{receiver.port}/", b"{}")
    assert receiver.heard == []


def test_a_request_and_its_response() -> None:
    with sink.sink() as receiver:
        receiver.status, receiver.headers = 503, {"Retry-After": "7"}
        reply = OutgoingClient(private=EVERYWHERE).post(f"{receiver.at}/hook?a=b", b"{}", {"X-Sign": "1"})
    assert (reply.status, reply.headers["retry-after"]) == (503, "7")
    (heard,) = receiver.heard
    assert (heard.method, heard.target, heard.body, heard.headers["X-Sign"]) == ("POST", "/hook?a=b", b"{}", "1")


@pytest.mark.parametrize("rest", [b"x" * 64, b"x" * (ssrf.LARGEST_RESPONSE + 2), b"", b"\r\nnot what it should be"])
def test_a_notification_reads_nothing_but_the_status(rest: bytes) -> None:
    head = b"HTTP/1.1 202 Taken\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n"
    with stranger(head + rest) as receiver:
        reply = OutgoingClient(private=EVERYWHERE, seconds=2).notify(receiver.url, b"{}")
    assert (reply.status, reply.headers["retry-after"], reply.body) == (202, "7", b"")


def test_the_body_of_the_response_to_a_notification_may_be_slow() -> None:
    with sink.sink() as receiver:
        # And it never comes.
        receiver.status, receiver.headers = 200, {"Content-Length": "5"}
        assert OutgoingClient(private=EVERYWHERE, seconds=2).notify(receiver.at, b"{}").status == 200
        with pytest.raises(OutgoingError, match="timed out"):
            OutgoingClient(private=EVERYWHERE, seconds=0.05).post(receiver.at, b"{}")


def test_redirects_are_not_followed() -> None:
    with sink.sink() as receiver:
        receiver.status, receiver.headers = 307, {"Location": "/elsewhere"}
        assert OutgoingClient(private=EVERYWHERE).get(f"{receiver.at}/hook").status == 307
    assert [heard.target for heard in receiver.heard] == ["/hook"]


def test_tls_is_checked(tmp_path: Path) -> None:
    certificate = sink.certificate(tmp_path)
    with sink.sink(certificate) as receiver:
        with pytest.raises(OutgoingError, match="no response from https://localhost"):
            OutgoingClient(private=EVERYWHERE).get(f"{receiver.at}/secret")
        trusting = ssl.create_default_context(cafile=str(certificate.file))
        assert OutgoingClient(private=EVERYWHERE, tls=trusting).get(f"{receiver.at}/").status == 204


def test_a_response_that_is_late_is_given_up() -> None:
    with sink.sink() as receiver:
        receiver.answering.clear()
        with pytest.raises(OutgoingError, match="timed out"):
            OutgoingClient(private=EVERYWHERE, seconds=0.05).get(receiver.at)
        receiver.answering.set()


def test_what_is_under_way_ends_when_it_is_closed() -> None:
    with sink.sink() as receiver:
        receiver.answering.clear()
        sending = OutgoingClient(private=EVERYWHERE)
        said: list[str] = []

        def send() -> None:
            try:
                sending.post(receiver.at, b"")
            except OutgoingError as error:
                said.append(error.message)

        thread = threading.Thread(target=send)
        thread.start()
        while not receiver.heard:
            thread.join(0.005)
        sending.close()
        thread.join(2)
        receiver.answering.set()
        with pytest.raises(OutgoingError, match="stopping"):
            sending.get(receiver.at)
    assert ["closed here" in message for message in said] == [True]
