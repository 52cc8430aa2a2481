"""Hosts in namespaces: what is seen of them, what of theirs survives what, and that nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.running import until

from forenotice.core import errors
from forenotice.lab import hosts, packages
from forenotice.lab.hosts import Host
from forenotice.programs.background import Process

SLEEPER = ("sleep", "1000")
STARTER = """
import sys
from pathlib import Path
from forenotice.lab.hosts import Host
host = Host.start("host-a", Path(sys.argv[1]), bound=sys.argv[2] == "bound")
print(host.pid, flush=True)
sys.stdin.read()
"""
ROOTLESS = """
import sys
from pathlib import Path
from forenotice.lab import hosts
place = Path(sys.argv[1])
with hosts.Host.start("host-a", place / "a", number=1, bound=True) as one:
    with hosts.Host.start("host-b", place / "b", number=2, beside=one, bound=True) as other:
        hosts.connect(one, other)
        print(one.libvirtd is not None, other.libvirtd is not None, flush=True)
        print((place / "a" / "log" / "libvirtd.log").read_text())
"""


def links() -> set[str]:
    """Those that a host makes. Others come and go at any time."""
    return {name for _, name in socket.if_nameindex() if name == hosts.BRIDGE or name.startswith("to-")}


def mounts(host: Path) -> list[str]:
    """What is mounted where a host mounts something, or from its directory."""
    places = {"/proc", "/sys", "/run", *hosts.PLACES, *(f"/etc/{name}" for name in ("passwd", "group", "hosts"))}
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] in places or str(host) in line]


def in_network(host: Host, *argv: str) -> str:
    return subprocess.run(host.command(*argv), check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_host_has_a_network_a_name_and_processes_of_its_own(host: Host) -> None:
    assert (host.name, host.is_alive) == ("host-a", True)
    assert host.is_listening
    (bridge,) = json.loads(in_network(host, "ip", "-j", "address", "show", "dev", "br0"))
    assert [each["local"] for each in bridge["addr_info"] if each["family"] == "inet"] == ["10.77.0.1", hosts.METADATA]
    named = subprocess.run(
        [*host.enter(), "--uts", "hostname"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert named == "host-a\n"
    assert socket.gethostname() != "host-a"
    assert host.libvirtd in host.processes()


def test_nothing_of_a_host_is_seen_outside_or_left_behind(place: Path) -> None:
    before = links(), mounts(place)
    with Host.start("host-a", place / "a", bound=True) as host:
        assert (links(), mounts(place)) == before
        assert host.libvirtd in (running := host.processes())
    assert (links(), mounts(place)) == before
    assert not any(each.is_alive for each in running)
    assert not host.is_listening
    host.stop()
    assert host.processes() == []


def test_a_host_where_libvirtd_has_never_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages make no /var/lib/libvirt. The host sees one, among what there is; on the machine there is none."""
    var = place / "var"
    (var / "other" / "kept").mkdir(parents=True)
    (var / "link").symlink_to("other")
    monkeypatch.setitem(hosts.PLACES, str(var / "libvirt"), "more")
    with Host.start("host-a", place / "a", bound=True) as host:
        (place / "a" / "more" / "own").touch()
        seen = Path(f"/proc/{host.pid}/root{var}")
        assert {path.relative_to(seen).as_posix() for path in seen.rglob("*")} == {
            *("link", "other", "other/kept"),
            *("libvirt", "libvirt/own"),
        }
        assert (seen / "link" / "kept").is_dir()
        assert sorted(path.name for path in var.iterdir()) == ["link", "other"]


def test_a_libvirtd_that_is_killed_leaves_the_rest_running(host: Host) -> None:
    first = host.libvirtd
    host.kill_libvirtd()
    assert host.is_alive
    assert host.libvirtd is None
    assert not host.is_listening
    host.restart_libvirtd()
    assert host.is_listening
    assert host.libvirtd != first


def test_what_a_libvirtd_has_just_forked_is_killed_with_it(host: Host, place: Path) -> None:
    """Until it becomes another program it has the name, and when its parent has ended, the parent of a libvirtd."""
    (place / "libvirtd").symlink_to("/bin/sleep")
    orphan = f"{place}/libvirtd 1000 >/dev/null 2>&1 &"
    subprocess.run([*host.enter(), "--pid", "sh", "-c", orphan], check=True, timeout=60)
    until(lambda: len([name for _, name, _ in host._processes() if name == "libvirtd"]) > 1, what="both are there")
    host.kill_libvirtd()
    assert host.libvirtd is None
    assert host.is_alive


def test_hosts_reach_each_other_over_a_cable(host: Host, place: Path) -> None:
    with Host.start("host-b", place / "b", number=2, beside=host, bound=True) as other:
        hosts.connect(host, other)
        listener = (sys.executable, "-c", LISTEN, other.address)
        with subprocess.Popen(other.command(*listener), stdout=subprocess.PIPE, text=True) as listening:
            assert listening.stdout is not None
            port = listening.stdout.readline().strip()
            said = in_network(host, sys.executable, "-c", CALL, other.address, port)
            assert said == f"{host.address}\n"


LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, (peer, _) = server.accept()
    connection.sendall(peer.encode())
"""
CALL = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(100).decode())"


@pytest.mark.parametrize("how", ["bound", "free"])
def test_a_host_whose_starter_is_killed(place: Path, how: str) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(place / "a"), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        host = Host.find(place / "a")
        assert host is not None
        assert host.pid == pid
        starter.kill()
    try:
        if how == "bound":
            until(lambda: not host.is_alive, what="the host has ended with its starter")
        else:
            assert host.is_listening
            with pytest.raises(errors.ConflictError, match="host host-a is running already"):
                Host.start("host-a", place / "a")
    finally:
        host.stop()
    assert not host.is_alive


def test_a_first_process_whose_starter_dies_before_it_has_recorded_it(place: Path) -> None:
    """It ends by itself, because nobody would find it."""
    starter = hosts._start(place, None, bound=False)
    assert starter.stdout is not None
    first = Process.of(int(starter.stdout.readline()))
    assert first.is_alive
    assert starter.stdin is not None
    starter.stdin.close()
    assert first.wait(60)
    starter.stdout.close()
    assert starter.wait(60) == 0


def test_a_host_without_root(needed: None, place: Path) -> None:
    """A user namespace in which we are somebody: what follows has no more rights than any user has."""
    somebody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    command = [*(somebody if os.geteuid() == 0 else []), sys.executable, "-c", ROOTLESS, str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"user namespaces are not allowed here: {done.stderr}")
    assert done.stdout.startswith("True True\n"), (done.stdout, done.stderr)


def test_what_cannot_be_started_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hosts.HostError, match="too long for a socket"):
        Host.start("host-a", place / ("long" * 40))
    monkeypatch.setattr(packages, "PATH", str(place))
    with pytest.raises(packages.MissingError, match="apt-get install --no-install-recommends libvirt-daemon "):
        Host.start("host-a", place / "a")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up a right of root's")
def test_a_root_that_may_not_make_namespaces_is_told_so(place: Path) -> None:
    without = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    command = [*without, sys.executable, "-c", STARTER, str(place / "a"), "bound"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert "unshare failed: Operation not permitted: run this where root may make namespaces" in done.stderr


def test_a_libvirtd_that_refuses_to_start_is_quoted(place: Path) -> None:
    (place / "a" / "etc").mkdir(parents=True)
    bad = place / "bin"
    bad.mkdir()
    for name in ("qemu-system-x86_64", "ip", "unshare", "setpriv", "nsenter"):
        (bad / name).symlink_to(packages.program(name))
    (bad / "libvirtd").write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    (bad / "libvirtd").chmod(0o755)
    before, packages.PATH = packages.PATH, str(bad)
    try:
        with pytest.raises(hosts.HostError, match="host host-a cannot be started: libvirtd has ended; no such luck"):
            Host.start("host-a", place / "a", bound=True)
    finally:
        packages.PATH = before
    found = Host.find(place / "a")
    assert found is not None
    assert not found.is_alive


def test_a_process_is_not_taken_for_a_later_one() -> None:
    with subprocess.Popen(SLEEPER) as child:
        ours = Process.of(child.pid)
        other = Process(pid=child.pid, started=ours.started - 1, boot=ours.boot)
        earlier = Process(pid=child.pid, started=ours.started, boot="another boot")
        assert [each.is_alive for each in (ours, other, earlier)] == [True, False, False]
        assert [each.send(signal.SIGKILL) for each in (other, earlier)] == [False, False]
        assert child.poll() is None
        assert ours.send(signal.SIGKILL)
    assert not ours.is_alive
    assert not ours.send(signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        Process.of(child.pid)
