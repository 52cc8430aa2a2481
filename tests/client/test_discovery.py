"""Where the endpoint is looked for, and that it is stuck to once found."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.samples import EVENT, OTHER, document, said
from tests.client.steps import Failing, hosts, in_turn, perform, play, remote

from forenotice.client import EndpointError, discovery
from forenotice.client.changes import follow
from forenotice.client.discovery import in_lease
from forenotice.client.endpoint import Name
from forenotice.client.http import Response
from forenotice.core.errors import RefusedError

DHCLIENT = """lease {
  interface "eth0";
  fixed-address 10.0.0.4;
  option unknown-245 %s;
  expire 2 2154/01/01 08:18:55;
}
"""
NETWORKD = "# This is private data. Do not parse.\nADDRESS=10.0.0.4\nOPTION_245=%s\n"
USUAL = ("169.254.169.254", 80)
BY_DHCP = [("168.63.129.16", 80), ("168.63.129.16", 8080)]
NOBODY = ConnectionRefusedError(111, "Connection refused")
GOOD = said(document())
STRANGER = said(b"<html>", status=404)


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody says where it is; these tests ask nobody."""
    monkeypatch.delenv("FORENOTICE_ENDPOINT")


@pytest.fixture
def lease(tmp_path: Path) -> list[str]:
    (tmp_path / "2").write_text(NETWORKD % "a83f8110")
    return [f"{tmp_path}/*"]


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("a8:3f:81:10", "168.63.129.16"),
        ("64:41:60:82", "100.65.96.130"),
        ("4:3:2:1", "4.3.2.1"),
        ('"bL6 "', "98.76.54.32"),
        ('"dH\\"l"', "100.72.34.108"),
        ('"dH:l"', "100.72.58.108"),
        ('"dH;l"', "100.72.59.108"),
        ('"\\250?\\201\\020"', "168.63.129.16"),
    ],
)
def test_leases_of_dhclient(value: str, address: str) -> None:
    assert list(in_lease(DHCLIENT % value)) == [address]


def test_the_newest_lease_of_dhclient_comes_first() -> None:
    assert list(in_lease(DHCLIENT % "1:2:3:4" + DHCLIENT % "5:6:7:8")) == ["5.6.7.8", "1.2.3.4"]


@pytest.mark.parametrize("value", ["a83f8110", "a8:3f:81:10", "168.63.129.16"])
def test_leases_of_networkd_and_networkmanager(value: str) -> None:
    assert list(in_lease(NETWORKD % value)) == ["168.63.129.16"]
    assert list(in_lease(f"[dhcp4]\nprivate_245={value}\n")) == ["168.63.129.16"]


@pytest.mark.parametrize(
    "value", ["a83f81", "a8:3f:81", "a8:3f:81:10:11", "zz:zz:zz:zz", "300.1.1.1", "a83f811", "1ff:1:1:1"]
)
def test_what_is_no_address_is_left_out(value: str) -> None:
    assert list(in_lease(NETWORKD % value)) == []
    assert list(in_lease(DHCLIENT % value)) == []


@given(st.text() | st.text().map(lambda odd: DHCLIENT % odd) | st.binary().map(lambda odd: odd.decode("latin-1")))
def test_a_strange_lease_breaks_nothing(text: str) -> None:
    list(in_lease(text))


def test_files_that_are_not_there_or_not_readable_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\x00" * 1000)
    assert list(discovery.addresses([f"{tmp_path}/*", "/no/such/place/*"])) == []


def test_the_order_of_places(lease: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts(discovery.candidates(lease)) == [USUAL, *BY_DHCP]
    assert hosts(discovery.candidates([])) == [USUAL]
    assert discovery.given(None, {}) is None
    named = discovery.given(None, {"FORENOTICE_ENDPOINT": "http://10.0.0.1:8254"})
    assert named is not None
    assert (named.url, named.how) == ("http://10.0.0.1:8254", "FORENOTICE_ENDPOINT")
    given_ = discovery.given("10.0.0.2", {"FORENOTICE_ENDPOINT": "http://10.0.0.1:8254"})
    assert given_ is not None
    assert (given_.url, given_.how) == ("http://10.0.0.2", "given")


@pytest.mark.parametrize(
    "url", ["https://x", "http://x/metadata", "http://", "http://[::1", "http://u:secret@x", "ftp://x"]
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(RefusedError, match="is not a metadata endpoint"):
        remote(url)


@pytest.mark.parametrize(
    ("url", "place"),
    [("http://[::1]:8254/", ("::1", 8254)), ("127.0.0.1:1", ("127.0.0.1", 1)), ("http://x", ("x", 80))],
)
def test_endpoints(url: str, place: tuple[str, int]) -> None:
    assert play(follow(remote(url))).places == [place]
    assert remote(url).at.url == (url if "://" in url else f"http://{url}").rstrip("/")


def test_what_is_given_is_the_only_place(lease: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [NOBODY] * 20
    assert set(play(follow(remote("http://10.0.0.1", leases=lease)), *failing).places) == {("10.0.0.1", 80)}
    monkeypatch.setenv("FORENOTICE_ENDPOINT", "http://10.0.0.2")
    assert set(play(follow(remote(None, leases=lease)), *failing).places) == {("10.0.0.2", 80)}


def test_the_round_goes_on_until_one_answers_as_a_metadata_service(lease: list[str]) -> None:
    played = play(follow(remote(None, leases=lease)), NOBODY, STRANGER, NOBODY, NOBODY, STRANGER, GOOD, GOOD, GOOD)
    assert played.places == [USUAL, *BY_DHCP, USUAL, *BY_DHCP, BY_DHCP[1], BY_DHCP[1], BY_DHCP[1]]
    failed, *good = played.told
    assert failed.error is not None
    assert failed.error.message.startswith(
        "cannot reach the metadata endpoint http://169.254.169.254 (connection refused), "
        "http://168.63.129.16 (answered 404), http://168.63.129.16:8080 (connection refused): "
    )
    assert [news.error for news in good] == [None] * 3


@pytest.mark.parametrize("answer", [GOOD, said(), said(b'{"error":"unknown caller"}', status=404)], ids=str)
def test_once_it_has_answered_it_is_stuck_to(lease: list[str], answer: Response) -> None:
    guest = remote(None, leases=lease)
    assert guest.at.how == "the usual address"
    assert set(play(follow(guest), NOBODY, answer, NOBODY, STRANGER, GOOD).places[1:]) == {BY_DHCP[0]}
    assert guest.at.how == "DHCP option 245"


def test_when_it_is_away_for_long_it_is_looked_for_again(lease: list[str]) -> None:
    guest = remote(None, leases=lease)
    one_tagged = said(document(EVENT), etag='"1"')
    faults: list[Response | Failing] = [NOBODY] * 6
    played = play(follow(guest), NOBODY, one_tagged, *faults, GOOD, GOOD)
    assert played.places == [USUAL, *[BY_DHCP[0]] * 7, USUAL, USUAL, USUAL]
    # The tag of one service means nothing to another.
    assert played.headers("If-None-Match")[-3] is None
    assert [len(news.document.events) for news in played.told if news.document][-2:] == [0, 0]


def test_nothing_is_approved_at_a_stranger(lease: list[str]) -> None:
    guest = remote(None, leases=lease)
    with pytest.raises(EndpointError, match="answered 404"):
        perform(guest.approve("A"), in_turn(NOBODY, STRANGER, STRANGER))
    perform(guest.approve("A"), in_turn(NOBODY, GOOD, said()))
    assert guest.at.host == "168.63.129.16"


def test_a_lease_that_comes_later_is_found(tmp_path: Path) -> None:
    guest = remote(None, leases=[f"{tmp_path}/*.lease"])
    assert play(follow(guest), NOBODY).places == [USUAL, USUAL]
    (tmp_path / "eth0.lease").write_text(DHCLIENT % "a8:3f:81:10")
    assert play(follow(guest), NOBODY, GOOD).places == [USUAL, BY_DHCP[0], BY_DHCP[0]]


def test_endpoints_where_guests_look_for_them() -> None:
    """In a network namespace of its own, so that nothing is ever sent to these addresses outside."""
    unshare = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode and not os.environ.get("CI"):
        pytest.skip("this system does not permit network namespaces (run as root, or allow user namespaces)")
    command = [*unshare, sys.executable, "-m", "tests.client.in_namespace"]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["found"]), done.stdout + done.stderr


# This VM's own name: given, by variable, from the endpoint, or the host name

HOST = socket.gethostname().partition(".")[0]


def test_a_name_that_is_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENOTICE_NAME", "by-variable")
    assert perform(remote("10.0.0.1", name="given-to-us").find_name(), in_turn()) == Name("given-to-us", "given")
    assert perform(remote().find_name(), in_turn()) == Name("by-variable", "FORENOTICE_NAME")


def test_the_endpoint_is_asked_once() -> None:
    guest = remote()
    assert perform(guest.find_name(), in_turn(said(b"\xef\xbb\xbfweb_0\n"))) == Name("web_0", "the endpoint")
    assert perform(guest.me(), in_turn()) == "web_0"


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
