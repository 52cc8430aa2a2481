"""Listeners of one network interface, and in another network namespace."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.databases import new_sqlite
from tests.metadata.running import PATH, WEB_ADDRESSES, Running, running
from tests.namespaces import Namespace, require_namespaces

from forenotice.core import errors
from forenotice.settings import Listener, values

ENDPOINT = "169.254.169.254"
URL = f"http://{ENDPOINT}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
CURL = ("curl", "-sS", "--noproxy", "*", "--max-time", "60", "-H", "Metadata: true", URL)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    require_namespaces()
    with closing(Namespace()) as made:
        yield made


@pytest.fixture
def other() -> Iterator[Namespace]:
    with closing(Namespace()) as made:
        yield made


def listener(text: str) -> Listener:
    return values.listener(text)


def refusal(text: str) -> str:
    with pytest.raises(errors.RefusedError) as refused:
        Running(listeners=(listener(text),))
    return str(refused.value)


def test_one_server_answers_at_the_same_address_in_several_namespaces(namespace: Namespace, other: Namespace) -> None:
    for each in (namespace, other):
        each.run("ip", "address", "add", f"{ENDPOINT}/32", "dev", "lo")
        for address in WEB_ADDRESSES:
            each.run("ip", "route", "replace", "local", f"{address}/32", "dev", "lo")
    places = [listener(f"{ENDPOINT}:80@{namespace.path}"), listener(f"{ENDPOINT}:80@{other.path}=db")]
    with running(listeners=places) as server:
        # By address here, by listener there.
        for address, name in zip(WEB_ADDRESSES, ("web-0", "web-1"), strict=False):
            assert namespace.run(*CURL, "--interface", address) == name
            assert other.run(*CURL, "--interface", address) == "db"
        assert [str(each) for each in server.server.listening] == [str(place) for place in places]
        # The server itself has stayed where it was.
        assert ENDPOINT not in subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=True).stdout


def test_each_tap_has_a_listener_at_the_same_address(namespace: Namespace, other: Namespace) -> None:
    """Whoever is at the other end of a tap is its VM, whatever the source address."""
    third = Namespace()
    with closing(third):
        namespace.run("ip", "address", "add", f"{ENDPOINT}/32", "dev", "lo")
        for tap, guest in (("tap0", other), ("tap1", third)):
            namespace.run("ip", "link", "add", tap, "type", "veth", "peer", "name", "eth0", "netns", str(guest.pid))
            namespace.run("ip", "link", "set", tap, "up")
            guest.run("ip", "link", "set", "eth0", "up")
            # Both have the same address, and that of a VM.
            guest.run("ip", "address", "add", "10.0.0.4/32", "dev", "eth0")
            guest.run("ip", "route", "add", "default", "dev", "eth0")
        namespace.run("ip", "address", "add", "10.0.0.1/32", "dev", "lo")
        places = [
            listener(f"{ENDPOINT}:80%{tap}@{namespace.path}={vm}") for tap, vm in (("tap0", "db"), ("tap1", "web-1"))
        ]
        with running(listeners=places):
            assert (other.run(*CURL), third.run(*CURL)) == ("db", "web-1")
            # Nobody else gets a connection.
            assert namespace.attempt(*CURL).returncode != 0


def test_a_listener_of_one_interface_in_the_own_namespace() -> None:
    with running(listeners=(listener("127.0.0.1:0%lo"),)) as server:
        assert server.ask(PATH).status == 200
        assert str(server.server.listening[0]) == f"127.0.0.1:{server.port}%lo"


def test_what_cannot_be_used_is_refused_with_what_to_do(namespace: Namespace, tmp_path: Path) -> None:
    assert refusal("127.0.0.1:0%nosuch0") == (
        "Guests cannot be served at 127.0.0.1:0%nosuch0: there is no interface nosuch0 in this network namespace: "
        "`ip link` shows those there are."
    )
    assert f"no interface nosuch0 in {namespace.path}" in refusal(f"127.0.0.1:0%nosuch0@{namespace.path}")
    assert "there is no such network namespace" in refusal(f"127.0.0.1:0@{tmp_path / 'none'}")
    (tmp_path / "file").touch()
    assert "that is not a network namespace" in refusal(f"127.0.0.1:0@{tmp_path / 'file'}")
    assert "Cannot assign requested address" in refusal(f"192.0.2.1:80@{namespace.path}")
    with running(listeners=(listener(f"127.0.0.1:80@{namespace.path}"),)):
        assert "in use" in refusal(f"127.0.0.1:80%lo@{namespace.path}")


@pytest.mark.parametrize(
    ("place", "capability"), [("127.0.0.1:0@{path}", "sys_admin"), ("127.0.0.1:80%lo", "net_bind_service")]
)
def test_a_lack_of_privileges_names_the_capability(
    place: str, capability: str, namespace: Namespace, tmp_path: Path
) -> None:
    new_sqlite(tmp_path)
    serve = (sys.executable, "-m", "forenotice", "serve", "--data", str(tmp_path), "--control", "127.0.0.1:0")
    place = place.format(path=namespace.path)
    done = namespace.attempt("setpriv", f"--bounding-set=-{capability}", *serve, "--metadata", place)
    assert done.returncode == 1
    assert f"CAP_{capability.upper()}" in done.stderr


def test_a_port_of_a_bridge_is_refused_and_the_bridge_named(namespace: Namespace, tmp_path: Path) -> None:
    """Packets of a port arrive at the bridge: its listener would never have a caller."""
    namespace.run("ip", "link", "add", "br7", "type", "bridge")
    namespace.run("ip", "link", "add", "tap7", "type", "veth", "peer", "name", "eth7")
    namespace.run("ip", "link", "set", "tap7", "master", "br7")
    # With the directory of the namespace's own interfaces, as on any host.
    new_sqlite(tmp_path)
    serve = f"forenotice serve --data {tmp_path} --control 127.0.0.1:0 --metadata 127.0.0.1:0%tap7"
    script = f"mount -t sysfs sysfs /sys && exec {sys.executable} -m {serve}"
    done = namespace.attempt("unshare", "--mount", "sh", "-c", script)
    assert done.returncode == 1
    assert "tap7 is a port of the bridge br7, where its packets arrive: give %br7" in done.stderr
