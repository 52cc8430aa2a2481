"""Processes that outlive the command that started them: known by id and start, and ended only if they are the same."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from forenotice.programs import launcher, process


class Process(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    started: int
    """In ticks since the boot; with the boot, it tells a process from a later one of the same id."""
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        started = process.started(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid=pid, started=started, boot=_boot())

    @property
    def is_alive(self) -> bool:
        """A zombie is not."""
        return self.boot == _boot() and process.started(self.pid) == self.started and not self.wait(0)

    def send(self, number: signal.Signals) -> bool:
        """Whether it was there to get the signal."""
        descriptor = self._open()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        descriptor = self._open()
        if descriptor is None:
            return True
        try:
            ready, _, _ = select.select([descriptor], [], [], seconds)
            return bool(ready)
        finally:
            os.close(descriptor)

    def _open(self) -> int | None:
        """None: it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.boot == _boot() and process.started(self.pid) == self.started:
            return descriptor
        os.close(descriptor)
        return None


def start(
    argv: Sequence[str],
    record: Callable[[Process], None],
    *,
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes],
) -> "subprocess.Popen[bytes]":
    """Start a program that goes on when we end; it begins once it is recorded, so that somebody can always end it."""
    wait, go = os.pipe()
    try:
        started = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", launcher.__file__, str(wait), environment.get("LC_CTYPE", ""), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=(wait,),
        )
        record(Process.of(started.pid))
        os.write(go, b"\n")
        return started
    finally:
        os.close(wait)
        os.close(go)


def find(argv: Sequence[str]) -> Process | None:
    """One that runs this command, wherever it was started; `setpriv PROGRAM ...` has become the program."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            wanted = argv[-len(words) :]
            # The program itself may have been found on the path.
            if len(words) > 1 and words[1:] == list(wanted[1:]) and _name(words[0]) == _name(wanted[0]):
                found = Process.of(int(path.parent.name))
                # Not somebody else's, which we could not end.
                os.kill(found.pid, 0)
                if found.is_alive:
                    return found
    return None


def _name(program: str) -> str:
    return program.rpartition("/")[2]


def environment(**more: str) -> dict[str, str]:
    """Ours, but for what it says to forenotice."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORENOTICE_")}
    return {**kept, **more}


def logged(log: Path, action: str) -> list[dict[str, Any]]:
    """What a process of forenotice's has logged so far, as JSON."""
    found = []
    with suppress(FileNotFoundError):
        for line in log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("action") == action:
                    found.append(entry)
    return found


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1].removeprefix("forenotice: ") if lines else "it wrote nothing"


def keep(path: Path, value: object) -> None:
    """As JSON, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
