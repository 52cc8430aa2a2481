"""A fake of systemd on a bus of its own, for the real systemctl: here, and in CI, no systemd runs."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageType,
    message_bus,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import DBusConnection, open_dbus_connection

NAME = "org.freedesktop.systemd1"
MANAGER = DBusAddress("/org/freedesktop/systemd1", NAME, f"{NAME}.Manager")


@dataclass
class Systemd:
    """Knows units and does as it is told; what it was asked to do is kept."""

    connection: DBusConnection
    active: dict[str, str]
    """ActiveState by unit."""
    told: list[tuple[str, str]] = field(default_factory=list)
    hanging: set[str] = field(default_factory=set)
    """Units whose jobs never end."""
    refused: set[str] = field(default_factory=set)
    _jobs: int = 0

    def serve(self) -> None:
        try:
            while True:
                message = self.connection.receive()
                if message.header.message_type is MessageType.method_call:
                    self._answer(message)
        except (OSError, EOFError):
            pass  # The bus has ended.

    def _answer(self, message: Message) -> None:
        member = message.header.fields[HeaderFields.member]
        answer = getattr(self, f"_on_{member}", None)
        if answer is None:
            self.connection.send(new_error(message, "org.freedesktop.DBus.Error.UnknownMethod", "s", (member,)))
        else:
            answer(message)

    def _on_GetUnit(self, message: Message) -> None:
        self.connection.send(new_method_return(message, "o", (_path(message.body[0]),)))

    def _on_ListUnitsByPatterns(self, message: Message) -> None:
        matching = [name for name in self.active if name.startswith(message.body[1][0].rstrip("*"))]
        rows = [(name, name, "loaded", self.active[name], "", "", _path(name), 0, "", "/") for name in matching]
        self.connection.send(new_method_return(message, "a(ssssssouso)", (rows,)))

    def _on_GetAll(self, message: Message) -> None:
        name = _name(message.header.fields[HeaderFields.path])
        known = name in self.active
        facts: Mapping[str, Any] = {
            "Id": ("s", name),
            "LoadState": ("s", "loaded" if known else "not-found"),
            "ActiveState": ("s", self.active.get(name, "inactive")),
        }
        self.connection.send(new_method_return(message, "a{sv}", (facts,)))

    def _on_Get(self, message: Message) -> None:
        answers = {"NeedDaemonReload": ("b", False), "TriggeredBy": ("as", [])}
        self.connection.send(new_method_return(message, "v", (answers.get(message.body[1], ("s", "")),)))

    def _on_StopUnit(self, message: Message) -> None:
        self._job(message, "stop", "inactive")

    def _on_StartUnit(self, message: Message) -> None:
        self._job(message, "start", "active")

    def _job(self, message: Message, verb: str, state: str) -> None:
        name = message.body[0]
        self.told.append((verb, name))
        if name not in self.active:
            error = new_error(message, f"{NAME}.NoSuchUnit", "s", (f"Unit {name} not found.",))
            self.connection.send(error)
            return
        self._jobs += 1
        job = f"/org/freedesktop/systemd1/job/{self._jobs}"
        self.connection.send(new_method_return(message, "o", (job,)))
        if name in self.hanging:
            return
        result = "failed" if name in self.refused else "done"
        if result == "done":
            self.active[name] = state
        self.connection.send(new_signal(MANAGER, "JobRemoved", "uoss", (self._jobs, job, name, result)))


def _path(name: str) -> str:
    letters = "".join(letter if letter.isalnum() else f"_{ord(letter):02x}" for letter in name)
    return f"/org/freedesktop/systemd1/unit/{letters}"


def _name(path: str) -> str:
    first, *rest = path.rpartition("/")[2].split("_")
    return first + "".join(chr(int(part[:2], 16)) + part[2:] for part in rest)


# The real one, for which the machine looks as if systemd had booted it: it would not use its bus otherwise.
SYSTEMCTL = """#!/bin/sh
exec {unshare} /bin/sh -c 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec {real} "$@"' sh "$@"
"""


@contextmanager
def fake_systemd(directory: Path, active: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    _place_systemctl(directory / "programs", monkeypatch)
    address = f"unix:path={directory / 'bus'}"
    daemon = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address", f"--address={address}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        # Its socket is there before anybody listens to it; its address is told afterwards.
        assert daemon.stdout is not None
        assert daemon.stdout.readline(), "the bus has not started"
        connection = open_dbus_connection(address)
        connection.send_and_get_reply(message_bus.RequestName(NAME))
        served = Systemd(connection, dict(active))
        thread = threading.Thread(target=served.serve, daemon=True)
        thread.start()
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        monkeypatch.setenv("SYSTEMCTL_FORCE_BUS", "1")
        yield served
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)
    thread.join(60)
    connection.close()


def _place_systemctl(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unshare = ["unshare", "--mount"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-current-user", "--keep-caps"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode and not os.environ.get("CI"):
        pytest.skip("no mount namespaces here")
    real = shutil.which("systemctl")
    assert real, "systemctl is missing: apt install systemd"
    directory.mkdir()
    program = directory / "systemctl"
    program.write_text(SYSTEMCTL.format(unshare=" ".join(unshare), real=real))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
