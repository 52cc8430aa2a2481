"""Listeners, limits on connections, and the stop."""

import ipaddress
import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.metadata import running as rig
from tests.metadata.running import ANYWHERE, WEB_ADDRESSES, Client, Running, limited, passed, request, running, until

from forenotice import descriptors, publication
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.metadata import identity
from forenotice.metadata import server as metadata_server
from forenotice.metadata.options import Limits, Options, Proxy
from forenotice.metadata.published import PublishedFleet
from forenotice.settings import Address, Listener, ProxyStyle

CLOSING = request(headers=("Metadata: true", "Connection: close"))


def test_several_listeners_at_once(tmp_path: Path) -> None:
    listeners = (ANYWHERE, ANYWHERE, Listener(at=tmp_path / "guests.sock"))
    with running(listeners=listeners, options=Options(default_vm="db")) as server:
        first, second, unix = server.server.bound
        assert isinstance(first, Address)
        assert isinstance(second, Address)
        assert first.port != second.port
        assert unix == tmp_path / "guests.sock"
        assert stat.S_IMODE(unix.stat().st_mode) == 0o660
        for place in (first, second):
            with socket.create_connection((place.host, place.port), 10) as connected:
                connected.sendall(CLOSING)
                assert connected.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        for _ in range(3):
            with server.connect_unix(unix) as client:
                assert client.ask(CLOSING)["ETag"] == '"1-dbtag"'
                assert client.is_closed()
    assert not unix.exists()


def test_a_name_is_resolved() -> None:
    with running(listeners=(Listener(at=Address(host="localhost", port=0)),)) as server:
        assert {place.host for place in server.server.bound if isinstance(place, Address)} <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("one_hop", [True, False])
def test_answers_may_be_kept_from_passing_a_router(host: str, one_hop: bool) -> None:
    listener = Listener(at=Address(host=host, port=0), vm="db", one_hop=one_hop)
    with running(listeners=(listener,)) as server, socket.create_connection((host, server.port), 10) as connected:
        answered(Client(connected))

        def hops() -> int:
            (connection,) = server.server._endpoint.connections.open
            ours: socket.socket = connection._transport.get_extra_info("socket")
            return ours.getsockopt(*metadata_server.HOP_LIMIT[connected.family])

        assert (server.call(hops) == 1) is one_hop


def test_a_socket_left_behind_is_replaced_and_one_that_is_gone_or_anothers_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "guests.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with running(listeners=(Listener(at=path, vm="db"),)) as server, server.connect_unix(path) as client:
        assert client.ask(request()).status == 200
        path.unlink()
    with running(listeners=(Listener(at=path),)):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "guests.sock"
    with running(listeners=(ANYWHERE, Listener(at=path))) as server:
        for listener in (Listener(at=Address(host="127.0.0.1", port=server.port)), Listener(at=path)):
            with pytest.raises(errors.ConflictError, match=r"Guests cannot be served at .*in use"):
                Running(listeners=(ANYWHERE, listener))
        assert server.ask().status == 200
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(errors.ConflictError, match="not a socket"):
        Running(listeners=(Listener(at=precious),))
    assert precious.read_text() == "data"
    with pytest.raises(errors.ConflictError, match=r"192\.0\.2\.1:80"):
        Running(listeners=(Listener(at=Address(host="192.0.2.1", port=80)),))


def test_a_poll_per_connection_is_answered_every_time(server: Running) -> None:
    for _ in range(20):
        with server.connect() as client:
            reply = client.ask(CLOSING)
            assert (reply.status, reply["Connection"], reply["ETag"]) == (200, "close", '"2-webtag"')
            assert client.is_closed()
    server.show(3)
    server.settle()
    with server.connect() as client:
        assert client.ask(CLOSING)["ETag"] == '"3-webtag"'
    assert server.server.counters.polls_2xx == 21
    assert server.server.counters.accepted == 21


def test_one_poll_per_connection_passes_the_gates_too() -> None:
    with running(options=Options(rate=0.001, burst=2)) as server:
        assert [server.ask().status for _ in range(4)] == [200, 200, 429, 429]
        assert server.ask(source="127.9.9.9").status == 404


def test_a_document_larger_than_the_socket_takes_arrives_whole(server: Running) -> None:
    # More than the buffers of both ends together.
    events = [replace(rig.EVENT, id=f"C7061BAC-AFDC-4513-B24B-{number:012X}") for number in range(35_000)]
    server.show(3, *events)
    sizes = set()
    for _ in range(2):
        with server.connect() as client:
            client.send(CLOSING)
            sizes.add(len(client.reply().body))
            assert client.is_closed()
    (size,) = sizes
    assert size > 9_000_000


def join(stack: ExitStack, server: Running, source: str = WEB_ADDRESSES[0]) -> Client:
    return stack.enter_context(server.connect(source))


def answered(client: Client) -> Client:
    assert client.ask(request()).status == 200
    return client


def refused(client: Client) -> bool:
    """It is answered when it connects, and may be closed before it has asked."""
    with suppress(BrokenPipeError):
        client.send(request())
    reply = client.reply()
    return (reply.status, reply["Retry-After"], reply["Connection"]) == (503, "5", "close") and client.is_closed()


def logged(capsys: pytest.CaptureFixture[str], action: str) -> int:
    return sum(action in line for line in capsys.readouterr().out.splitlines())


def test_one_address_cannot_take_all_connections(capsys: pytest.CaptureFixture[str]) -> None:
    with running(options=limited(connections_each=2)) as server:
        assert server.ask().status == 200
        until(lambda: server.server.counters.open == 0)
        with server.connect() as first, server.connect() as second:
            answered(first)
            answered(second)
            for _ in range(3):
                with server.connect() as third:
                    assert refused(third)
            assert logged(capsys, "caller.crowds") == 1
            with server.connect("127.1.0.22") as other:
                answered(other)
            answered(first)
            # What needs no connection to stay is answered all the same.
            assert server.ask().status == 200
        until(lambda: server.server.counters.open == 0)
        with server.connect() as again:
            answered(again)
        assert server.server.counters.refused == 3


def test_a_crowd_that_comes_and_goes_is_logged_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits(connections_each=2, sweep_seconds=60)
    with running(options=Options(rate=None, limits=limits)) as server:
        for _ in range(3):
            with server.connect() as first, server.connect() as second, server.connect() as third:
                answered(first)
                answered(second)
                assert refused(third)
            until(lambda: server.server.counters.open == 0)
    assert logged(capsys, "caller.crowds") == 1


def test_connections_that_come_together_are_counted_too() -> None:
    with running(options=limited(connections_each=5)) as server, ExitStack() as stack:

        def burst() -> list[Client]:
            """On the loop, which accepts them all at once afterwards."""
            clients = [join(stack, server) for _ in range(20)]
            for client in clients:
                client.send(request())
            return clients

        assert sorted(client.reply().status for client in server.call(burst)) == [200] * 5 + [503] * 15


def test_proxies_and_shared_sockets_hold_as_many_connections_as_there_are(tmp_path: Path) -> None:
    proxy = Proxy(trusted=(ipaddress.ip_network("127.5.0.0/24"),), style=ProxyStyle.FORENOTICE, secret=b"secret")
    listeners = (ANYWHERE, Listener(at=tmp_path / "any.sock"), Listener(at=tmp_path / "db.sock", vm="db"))
    options = Options(rate=None, limits=Limits(connections_each=1), proxy=proxy, default_vm="db")
    with running(options=options, listeners=listeners) as server, ExitStack() as stack:
        for _ in range(3):
            answered(join(stack, server, "127.5.0.1"))
            answered(stack.enter_context(server.connect_unix(tmp_path / "any.sock")))
        # A listener's VM is one caller, wherever it calls from.
        answered(stack.enter_context(server.connect_unix(tmp_path / "db.sock")))
        assert refused(stack.enter_context(server.connect_unix(tmp_path / "db.sock")))


def test_when_all_places_are_taken_the_longest_idle_makes_room(capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits(connections=4, sweep_seconds=0.05)
    with running(options=Options(rate=None, limits=limits)) as server:
        with ExitStack() as stack:
            first = answered(join(stack, server))
            until(passed(0.3))
            others = [answered(join(stack, server)) for _ in range(4)]
            assert first.is_closed()
            for other in others:
                answered(other)
            assert logged(capsys, "connections.full") == 1
            assert server.server.counters.evicted == 1
        until(lambda: logged(capsys, "connections.free") == 1)
        until(lambda: server.server.counters.open == 0)


def test_nobody_with_a_request_under_way_makes_room() -> None:
    with running(options=limited(connections=2)) as server, ExitStack() as stack:
        first, second = (join(stack, server) for _ in range(2))
        server.guests.gate.clear()
        for client in (first, second):
            client.send(request(method="POST", body=rig.APPROVAL))
        until(lambda: server.server.counters.open == 2 and server.guests.entered == 1)
        assert refused(join(stack, server))
        assert server.server.counters.refused == 1
        server.guests.gate.set()
        assert {first.reply().status, second.reply().status} == {200}


@pytest.mark.parametrize("more", [b"", request()[:30], request()])
def test_the_oldest_wait_of_whoever_holds_most_makes_room_with_an_answer(more: bytes) -> None:
    limits = Limits(connections=3, sweep_seconds=0.05)
    with running(options=Options(rate=None, limits=limits)) as server, ExitStack() as stack:

        def wait(source: str, tag: str, more: bytes = b"") -> Client:
            client = join(stack, server, source)
            before = server.server.counters.waiting
            client.send(request(headers=("Metadata: true", f'If-None-Match: "{tag}"', "Prefer: wait=30")) + more)
            until(lambda: server.server.counters.waiting == before + 1)
            return client

        only = wait(rig.DB_ADDRESS, "1-dbtag")
        oldest = wait(WEB_ADDRESSES[0], "2-webtag", more)
        until(passed(0.2))
        other = wait(WEB_ADDRESSES[0], "2-webtag")
        answered(join(stack, server, WEB_ADDRESSES[1]))
        if not more:
            reply = oldest.reply()
            assert (reply.status, reply["Connection"]) == (304, "close")
        else:
            # It sends more than can be answered: whether it still reads the answer is not waited for.
            with suppress(ConnectionError):
                assert oldest.reply().status == 304
        assert oldest.is_closed()
        assert only.is_silent()
        assert other.is_silent()
        assert server.server.counters.waiting == 2
        until(lambda: server.server.counters.open == 3)


def test_whoever_takes_no_answers_makes_room() -> None:
    """Connections that read nothing, and those that were answered for the last time and stay."""
    limits = Limits(connections=2, sweep_seconds=0.05)
    with running(options=Options(rate=None, limits=limits)) as server, ExitStack() as stack:
        deaf, ended = (join(stack, server) for _ in range(2))
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.send(request() * 2000)
        assert ended.ask(b"nonsense\r\n\r\n" + request()).status == 400
        until(passed(0.2))
        others = [answered(join(stack, server, rig.DB_ADDRESS)) for _ in range(2)]
        assert server.server.counters.evicted == 2
        for other in others:
            answered(other)


@pytest.mark.parametrize("part", [request()[:30], request(method="POST", body=rig.APPROVAL)[:-1]])
def test_half_a_request_makes_room(part: bytes) -> None:
    with running(options=limited(connections=3)) as server, ExitStack() as stack:
        idle = answered(join(stack, server, rig.DB_ADDRESS))
        halves = [join(stack, server) for _ in range(2)]
        for half in halves:
            half.send(part)
        until(lambda: server.server.counters.open == 3)
        answered(join(stack, server, WEB_ADDRESSES[1]))
        assert server.server.counters.evicted == 1
        # Of whoever holds the most; another one may keep its only connection, though it has been idle for longer.
        answered(idle)


def test_strangers_share_what_one_vm_may_have() -> None:
    with running(options=limited(connections=12, connections_each=4)) as server, ExitStack() as stack:
        strangers = [join(stack, server, f"127.9.0.{number}") for number in range(1, 13)]
        for stranger in strangers:
            stranger.send(request()[:30])
        until(lambda: server.server.counters.refused == 8)
        assert server.server.counters.open == 4
        answered(join(stack, server))
        assert server.server.counters.evicted == 0


def test_a_vm_has_one_share_however_many_addresses_it_has() -> None:
    fleet = (publication.of(rig.DB, vms=(replace(rig.DB_VM, addresses=("127.1.0.31", "127.1.0.32")),)),)
    limits = Limits(connections_each=2)
    with running(options=Options(rate=None, limits=limits), fleet=fleet) as server, ExitStack() as stack:
        for address in ("127.1.0.31", "127.1.0.32"):
            answered(join(stack, server, address))
        assert refused(join(stack, server, "127.1.0.31"))


def test_where_anybody_may_call_a_share_is_an_address_or_sixty_four_bits_of_one() -> None:
    published = PublishedFleet()
    published.put_scopes([publication.of(rig.DB, vms=(replace(rig.DB_VM, addresses=("fd00::31", "10.0.0.31")),))])
    anybody = identity.Callers(published, Options(default_vm="db"), SystemClock())
    assert [anybody.share(address) for address in ("fd00::1", "fd00::ffff:2", "10.0.0.1")] == [
        *("fd00::/64", "fd00::/64", "10.0.0.1")
    ]
    assert {anybody.share("fd00::31"), anybody.share("10.0.0.31")} == {"db"}
    nobody = identity.Callers(published, Options(), SystemClock())
    assert len({nobody.share(address) for address in ("fd00::1", "fd00:1::1", "10.0.0.1")}) == 1


def test_limits_follow_what_the_system_allows() -> None:
    usual = Limits()
    assert usual.within(usual.connections + descriptors.SPARE) == usual
    few = usual.within(256)
    assert (few.connections, few.connections_each) == (128, 32)
    assert (descriptors.for_operators(256), descriptors.for_operators(2**20)) == (64, 256)
    some = usual.within(4096)
    assert (some.connections, some.connections_each) == (4096 - descriptors.SPARE, 256)


def test_a_client_that_is_gone_when_it_is_let_in_harms_nobody(server: Running) -> None:
    for data in (b"", request()):
        for _ in range(10):
            with server.connect() as client:
                client.send(data)
    assert server.ask().status == 200


def test_the_stop_closes_idle_connections_and_lets_nobody_in(server: Running) -> None:
    with server.connect() as client:
        assert client.ask(request()).status == 200
        port = server.port
        server.stop()
        assert client.is_closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)


def test_the_stop_waits_for_a_request_under_way(server: Running) -> None:
    data = request()
    with server.connect() as client:
        client.send(data[:30])
        assert client.is_silent()
        stopping = server.stop_soon()
        assert client.is_silent()
        reply = client.ask(data[30:])
        assert (reply.status, reply["Connection"]) == (200, "close")
        assert client.is_closed()
        stopping.result(10)


def test_the_stop_does_not_wait_for_ever(server: Running) -> None:
    server.guests.gate.clear()
    with server.connect() as client, server.connect() as other:
        client.send(request()[:30])
        other.send(request(method="POST", body=rig.APPROVAL))
        assert other.is_silent()
        server.stop(grace=0.2)
        assert client.is_closed()
        assert other.is_closed()
    server.guests.gate.set()


def test_publishing_after_the_end_is_not_an_error(server: Running) -> None:
    server.stop()
    server.show(9, scope=rig.DB)


def test_running_out_of_descriptors_is_survived() -> None:
    """In a process of its own, for its limit on descriptors."""
    script = Path(__file__).with_name("few_descriptors.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accept.failed" in done.stderr
    assert "descriptors.few" in done.stderr
