"""The driver's file: what it may say, and what is said when it is wrong."""

from datetime import timedelta
from pathlib import Path

import pytest

from forenotice.core.operations import Kind
from forenotice.core.timing import Retries
from forenotice.drivers import file, registry
from forenotice.drivers.call_queue import CallTerms, Driver
from forenotice.drivers.command import CommandDriver
from forenotice.drivers.simulated import SimulatedDriver
from forenotice.drivers.webhook import WebhookDriver
from forenotice.runtime import Runtime

COMMAND = """
driver = "command"
[actions]
default = ["/bin/true", "{kind}", "{vm}"]
"""


def open_one(path: Path | None, speed: float) -> tuple[Driver, CallTerms, Retries]:
    (choice,), retries = registry.open_drivers(path, speed, Runtime())
    return choice.driver, choice.terms, retries


def written(folder: Path, text: str) -> Path:
    path = folder / "driver.toml"
    path.write_text(text)
    return path


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


def test_without_a_file_it_is_simulated() -> None:
    driver, terms, retries = open_one(None, 60)
    assert isinstance(driver, SimulatedDriver)
    assert (retries, terms.at_once_per_host) == (Retries(), None)


WEBHOOK = 'driver = "webhook"\nurl = "https://127.0.0.1/"\nsecret_file = "FOLDER/secret"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("driver = ", "is not TOML"),
        ("", 'the key \'driver\' is missing: give "command" or "webhook"'),
        ('driver = "libvirt"', 'driver: \'libvirt\' is not known: give "command" or "webhook"'),
        ('driver = "command"', "the key 'actions' is missing"),
        (
            COMMAND.replace("default", "restart"),
            "actions: redeploy is missing: say what to run, or give default",
        ),
        (COMMAND + 'host-rebot = ["/bin/true"]', "actions: there is no key 'host-rebot'; did you mean 'host-reboot'?"),
        (COMMAND + "restart = []", "actions.restart: this must be a list of length >= 1"),
        (COMMAND + 'restart = "virsh reboot"', "actions.restart: this must be a table or a list"),
        (COMMAND + 'restart = { run = ["/bin/true"], each = "scope" }', "'scope' in each is not known: give \"vm\""),
        (
            COMMAND + 'restart = { run = ["/bin/true"], eahc = "vm" }',
            "actions.restart: there is no key 'eahc'; did you mean 'each'?",
        ),
        (
            COMMAND + 'restart = ["/bin/true", "{target}"]',
            "actions: restart: {target} is not known for restart: "
            "use {attempt}, {event}, {host}, {kind}, {operation}, {vm}, {vm_id}",
        ),
        (COMMAND + 'host-reboot = {run = ["x", "{vm}"], each = "host"}', "{vm} is not known for host-reboot: use"),
        (COMMAND + 'restart = ["/bin/true", "{}"]', "{} is not known for restart"),
        (COMMAND + 'restart = ["/bin/true", "{vm"]', "'{vm' has a brace that is no placeholder: write {{ and }}"),
        (COMMAND + 'restart = ["/bin/true", "{vm!r}"]', "has a brace that is no placeholder"),
        (COMMAND + 'restart = ["/no/such/program"]', "the action for restart: there is no program /no/such/program"),
        (COMMAND + 'restart = ["/etc/passwd"]', "/etc/passwd is not executable"),
        ("tires = 3" + COMMAND, "there is no key 'tires'; did you mean 'tries'?"),
        ("colour = 3" + COMMAND, "there is no key 'colour'; there are"),
        ("tries = 0" + COMMAND, "tries: this must be a whole number >= 1"),
        ('tries = "3"' + COMMAND, "tries: this must be a whole number"),
        ('pause = "soon"' + COMMAND, "'soon' is not a duration: give one such as \"30s\""),
        ('time_limit = "0s"' + COMMAND, "time_limit is no time at all"),
        (
            'pass = ["HOME", "FORENOTICE_TOKEN"]' + COMMAND,
            "pass: FORENOTICE_TOKEN is the service's own",
        ),
        (WEBHOOK.replace("https://127.0.0.1/", "hypervisors"), "that is not a URL"),
        (WEBHOOK, "secret_file: FOLDER/secret cannot be read: no such file or directory"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text.replace("FOLDER", str(tmp_path)))
    with pytest.raises(file.DriverFileError) as found:
        open_one(path, 1)
    assert said.replace("FOLDER", str(tmp_path)) in found.value.message
    assert str(path) in found.value.message


@pytest.mark.parametrize(
    ("content", "ca", "said"),
    [
        (b"short", "", "is too short: give at least 16 characters"),
        (b"\xff" * 20, "", "cannot be read: it is not text"),
        (
            b"long enough for anybody",
            'ca_file = "/no/such/file"',
            "ca_file: /no/such/file cannot be used: No such file",
        ),
    ],
)
def test_files_that_the_file_names_are_read_at_the_start(tmp_path: Path, content: bytes, ca: str, said: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(file.DriverFileError, match=said):
        open_one(written(tmp_path, WEBHOOK.replace("FOLDER", str(tmp_path)) + ca), 1)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("long enough for anybody")
    secret.chmod(0o644)
    with pytest.raises(file.DriverFileError, match=r"secret_file: .*/secret can be read by other users \(mode 0644\)"):
        open_one(written(tmp_path, WEBHOOK.replace("FOLDER", str(tmp_path))), 1)


def test_nobody_else_says_what_is_run(tmp_path: Path) -> None:
    given = written(tmp_path, WEBHOOK.replace("FOLDER", str(tmp_path)))
    given.chmod(0o666)
    with pytest.raises(file.DriverFileError, match=r"driver.toml can be changed by other users \(mode 0666\)"):
        open_one(given, 1)


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(file.DriverFileError, match=r"driver.toml cannot be read: no such file"):
        open_one(tmp_path / "driver.toml", 1)
