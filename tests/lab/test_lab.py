"""A lab from up to down: on real guests, and whoever is killed in between."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.acceptance.running import environment, run, until

from forenotice import control_socket
from forenotice.core import errors
from forenotice.lab import lab as labs
from forenotice.lab import packages, status
from forenotice.lab.lab import Lab, Plan

WITHOUT = """
import sys
sys.modules["libvirt"] = None
from forenotice.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
PLAN = Plan(accelerator="qemu", prepare=0, speed=20, group="web")


def remains(place: Path) -> list[str]:
    """The command lines of processes that name this directory there, or have mounted something of it."""
    found = []
    # Mounts are listed by the path on their file system, which for /tmp may be one of its own.
    mount = next(parent for parent in place.parents if parent.is_mount())
    named = os.fsencode(f"/{place.relative_to(mount)}")
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words, mounts = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "mountinfo"))
        except OSError:
            continue
        if named in words + mounts and int(pid) != os.getpid():
            found.append(words.decode(errors="replace").replace("\0", " "))
    return found


@pytest.fixture
def env(place: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A user's own, whose labs have their sockets in a directory of the test."""
    (place / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "run"))
    return environment(place, FORENOTICE_CONTROL="127.0.0.1:0", XDG_RUNTIME_DIR=str(place / "run"))


@pytest.fixture
def directory(place: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """The lab's; what a failed test has left there is removed."""
    found = place / ".local/share/forenotice/lab"
    try:
        yield found
    finally:
        labs.remove(found)


def test_a_lab_from_up_to_down(directory: Path, place: Path, env: Mapping[str, str]) -> None:
    said = list[str]()
    with Lab.up(directory, PLAN, bound=True, say=said.append) as lab:
        assert said[1:] == [
            "host-a and host-b are up.",
            f"The service is up at http://{lab.service.control}.",
            "vm-0 has booted on host-a and polls.",
        ]
        found = status.of(lab)
        assert (found.up, [host.state for host in found.hosts]) == (True, ["up", "up"])
        (vm,) = found.vms
        assert (vm.name, vm.host, vm.state, vm.address) == ("vm-0", "host-a", "running", "10.77.0.10")
        assert (vm.persistent_boots, vm.ephemeral_boots, vm.event) == (1, 1, None)
        assert vm.uptime
        assert vm.boot_id
        with pytest.raises(errors.ConflictError, match="the lab is up, in "):
            Lab.up(directory, PLAN)

        again = run("forenotice", "lab", "up", env=env)
        assert again.stdout.startswith(f"The lab is up, in {directory}: "), again
        assert again.stdout.endswith(f"; sign in with the token in {directory / 'admin.token'}.\n"), again
        other = run("forenotice", "lab", "up", "--vms", "1", "--hosts", "3", env=env)
        refusal = "forenotice: a lab is up already, with --hosts 2: run `forenotice lab down` first to start another\n"
        assert (other.returncode, other.stderr) == (1, refusal)
        assert (directory / "admin.token").is_file()
        shown = json.loads(lab.service.run("vm", "show", "vm-0", "--json").stdout)
        assert (shown["group"], shown["vm_id"]) == ("web", lab.guests["vm-0"].uuid)
        lines = run("forenotice", "lab", "status", env=env).stdout.splitlines()
        assert lines[0].split() == ["service", f"http://{lab.service.control}"]
        assert lines[-1].split()[:4] == ["vm-0", "host-a", "running", "10.77.0.10"]
        with subprocess.Popen(
            [sys.executable, "-m", "forenotice", "lab", "console", "vm-0", "--json"], env=env, stdout=subprocess.PIPE
        ) as console:
            assert console.stdout is not None
            assert json.loads(console.stdout.readline())["vm"] == "vm-0"
            console.kill()

        # What is killed is shown as that, and the rest goes on.
        lab.hosts["host-a"].kill_libvirtd()
        lab.service.kill()
        known = Lab.find(directory)
        assert known is not None
        found = status.of(known)
        assert (found.up, found.service) == (False, "")
        assert [host.state for host in found.hosts] == ["libvirtd is down", "up"]
        assert [(vm.host, vm.state) for vm in found.vms] == [(None, "unknown")]
        with pytest.raises(errors.ConflictError, match="was not ended: run `forenotice lab down` first"):
            Lab.up(directory, PLAN)
        lab.hosts["host-a"].restart_libvirtd()
        lab.start_service()
        until(lambda: status.of(lab).up, what="all of it is up again")
        until(lambda: status.of(lab).vms[0].state == "running", what="libvirtd has found its guest")
        assert len(remains(directory)) >= 6, "two hosts with a libvirtd each, a guest, and the service"

        # Who asks for the console of a VM that is gone reads whole lines, and does not wait for more.
        lab.ask("host-a", lambda link: [link.lookupByName("vm-0").destroy(), link.lookupByName("vm-0").undefine()])
        with lab.guests["vm-0"].console.open("a") as written:
            written.write(f"{'x' * 5000}\nits last words\n")
        last = run("forenotice", "lab", "console", "vm-0", env=env)
        assert (last.returncode, last.stdout) == (1, "its last words\n"), last
        assert last.stderr.startswith("forenotice: vm-0 is gone; above is what it wrote last. See "), last.stderr
        # And in the end nothing is left, not even after more than this.
        os.kill(lab.hosts["host-b"].pid, signal.SIGKILL)
        lab.hosts["host-a"].kill_libvirtd()
        lab.service.kill()
    assert not directory.exists()
    assert list((place / "run").iterdir()) == []
    assert remains(directory) == []


@pytest.mark.parametrize("moment", ["lab.json", "hosts/host-b/host.json", "service.json"])
def test_a_killed_up_leaves_nothing_that_down_does_not_remove(
    directory: Path, place: Path, env: Mapping[str, str], moment: str
) -> None:
    command = [sys.executable, "-m", "forenotice", "lab", "up", "--emulate", "--vms", "1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as starting:
        until(lambda: (directory / moment).exists() or starting.poll() is not None, what=f"{moment} is there")
        assert starting.poll() is None
        starting.kill()
    done = run("forenotice", "lab", "down", env=env)
    assert (done.stdout, done.returncode) == ("The lab is down, and nothing of it is left.\n", 0), done.stderr
    until(lambda: remains(directory) == [], what=lambda: f"no processes: {remains(directory)}")
    assert not directory.exists()
    assert list((place / "run").iterdir()) == []
    assert run("forenotice", "lab", "down", env=env).stdout == "There is no lab.\n"
    assert list(directory.parent.iterdir()) == []


def test_an_up_that_fails_leaves_nothing_behind(directory: Path, place: Path) -> None:
    with pytest.raises(errors.UnavailableError, match=r"the service has ended: driver in .* must be "):
        Lab.up(directory, Plan(accelerator="qemu", driver='driver = "no-such-driver"'), bound=True)
    assert not directory.exists()
    assert list((place / "run").iterdir()) == []


def test_files_that_are_not_a_labs_are_not_touched(directory: Path, env: Mapping[str, str]) -> None:
    directory.mkdir(parents=True)
    (directory / "thesis").write_text("mine")
    for command, said in (
        ("up", f"{directory} has files that are not a lab's: move them, or give another directory with --data"),
        ("status", f"there is no lab in {directory}: start one with `forenotice lab up`"),
    ):
        done = run("forenotice", "lab", command, env=env)
        assert (done.returncode, done.stderr) == (1, f"forenotice: {said}\n")
    assert run("forenotice", "lab", "down", env=env).stdout == "There is no lab.\n"
    assert [(path.name, path.read_text()) for path in directory.iterdir()] == [("thesis", "mine")]


def test_what_up_had_written_when_it_was_killed_first_is_no_lab(directory: Path, env: Mapping[str, str]) -> None:
    directory.mkdir(parents=True)
    for name in ("lab.lock", "lab.json.new"):
        (directory / name).touch()
    assert run("forenotice", "lab", "down", env=env).stdout == "There is no lab.\n"
    assert not directory.exists()


@pytest.mark.parametrize("command", ["up", "status"])
def test_a_directory_that_cannot_be_used(place: Path, env: Mapping[str, str], command: str) -> None:
    (place / "file").touch()
    done = run("forenotice", "lab", command, "--data", str(place / "file"), env=env)
    assert (done.returncode, "Not a directory): mend that, or give another directory" in done.stderr) == (1, True), done


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of its own")
def test_a_full_disk_is_named(place: Path, env: Mapping[str, str]) -> None:
    """In a mount namespace, which ends with the command."""
    (place / "small").mkdir()
    script = f'mount -t tmpfs -o size=600k tmpfs {place}/small && "$@"; code=$?; ls {place}/small/data; exit $code'
    up = (sys.executable, "-m", "forenotice", "lab", "up", "--emulate", "--data", f"{place}/small/data")
    done = run("unshare", "--mount", "sh", "-c", script, "sh", *up, env=env)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert "cannot be used (No space left on device): mend that" in done.stderr, done


def test_up_ends_with_a_host_that_does(directory: Path) -> None:
    said = list[str]()

    def end(line: str) -> None:
        said.append(line)
        if line.startswith("The service is up"):
            found = Lab.find(directory)
            assert found is not None
            found.hosts["host-a"].stop()

    with pytest.raises(errors.UnavailableError, match=r"^host-a has ended$"):
        Lab.up(directory, Plan(hosts=("host-a",), accelerator="qemu"), bound=True, say=end)
    assert not directory.exists()
    assert said[-1] == "Ending what was started, so that nothing is left."


def test_a_lab_is_made_by_one_at_a_time(directory: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with labs._held(directory):
            inside.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert inside.wait(60)
        with pytest.raises(errors.ConflictError, match="another `forenotice lab` is at work"):
            Lab.up(directory, PLAN)
    finally:
        done.set()
        holder.join()
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status",), "there is no lab in {directory}: start one with `forenotice lab up`"),
        (("console", "vm-0"), "there is no lab in {directory}: start one with `forenotice lab up`"),
        (("up", "--vms", "0"), "a lab has 1 to 200 VMs, not 0"),
        (("up", "--hosts", "9"), "a lab has 1 to 8 hosts, not 9"),
        (("up", "--vms", "1", "--agents", "2"), "of 1 VMs, 0 to 1 run our agent, not 2"),
    ],
)
def test_what_cannot_be_done_says_why(
    directory: Path, env: Mapping[str, str], arguments: tuple[str, ...], message: str
) -> None:
    done = run("forenotice", "lab", *arguments, env=env)
    assert (done.returncode, done.stderr) == (1, f"forenotice: {message.format(directory=directory)}\n")


def test_what_is_missing_is_named(directory: Path, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(sys.executable, "-c", WITHOUT, "lab", "up", env=env)
    assert done.returncode == 1
    assert done.stderr.endswith("pip install 'forenotice[libvirt]'\n"), done.stderr
    monkeypatch.setattr(packages, "PATH", "/nowhere")
    with pytest.raises(packages.MissingError) as caught:
        Lab.up(directory, PLAN)
    assert caught.value.message == (
        "the lab needs libvirt-daemon, qemu-system-x86, busybox-static, iproute2 and util-linux, which are not "
        "installed: apt-get install --no-install-recommends libvirt-daemon qemu-system-x86 busybox-static iproute2 "
        "util-linux"
    )
    assert not directory.exists()


def test_a_service_that_commands_would_reach_instead_is_in_the_way(directory: Path, env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "forenotice", "serve", "--demo", "--metadata", "127.0.0.1:0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            until(lambda: control_socket.answers(directory.parent / "demo"), what="the demo is up")
            done = run("forenotice", "lab", "up", env=env)
            assert done.returncode == 1
            assert done.stderr.startswith(f"forenotice: a `forenotice serve` runs in {directory.parent / 'demo'}, and ")
        finally:
            serving.terminate()
