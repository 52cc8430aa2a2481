"""Connections to hosts: kept, told of changes, made again, and never waited for without end."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest
from tests.acceptance.running import until

from forenotice.core import errors
from forenotice.drivers.libvirt import connections as module
from forenotice.drivers.libvirt.connections import Connections, HostError, UnreachableError
from forenotice.runtime import Runtime

DEFAULT = "test:///default"


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections(Runtime())
    yield made
    made.close()


def test_a_uri_that_names_a_program_is_not_opened(connections: Connections) -> None:
    with pytest.raises(errors.RefusedError, match="names a program"):
        connections.to("qemu+ssh://a/system?command=/bin/sh")


def test_a_file_that_is_no_host_is_not_quoted(connections: Connections, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("fn_secret\n")
    with pytest.raises(UnreachableError, match="is not XML") as refused:
        connections.to(f"test://{tmp_path}/token").ask(names)
    assert "fn_secret" not in refused.value.message


def names(link: Any) -> list[str]:
    return [domain.name() for domain in link.listAllDomains()]


def test_a_connection_is_kept_and_its_changes_are_told(connections: Connections) -> None:
    told: list[tuple[str, str | None]] = []
    connections.watch(lambda uri, uuid: told.append((uri, uuid)))
    host = connections.to(DEFAULT)
    assert connections.to(DEFAULT) is host
    assert not host.is_connected
    assert host.ask(names) == ["test"]
    assert host.is_connected
    assert told == [(DEFAULT, None)]
    uuid = host.ask(lambda link: link.lookupByName("test").UUIDString())

    def suspend_and_resume(link: Any) -> None:
        link.lookupByName("test").suspend()
        link.lookupByName("test").resume()

    host.ask(suspend_and_resume)
    until(lambda: (DEFAULT, uuid) in told)


def test_what_libvirt_refuses_has_its_reason(connections: Connections) -> None:
    with pytest.raises(HostError, match="Domain not found") as refused:
        connections.to(DEFAULT).ask(lambda link: link.lookupByName("nobody"))
    assert refused.value.number == libvirt.VIR_ERR_NO_DOMAIN
    with pytest.raises(ZeroDivisionError):
        connections.to(DEFAULT).ask(lambda _: 1 / 0)


def test_the_reason_is_known_if_garbage_is_collected_before_it_is_read(connections: Connections) -> None:
    def ask(link: Any) -> None:
        other = link.lookupByName("test")
        assert libvirt.libvirtmod.virDomainLookupByName(link._o, "nobody") is None
        # libvirt forgets the error of the last call with the next.
        del other
        raise libvirt.libvirtError("virDomainLookupByName() failed")

    with pytest.raises(HostError, match="Domain not found") as refused:
        connections.to(DEFAULT).ask(ask)
    assert refused.value.number == libvirt.VIR_ERR_NO_DOMAIN


def test_a_host_that_is_not_there_is_tried_again_after_a_pause(connections: Connections, tmp_path: Path) -> None:
    host = connections.to(f"qemu+unix:///system?socket={tmp_path}/nobody")
    with pytest.raises(UnreachableError, match="cannot be reached") as first:
        host.ask(names)
    with pytest.raises(UnreachableError) as second:
        host.ask(names)
    assert second.value.message == first.value.message


def test_a_call_that_hangs_is_given_up(connections: Connections) -> None:
    host, end = connections.to(DEFAULT), threading.Event()
    with pytest.raises(UnreachableError, match=r"has not answered for 0\.1 s"):
        host.ask(lambda _: end.wait(60), seconds=0.1)
    assert host.ask(names) == ["test"]
    end.set()


def test_a_host_that_takes_connections_and_says_nothing_is_given_up(connections: Connections, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        host = connections.to(f"qemu+unix:///system?socket={tmp_path}/silent")
        for _ in range(2):
            with pytest.raises(UnreachableError, match="has not answered"):
                host.ask(names, seconds=0.2)
    # Its connection was refused or reset when the listener closed.
    until(lambda: _refused(host))


def _refused(host: module.Connection) -> bool:
    try:
        host.ask(names, seconds=1)
    except UnreachableError as error:
        return "cannot be reached" in error.message
    return False
