"""The lab's service: `forenotice serve` in the background, in a data directory of its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forenotice.core import errors
from forenotice.programs import background
from forenotice.programs.background import Process

FILE = "service.json"
START_SECONDS = 120.0
STOP_SECONDS = 40.0
"""The service takes at most 28 to stop."""
LOOK = 0.05


class ServiceError(errors.UnavailableError):
    """The lab's service cannot be started."""

    code = "lab_service"


@dataclass(kw_only=True)
class Service:
    """One `forenotice serve` after another, in the same directory."""

    directory: Path
    flags: Sequence[str] = ()
    before: Sequence[str] = ()
    """What runs it with the rights to listen in the hosts' networks."""
    _started: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self) -> None:
        """Return when it serves."""
        if self.is_alive:
            raise errors.ConflictError(f"the service in {self.directory} is running already: stop it first")
        own = [sys.executable, "-m", "forenotice", "serve", "--log-format", "json"]
        with self.log.open("wb") as log, self.output.open("wb") as output:
            for file in (log, output):
                os.fchmod(file.fileno(), 0o600)
            self._started = background.start(
                [*self.before, *own, *self.flags],
                lambda process: background.keep(self._file, process),
                environment=self._environment(),
                output=output,
                errors=log,
            )
        deadline, pause = time.monotonic() + START_SECONDS, threading.Event()
        while not background.logged(self.log, "serve.started"):
            self.require()
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"the service has not started after {START_SECONDS:g} s: {background.last_words(self.log)}"
                )
            pause.wait(LOOK)

    def require(self) -> None:
        """ServiceError: it does not run."""
        if not self.is_alive:
            raise ServiceError(f"the service has ended: {background.last_words(self.log)}")

    def stop(self) -> None:
        """Once more is no mistake."""
        self._send(signal.SIGTERM)
        self.kill()

    def kill(self) -> None:
        """With SIGKILL."""
        self._send(signal.SIGKILL)
        if self._started is not None:
            self._started.wait()
            self._started = None

    @property
    def process(self) -> Process | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Process)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    @property
    def is_alive(self) -> bool:
        process = self.process
        return process is not None and process.is_alive

    @property
    def control(self) -> str:
        """The address of the control plane."""
        return next((str(entry["control"]) for entry in background.logged(self.log, "serve.started")), "")

    @property
    def token(self) -> Path:
        """The file with the administrator's."""
        return self.directory / "admin.token"

    @property
    def link(self) -> str:
        """The words with the link that signs in to the portal, once."""
        return self.output.read_text().strip()

    def run(self, *arguments: str, seconds: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """An operator's command."""
        command = [sys.executable, "-m", "forenotice", *arguments]
        return subprocess.run(  # noqa: S603
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self._environment(),
            timeout=seconds,
        )

    @property
    def log(self) -> Path:
        return self.directory / "serve.log"

    @property
    def output(self) -> Path:
        return self.directory / "serve.out"

    @property
    def _file(self) -> Path:
        return self.directory / FILE

    def _environment(self) -> dict[str, str]:
        return background.environment(FORENOTICE_DATA=str(self.directory))

    def _send(self, number: signal.Signals) -> None:
        """And wait for its end."""
        if (process := self.process) and process.send(number):
            process.wait(STOP_SECONDS)
