"""The driver's file: what it may have, and what a mistake in it leads to; without one, drivers are simulated."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forenotice.core.driver_calls import Finished, NotYet, Task
from forenotice.core.fleet import Host
from forenotice.core.operations import Kind
from forenotice.core.timing import Retries
from forenotice.drivers import file, registry
from forenotice.drivers.call_queue import CallTerms, Driver
from forenotice.drivers.command import CommandDriver
from forenotice.drivers.webhook import WebhookDriver
from forenotice.runtime import Runtime

COMMAND = """
driver = "command"
[actions]
default = ["/bin/true", "{kind}", "{vm}"]
"""


SEVERAL = """
pause = "10s"

[[drivers]]
hosts = "rack1-*"
driver = "command"
at_once = 1
actions = { default = ["/bin/true"] }

[[drivers]]
hosts = "label:gpu=*"
driver = "command"
at_once = 2
actions = { default = ["/bin/true"] }

[[drivers]]
driver = "command"
at_once = 3
actions = { default = ["/bin/true"] }
"""


LIBVIRT = """
driver = "libvirt"
fence = ["/bin/sh", "-c", "exit 1", "{host}"]
storage = "shared"
"""


def open_one(path: Path | None, speed: float) -> tuple[Driver, CallTerms, Retries]:
    (choice,), retries = registry.open_drivers(path, speed, Runtime())
    return choice.driver, choice.terms, retries


def written(folder: Path, text: str) -> Path:
    path = folder / "driver.toml"
    path.write_text(text)
    return path


def test_libvirt_needs_no_more_than_its_name(tmp_path: Path) -> None:
    _, ((_, config),) = file.load(written(tmp_path, 'driver = "libvirt"'))
    assert config == file.Libvirt()
    assert config.each_vm == set(Kind) - {Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.HARDWARE_FAILURE}
    _, ((_, config),) = file.load(written(tmp_path, LIBVIRT))
    assert isinstance(config, file.Libvirt)
    assert (config.fence, config.storage) == (("/bin/sh", "-c", "exit 1", "{host}"), "shared")


def test_without_its_extra_libvirt_says_what_to_install(tmp_path: Path) -> None:
    path = written(tmp_path, LIBVIRT)
    opened = f"registry.open_drivers(pathlib.Path({str(path)!r}), 1, runtime.Runtime())"
    program = "import pathlib, sys; sys.modules['libvirt'] = None; from forenotice import runtime; "
    program += f"from forenotice.drivers import registry; {opened}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "DriverFileError" in run.stderr
    assert "pip install 'forenotice[libvirt]'" in run.stderr


def test_a_command_for_each_kind(tmp_path: Path) -> None:
    text = """
driver = "command"
tries = 5
pause = "10s"
time_limit = "2m"
at_once = 20
at_once_per_host = 1
pass = ["LIBVIRT_DEFAULT_URI"]

[actions]
default = ["/bin/echo", "{kind}", "{vm}", "{{as it is}}"]
live-migration = ["/bin/echo", "--from={host}", "{vm_id}", "{target}"]
host-reboot = { run = ["/bin/echo", "{host}", "{operation}", "{attempt}"], each = "host" }
"""
    driver, terms, retries = open_one(written(tmp_path, text), 600)
    assert isinstance(driver, CommandDriver)
    assert retries == Retries(tries=5, first_pause=timedelta(seconds=10))
    assert (terms.at_once, terms.at_once_per_host, terms.awaits_results) == (20, 1, False)
    assert terms.longest == timedelta(minutes=2, seconds=5)
    assert terms.each_vm == set(Kind) - {Kind.HOST_REBOOT}


def test_a_webhook(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of sixteen or more\n")
    secret.chmod(0o600)
    text = f'driver = "webhook"\nurl = "http://127.0.0.1:1/act"\nsecret_file = "{secret}"\n'
    driver, terms, _ = open_one(written(tmp_path, text), 1)
    assert isinstance(driver, WebhookDriver)
    assert (terms.awaits_results, terms.each_vm) == (True, frozenset())
    assert terms.longest == timedelta(hours=1, minutes=2)


def test_the_first_driver_that_selects_a_host_is_its_driver(tmp_path: Path) -> None:
    choices, retries = registry.open_drivers(written(tmp_path, SEVERAL), 1, Runtime())
    assert retries == Retries(first_pause=timedelta(seconds=10))
    hosts = {
        "by name": Host(name="rack1-01", labels={"gpu": "a100"}),
        "by label": Host(name="rack2-01", labels={"gpu": "a100"}),
        "neither": Host(name="rack2-02"),
    }
    chosen = {key: next(each for each in choices if each.fits(host)).terms.at_once for key, host in hosts.items()}
    assert chosen == {"by name": 1, "by label": 2, "neither": 3}


WEBHOOK = 'driver = "webhook"\nurl = "https://127.0.0.1/"\nsecret_file = "FOLDER/secret"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("driver = ", "is not TOML"),
        ("", 'must be "command", "libvirt" or "webhook"'),
        ('driver = "qemu"', 'must be "command", "libvirt" or "webhook"'),
        ('driver = "libvirt"\nstorage = "local"', "storage in FILE"),
        ('driver = "libvirt"\nfences = ["/bin/true"]', "fences in FILE is not known: did you mean fence?"),
        ('driver = "libvirt"\nfence = ["/bin/true", "{vm}"]', "fence: {vm} is not known: use {attempt}, {duration}, "),
        ('driver = "libvirt"\ntime_limit = "0s"', "time_limit is no time at all"),
        ('driver = "libvirt"\nalive_limit = "0s"', "alive_limit is no time at all"),
        ('driver = "command"', "actions in FILE is missing"),
        (COMMAND.replace("default", "restart"), "redeploy is missing"),
        (COMMAND + 'host-rebot = ["/bin/true"]', "actions.host-rebot in FILE is not known: did you mean host-reboot?"),
        (COMMAND + "restart = []", "actions.restart in FILE must have at least 1 items"),
        (COMMAND + 'restart = "virsh reboot"', "actions.restart in FILE must be an object or a list"),
        (COMMAND + 'restart = { run = ["/bin/true"], each = "scope" }', "'scope'"),
        (COMMAND + 'restart = { run = ["/bin/true"], eahc = "vm" }', "actions.restart.eahc in FILE is not known"),
        (COMMAND + 'restart = ["/bin/true", "{target}"]', "restart: {target} is not known for restart"),
        (COMMAND + 'host-reboot = {run = ["x", "{vm}"], each = "host"}', "{vm} is not known for host-reboot"),
        (COMMAND + 'restart = ["/bin/true", "{}"]', "{} is not known for restart"),
        (COMMAND + 'restart = ["/bin/true", "{vm"]', "'{vm' has a brace that is no placeholder"),
        (COMMAND + 'restart = ["/bin/true", "{vm!r}"]', "has a brace that is no placeholder"),
        (COMMAND + 'restart = ["/no/such/program"]', "restart: there is no program /no/such/program"),
        (COMMAND + 'restart = ["/etc/passwd"]', "/etc/passwd is not executable"),
        ("tires = 3" + COMMAND, "tires in FILE is not known: did you mean tries?"),
        ("tries = 0" + COMMAND, "tries in FILE must be at least 1"),
        ('tries = "3"' + COMMAND, "tries in FILE must be an integer"),
        ('pause = "soon"' + COMMAND, "'soon' is not a duration"),
        ('time_limit = "0s"' + COMMAND, "time_limit is no time at all"),
        ('pass = ["HOME", "FORENOTICE_TOKEN"]' + COMMAND, "FORENOTICE_TOKEN"),
        (WEBHOOK.replace("https://127.0.0.1/", "hypervisors"), "that is not an http or https URL"),
        (WEBHOOK, "secret_file: FOLDER/secret cannot be read: no such file or directory"),
        ("drivers = 1", "drivers in FILE must be a list"),
        ("drivers = []", "needs hosts, except for the last"),
        (SEVERAL.replace('hosts = "rack1-*"\n', ""), "needs hosts, except for the last"),
        (SEVERAL.replace("rack1-*", "rack 1"), "hosts in drivers[0] in FILE: 'rack 1' is not a name"),
        (SEVERAL.replace("hosts =", "tries = 1\nhosts ="), "tries in drivers[0] in FILE would be for all drivers"),
        (SEVERAL + "at_one = 1", "at_one in drivers[2] in FILE is not known"),
        ("at_once = 1" + SEVERAL, "at_once in FILE is not known"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(tmp_path: Path, text: str, reason: str) -> None:
    path = written(tmp_path, text.replace("FOLDER", str(tmp_path)))
    with pytest.raises(file.DriverFileError) as found:
        open_one(path, 1)
    assert reason.replace("FOLDER", str(tmp_path)).replace("FILE", str(path)) in found.value.message
    assert str(path) in found.value.message


@pytest.mark.parametrize(
    ("content", "mode", "ca", "reason"),
    [
        (b"short", 0o600, "", "is too short: give at least 16 characters"),
        (b"\xff" * 20, 0o600, "", "cannot be read: it is not text"),
        (b"long enough for all", 0o600, 'ca_file = "/no/such"', "ca_file: /no/such cannot be used: No such file"),
        (b"long enough for all", 0o644, "", r"secret_file: .*/secret can be read by other users \(mode 0644\)"),
    ],
)
def test_files_that_the_file_names_are_read_at_the_start(
    tmp_path: Path, content: bytes, mode: int, ca: str, reason: str
) -> None:
    (tmp_path / "secret").write_bytes(content)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(file.DriverFileError, match=reason):
        open_one(written(tmp_path, WEBHOOK.replace("FOLDER", str(tmp_path)) + ca), 1)


def test_the_file_must_exist_and_no_other_user_may_change_it(tmp_path: Path) -> None:
    with pytest.raises(file.DriverFileError, match=r"driver.toml cannot be read: no such file"):
        open_one(tmp_path / "driver.toml", 1)
    written(tmp_path, WEBHOOK.replace("FOLDER", str(tmp_path))).chmod(0o666)
    with pytest.raises(file.DriverFileError, match=r"driver.toml can be changed by other users \(mode 0666\)"):
        open_one(tmp_path / "driver.toml", 1)


SECONDS = {
    Kind.HOST_UPDATE: 9,
    Kind.LIVE_MIGRATION: 5,
    Kind.RESTART: 15,
    Kind.HOST_REBOOT: 15,
    Kind.REDEPLOY: 30,
    Kind.DEGRADED_HARDWARE: 30,
    Kind.HARDWARE_FAILURE: 30,
    Kind.EVICTION: 5,
    Kind.DELETION: 5,
}


@pytest.mark.parametrize("speed", [1, 60])
def test_without_a_file_each_kind_takes_its_time(speed: float) -> None:
    driver, terms, retries = open_one(None, speed)
    assert (retries, terms.at_once_per_host, set(SECONDS)) == (Retries(), None, set(Kind))
    start = datetime(2026, 1, 5, tzinfo=UTC)
    for kind, seconds in SECONDS.items():
        task = Task(operation="o", kind=kind, host="h", vms=("a", "b"), targets={}, attempt=1, started_at=start)
        task = replace(task, duration=kind.traits.duration)
        done_at = start + timedelta(seconds=seconds) / speed
        assert driver.carry_out(task, start) == NotYet(again_at=done_at)
        assert driver.carry_out(task, done_at) == Finished(done=("a", "b"), failures={})
