"""Real `notbefore agent run` processes, and what their handlers leave behind."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.running import DEADLINE, PROGRAMS, environment, run, uncovered, until


class Agent:
    """One `agent run` after another, on the same configuration and state directory."""

    def __init__(self, home: Path, endpoint: str, config: str, *, covered: bool = True, **env: str) -> None:
        self.home = home
        self.config = home / "agent.toml"
        self.state = home / "state"
        self.diary = home / "diary"
        """Where handlers of tests write what they do."""
        self.configure(config)
        found = environment(home, NOTBEFORE_ENDPOINT=endpoint, DIARY=str(self.diary), **env)
        self.env = found if covered else uncovered(found)
        self._log = home / "agent.stderr"
        self._log.touch()
        self._seen = 0
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, config: str) -> None:
        self.config.write_text(config)

    @property
    def flags(self) -> list[str]:
        return ["--config", str(self.config), "--state", str(self.state)]

    # Its life

    def start(self) -> "Agent":
        assert self.process is None
        self._seen = self._log.stat().st_size
        command = [str(PROGRAMS / "notbefore"), "agent", "run", *self.flags, "--log-format", "json"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        until(lambda: self.logged("agent.started"), what="agent.started in the log")
        return self

    def kill(self) -> None:
        """With SIGKILL, as a reboot would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE)
        self.process = None

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        self.process = None
        return code

    # What it says and leaves behind

    @property
    def errors(self) -> str:
        return self._log.read_text()

    def logged(self, action: str) -> list[dict[str, Any]]:
        """The lines of this kind since the last start."""
        with self._log.open("rb") as log:
            log.seek(self._seen)
            lines = log.read().decode().split("\n")[:-1]
        assert self.process is None or self.process.poll() is None, f"the agent has ended: {lines}"
        return [entry for entry in map(json.loads, lines) if entry["action"] == action]

    @property
    def status(self) -> Any:
        said = run("notbefore", "agent", "status", "--json", *self.flags, env=uncovered(self.env))
        return json.loads(said.stdout)

    @property
    def done(self) -> list[str]:
        """What handlers wrote into the diary."""
        return self.diary.read_text().splitlines() if self.diary.exists() else []

    def until_done(self, *entries: str, seconds: float = DEADLINE) -> None:
        until(lambda: self.done == list(entries), seconds, f"{entries} in the diary: {self.done}\n{self.errors}")

    def until_state(self, state: str, seconds: float = DEADLINE) -> None:
        """That some event got there since the last start."""
        until(
            lambda: state in [entry["state"] for entry in self.logged("saga.moved")],
            seconds,
            f"{state}: {self.errors}",
        )


def diary(name: str = "drain", *, sleep: float = 0, **more: str) -> str:
    """A handler that writes `phase name attempt` into the diary."""
    script = f'sleep {sleep}; echo "$NOTBEFORE_PHASE {name} $NOTBEFORE_ATTEMPT" >> "$DIARY"'
    command = json.dumps([script])
    phases = "\n".join(f"{phase} = {command}" for phase in ("prepare", "on_started", "recover", "undo"))
    keys = "\n".join(f"{key} = {value}" for key, value in more.items())
    return f'[[handler]]\nname = "{name}"\ntype = "command"\nshell = true\n{phases}\n{keys}\n'


@contextmanager
def agent(home: Path, endpoint: str, config: str, **how: Any) -> Iterator[Agent]:
    """An agent that runs; it must end in peace unless the test ended it."""
    home.mkdir(exist_ok=True)
    found = Agent(home, endpoint, config, **how)
    try:
        found.start()
        yield found
        if found.process is not None:
            assert found.terminate() == 0, found.errors
    finally:
        if found.process is not None:
            found.kill()
