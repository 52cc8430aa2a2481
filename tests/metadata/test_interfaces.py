"""Listeners of one network interface, and in another network namespace."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.acceptance.running import until
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
    with pytest.raises(errors.ConflictError) as refused:
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


def test_a_listener_follows_its_interface(namespace: Namespace, other: Namespace) -> None:
    """A tap is made anew when its VM starts."""

    def plug() -> None:
        namespace.run("ip", "link", "add", "tap0", "type", "veth", "peer", "name", "eth0", "netns", str(other.pid))
        namespace.run("ip", "address", "add", f"{ENDPOINT}/32", "peer", "10.0.0.4/32", "dev", "tap0")
        namespace.run("ip", "link", "set", "tap0", "up")
        other.run("ip", "link", "set", "eth0", "up")
        other.run("ip", "address", "add", "10.0.0.4/32", "dev", "eth0")
        other.run("ip", "route", "add", "default", "dev", "eth0")

    plug()
    with running(listeners=[listener(f"{ENDPOINT}:80%tap0@{namespace.path}=db")]) as server:
        assert other.run(*CURL) == "db"
        namespace.run("ip", "link", "del", "tap0")
        until(lambda: "LISTEN" not in namespace.run("ss", "-ltn"), what="the listener is closed")
        plug()
        until(lambda: "LISTEN" in namespace.run("ss", "-ltn"), what="the listener is back")
        assert other.run(*CURL) == "db"
        assert [str(each) for each in server.server.listening] == [f"{ENDPOINT}:80%tap0@{namespace.path}=db"]


def test_a_listener_follows_the_name_of_a_namespace(namespace: Namespace, other: Namespace, tmp_path: Path) -> None:
    """But not a process, because another process can get its id."""

    def listening(where: Namespace) -> list[str]:
        return sorted(re.findall(r"0\.0\.0\.0:(8[01]) ", where.run("ss", "-ltn")))

    move = (
        "import ctypes, sys; there = open(sys.argv[1]); input(); "
        "assert not ctypes.CDLL(None).setns(there.fileno(), 0); print(flush=True); input()"
    )
    command = (*namespace.enter, sys.executable, "-c", move, str(other.path))
    name = tmp_path / "blue"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        by_process = Path(f"/proc/{process.pid}/ns/net")
        until(lambda: by_process.samefile(namespace.path), what="the process is in the namespace")
        name.symlink_to(by_process)
        with running(listeners=[listener(f"0.0.0.0:80@{by_process}=db"), listener(f"0.0.0.0:81@{name}=db")]):
            assert listening(namespace) == ["80", "81"]
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            until(lambda: listening(other), what="the listener is in the other namespace")
            assert (listening(namespace), listening(other)) == (["80"], ["81"])
            # What is gone is not held for ever.
            name.unlink()
            until(lambda: not listening(other), what="the listener lets go of the namespace")
            name.symlink_to(namespace.path)
            until(lambda: "81" in listening(namespace), what="the listener is back")
        process.communicate(b"\n")


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
