"""DESIGN.md: the four ways to know a caller, their order, and that a failed proof is refused."""

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.metadata import running as rig
from tests.metadata.running import APPROVAL, DB, DB_VM, PATH, WEB_VMS, Client, Reply, Running, request, running, until

from forenotice import publication
from forenotice.clock import SystemClock
from forenotice.metadata import identity
from forenotice.metadata.options import Options, Proxy
from forenotice.metadata.published import PublishedFleet
from forenotice.publication import Publication
from forenotice.settings import Address, Listener, ProxyStyle

SECRET = b"a shared secret"
PROXY_ADDRESS = "127.5.0.1"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


def proxy(style: ProxyStyle) -> Options:
    networks = (ipaddress.ip_network("127.5.0.0/24"), ipaddress.ip_network("fd00::/64"))
    return Options(rate=None, default_vm="web-1", proxy=Proxy(trusted=networks, style=style, secret=SECRET))


def sign(message: str) -> str:
    return hmac.new(SECRET, message.encode(), hashlib.sha256).hexdigest()


def forenotice_headers(
    name: str = "db",
    skew: float = 0,
    signature: str | None = None,
    *,
    at: str | None = None,
    nonce: str | None = None,
    method: str = "GET",
    target: str = NAME,
) -> tuple[str, ...]:
    at = str(int(datetime.now(UTC).timestamp() + skew)) if at is None else at
    nonce = secrets.token_urlsafe() if nonce is None else nonce
    proof = signature or sign("\n".join((name, at, nonce, method, target)))
    return (
        "Metadata: true",
        f"X-Forenotice-VM: {name}",
        f"X-Forenotice-Time: {at}",
        f"X-Forenotice-Nonce: {nonce}",
        f"X-Forenotice-Signature: {proof}",
    )


def openstack_headers(vm_id: str = DB_VM.vm_id, signature: str | None = None) -> tuple[str, ...]:
    return (
        "Metadata: true",
        "X-Forwarded-For: 10.0.0.4",
        "X-Tenant-ID: 1",
        f"X-Instance-ID: {vm_id}",
        f"X-Instance-ID-Signature: {signature or sign(vm_id)}",
    )


def name_of(server: Running, source: str = PROXY_ADDRESS, headers: tuple[str, ...] = ("Metadata: true",)) -> str:
    reply = server.ask(NAME, source=source, headers=headers)
    return reply.text if reply.status == 200 else str(reply.status)


def test_by_address_and_by_default() -> None:
    with running(options=Options(default_vm="db")) as server:
        assert name_of(server, "127.1.0.22") == "web-1"
        assert name_of(server, "127.9.9.9") == "db"
    with running(options=Options(default_vm="nobody")) as server:
        assert name_of(server, "127.9.9.9") == "404"


def test_by_listener_before_all_else(tmp_path: Path) -> None:
    listeners = (
        Listener(at=Address(host="127.0.0.1", port=0), vm="db"),
        Listener(at=tmp_path / "web.sock", vm="web-0"),
        Listener(at=tmp_path / "any.sock"),
        Listener(at=tmp_path / "nobody.sock", vm="nobody"),
    )
    with running(options=proxy(ProxyStyle.FORENOTICE), listeners=listeners) as server:
        assert name_of(server, "127.1.0.22") == "db"
        assert name_of(server, PROXY_ADDRESS, forenotice_headers("web-0")) == "db"
        assert name_of(server, PROXY_ADDRESS, forenotice_headers("web-0", signature="0" * 64)) == "db"
        names = []
        for path in ("web.sock", "any.sock", "nobody.sock"):
            with server.connect_unix(tmp_path / path) as client:
                reply = client.ask(request(NAME))
                names.append(reply.text if reply.status == 200 else str(reply.status))
        assert names == ["web-0", "web-1", "404"]


FORWARDED = ("X-Forwarded-For: 10.0.0.4", "Forwarded: for=10.0.0.4", "Via: 1.1 neutron")
FAILED: Sequence[Callable[[], tuple[str, ...]]] = (
    lambda: forenotice_headers(skew=-62),
    lambda: forenotice_headers(skew=65),
    lambda: forenotice_headers(signature="0" * 64),
    lambda: forenotice_headers(signature="\u00e9"),
    lambda: forenotice_headers()[:-1],
    lambda: ("Metadata: true", "X-Forenotice-VM: db"),
    lambda: ("Metadata: true", "X-Forenotice-Signature: x"),
    lambda: forenotice_headers(at="x"),
    lambda: forenotice_headers(at=""),
    lambda: forenotice_headers(at="9" * 400),
    lambda: forenotice_headers(at="9" * 5000),
    lambda: forenotice_headers(nonce="short"),
    lambda: forenotice_headers(nonce="x" * 65),
    lambda: forenotice_headers(nonce="with blanks in between"),
    lambda: forenotice_headers(method="PUT"),
    lambda: forenotice_headers(target=NAME.replace("text", "json")),
    *(lambda header=header: ("Metadata: true", header) for header in FORWARDED),
    lambda: (*forenotice_headers("web-0"), "X-Forenotice-VM: db"),
    openstack_headers,
)


def test_by_a_signed_name() -> None:
    with running(options=proxy(ProxyStyle.FORENOTICE)) as server:
        for skew in (-50, 0, 50):
            assert name_of(server, headers=forenotice_headers(skew=skew)) == "db"
        for header in FORWARDED:
            assert name_of(server, headers=(*forenotice_headers(), header)) == "db"
        assert name_of(server, headers=forenotice_headers("nobody")) == "404"
        # A failed proof is refused, and no other way is tried.
        for made in FAILED:
            headers = made()
            assert name_of(server, headers=headers) == "403", headers
            assert server.ask(PATH, method="POST", body=APPROVAL, source=PROXY_ADDRESS, headers=headers).status == 403
        assert server.guests.approvals == []
        # Without a proof it is a caller like any other, and only a trusted address can speak for others.
        assert name_of(server) == "web-1"
        assert name_of(server, "127.1.0.21", forenotice_headers()) == "web-0"
        assert name_of(server, "127.6.0.1", forenotice_headers()) == "web-1"
        assert server.ask(source="127.1.0.21", headers=(*forenotice_headers(), FORWARDED[0])).status == 400
        # A proof is fresh by the clock that proxies see, also when the journal is ahead of it.
        server.clock.not_below(server.clock.now() + timedelta(days=1))
        assert name_of(server, headers=forenotice_headers("db")) == "db"


def test_by_a_signed_vm_id() -> None:
    with running(options=proxy(ProxyStyle.OPENSTACK)) as server:
        for headers, name in (
            (openstack_headers(), "db"),
            (openstack_headers(WEB_VMS[0].vm_id), "web-0"),
            (openstack_headers(WEB_VMS[0].vm_id.lower()), "web-0"),
            (openstack_headers("8a506c35-679a-4f78-9d76-00000000ffff"), "404"),
            (openstack_headers(signature="0" * 64), "403"),
            (openstack_headers()[:-1], "403"),
            (openstack_headers(DB_VM.vm_id.upper(), sign("x")), "403"),
        ):
            assert name_of(server, headers=headers) == name


def said(server: Running, *headers: str) -> str:
    reply = server.ask(source=PROXY_ADDRESS, headers=("Metadata: true", *headers))
    return f"{reply.status} {json.loads(reply.body)['error']}"


@pytest.mark.parametrize("style", ProxyStyle)
def test_a_proxy_may_name_us_as_it_likes_when_its_proof_is_sound(style: ProxyStyle) -> None:
    """It passes on what it was configured with; a web page could not have signed that."""
    made = {
        ProxyStyle.FORENOTICE: (forenotice_headers(), forenotice_headers(signature="0" * 64)),
        ProxyStyle.OPENSTACK: (openstack_headers(), openstack_headers(signature="0" * 64)),
    }
    sound, unsound = made[style]
    with running(options=proxy(style)) as server, server.connect(PROXY_ADDRESS) as client:

        def ask(headers: tuple[str, ...]) -> int:
            client.send(request(NAME, headers=headers).replace(b"169.254.169.254", b"controller:8775"))
            return client.reply().status

        assert [ask(sound), ask(unsound), ask(("Metadata: true",))] == [200, 403, 400]


def test_a_trusted_proxy_is_told_what_its_proof_lacks() -> None:
    options = replace(proxy(ProxyStyle.FORENOTICE), default_vm=None)
    with running(options=options) as server:
        lacking = "403 Forbidden. The proxy's proof of the VM lacks"
        rest = "X-Forenotice-Time, X-Forenotice-Nonce, X-Forenotice-Signature"
        assert said(server, "X-Forenotice-VM: db") == f"{lacking} {rest}"
        everything = f"X-Forenotice-VM, {rest}"
        assert said(server, "X-Forwarded-For: 10.0.0.4") == f"{lacking} {everything}"
        assert said(server) == (
            "404 Not found. No VM is known at the address of this request:"
            f" a proxy must prove for which it asks, by {everything}"
        )
        assert said(server, *forenotice_headers(signature="0" * 64)[1:]).endswith("is stale or wrong")
        assert said(server, *forenotice_headers("nobody", target=PATH)[1:]) == "404 Not found. There is no such VM"
    with running(options=replace(proxy(ProxyStyle.OPENSTACK), default_vm=None)) as server:
        assert said(server, f"X-Instance-ID: {DB_VM.vm_id}") == f"{lacking} X-Instance-ID-Signature"


def test_what_is_remembered_of_others_does_not_hold_for_a_proxy() -> None:
    """The same bytes mean another VM on a proxy's connection, and nothing on anybody else's."""
    with running(options=proxy(ProxyStyle.FORENOTICE)) as server:
        headers = (*forenotice_headers(target=PATH), "Connection: close")
        for source, tag in (("127.1.0.21", '"2-webtag"'), (PROXY_ADDRESS, '"1-dbtag"'), ("127.1.0.21", '"2-webtag"')):
            with server.connect(source) as client:
                assert client.ask(request(headers=headers))["ETag"] == tag
        # Nor can the proxy's own be sent again.
        assert server.ask(source=PROXY_ADDRESS, headers=headers).status == 403


def test_a_proof_is_for_one_request_of_one_method_and_one_path() -> None:
    with running(options=proxy(ProxyStyle.FORENOTICE)) as server:
        once = forenotice_headers(target=PATH)
        assert server.ask(headers=once, source=PROXY_ADDRESS).status == 200
        again = server.ask(headers=once, source=PROXY_ADDRESS)
        assert again.status == 403
        assert "used before" in again.text
        nonce = secrets.token_urlsafe()
        assert name_of(server, headers=forenotice_headers(nonce=nonce)) == "db"
        # Whoever has the secret cannot use a nonce again either, whatever it is for.
        assert name_of(server, headers=forenotice_headers("web-0", skew=3, nonce=nonce)) == "403"
        for_a_poll = forenotice_headers(target=PATH)
        refused = server.ask(PATH, method="POST", body=APPROVAL, headers=for_a_poll, source=PROXY_ADDRESS)
        assert refused.status == 403
        assert name_of(server, headers=for_a_poll) == "403"
        for_an_approval = forenotice_headers("web-0", method="POST", target=PATH)
        accepted = server.ask(PATH, method="POST", body=APPROVAL, headers=for_an_approval, source=PROXY_ADDRESS)
        assert accepted.status == 200


def test_a_proxy_that_signs_as_the_docs_say_is_believed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "identity.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    told: dict[str, Any] = {}
    exec(snippet, told)
    with running(options=proxy(ProxyStyle.FORENOTICE)) as server:
        for _ in range(2):
            signed = told["headers"]("db", "GET", NAME, SECRET)
            assert name_of(server, headers=("Metadata: true", *(": ".join(each) for each in signed.items()))) == "db"


def test_nonces_are_remembered_as_long_as_they_could_be_used_and_not_without_end() -> None:
    nonces = identity.Nonces(most=4)

    def fault(nonce: bytes, at: int, *, proxy: str = "one", oldest: float = 140) -> str | None:
        try:
            nonces.take(nonce, at, oldest, proxy)
        except identity.UnprovenError as error:
            return str(error)
        return None

    assert fault(b"a", 100, oldest=40) is None
    for at, proxy in ((100, "one"), (101, "one"), (100, "other")):
        assert fault(b"a", at, proxy=proxy, oldest=40) == identity.REPLAYED
    # Long after, the same would be refused for its time; the nonce may come back with another.
    assert [fault(nonce, at) for nonce, at in ((b"a", 200), (b"b", 250), (b"c", 250), (b"d", 250))] == [None] * 4
    assert fault(b"e", 251) == identity.TOO_MANY
    # A proxy whose clock is right has its share beside one that is fast and busy, and nothing is forgotten for it.
    assert [fault(nonce, 200, proxy="other") for nonce in (b"e", b"f", b"g")] == [None, None, identity.TOO_MANY]
    assert fault(b"b", 250, proxy="other") == identity.REPLAYED
    assert fault(b"g", 250) == identity.TOO_MANY
    # What is too old is forgotten, and so is who sent it.
    assert [fault(nonce, 251, oldest=201) for nonce in (b"g", b"h")] == [None, identity.TOO_MANY]


def test_a_proxys_connection_serves_many_vms() -> None:
    with running(options=proxy(ProxyStyle.OPENSTACK)) as server, server.connect(PROXY_ADDRESS) as client:

        def ask(vm_id: str, *more: str) -> Reply:
            client.send(request(headers=(*openstack_headers(vm_id), *more)))
            return client.reply()

        assert [ask(vm.vm_id)["ETag"] for vm in (DB_VM, WEB_VMS[0], DB_VM)] == ['"1-dbtag"', '"2-webtag"', '"1-dbtag"']
        assert ask(DB_VM.vm_id, 'If-None-Match: "1-dbtag"').status == 304


def test_a_wait_behind_a_proxy_is_its_vms_own() -> None:
    with running(options=proxy(ProxyStyle.OPENSTACK)) as server:

        def wait(client: Client) -> None:
            client.send(request(headers=(*openstack_headers(), 'If-None-Match: "1-dbtag"', "Prefer: wait=30")))
            until(lambda: server.server.counters.waiting == 1)

        with server.connect(PROXY_ADDRESS) as client:
            wait(client)
            server.publisher.scopes([publication.of(rig.WEB, vms=WEB_VMS[:1])])
            server.settle()
            assert client.is_silent()
            server.show(2, scope=DB)
            assert client.reply()["ETag"] == '"2-dbtag"'
            client.send(request(headers=(*openstack_headers(), 'If-None-Match: "2-dbtag"', "Prefer: wait=30")))
            until(lambda: server.server.counters.waiting == 1)
            server.publisher.scopes([Publication(key=DB.key)])
            assert client.reply().status == 404


def test_an_address_that_goes_to_another_vm_changes_who_is_calling(server: Running) -> None:
    with server.connect("127.1.0.21") as client:
        assert client.ask(request(NAME)).text == "web-0"
        client.send(request() * 2)
        assert [client.reply()["ETag"] for _ in range(2)] == ['"2-webtag"'] * 2
        server.publisher.scopes(
            [
                publication.of(DB, vms=(replace(DB_VM, addresses=("127.1.0.21", "127.1.0.31")),)),
                publication.of(rig.WEB, vms=(replace(WEB_VMS[0], addresses=()), WEB_VMS[1])),
            ]
        )
        server.settle()
        assert client.ask(request())["ETag"] == '"1-dbtag"'
        assert client.ask(request(NAME)).text == "db"
        server.publisher.scopes([Publication(key=DB.key)])
        server.settle()
        assert client.ask(request()).status == 404


def test_ipv6_callers_are_known_too() -> None:
    fleet = (publication.of(DB, vms=(replace(DB_VM, addresses=("::1",)),)),)
    with (
        running(fleet=fleet, listeners=(Listener(at=Address(host="::1", port=0)), rig.ANYWHERE)) as server,
        Client(socket.create_connection(("::1", server.port), 10)) as client,
    ):
        assert client.ask(request(NAME)).text == "db"


@pytest.mark.parametrize(
    ("host", "address"), [("10.0.0.4", "10.0.0.4"), ("::ffff:10.0.0.4", "10.0.0.4"), ("FD00:0:0::4", "fd00::4")]
)
def test_addresses_are_written_as_the_fleet_writes_them(host: str, address: str) -> None:
    assert identity.canonical(host) == address


def test_a_link_local_caller_is_nobody_whichever_interface_it_comes_from() -> None:
    """As one that an older version has let into the fleet."""
    published = PublishedFleet()
    published.put_scopes([publication.of(DB, vms=(replace(DB_VM, addresses=("fe80::4", "169.254.0.4", "10.0.0.4")),))])
    callers = identity.Callers(published, Options(), SystemClock())
    assert callers.known(None, "10.0.0.4") is not None
    for host in ("fe80::4", "fe80::4%tap0", "169.254.0.4", "::ffff:169.254.0.4"):
        assert callers.known(None, identity.canonical(host)) is None
        assert callers.share(identity.canonical(host)) == identity.STRANGERS


def test_a_flood_of_strangers_is_not_a_flood_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as server, server.connect("127.9.9.9") as client:
        client.send(request() * 200)
        assert set(client.statuses(200)) == {404}
    lines = [line for line in capsys.readouterr().out.splitlines() if "caller.unknown" in line]
    assert 1 <= len(lines) <= 20
    assert "127.9.9.9" in lines[0]
