"""Real `forenotice agent run` processes, and what their handlers leave behind."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.acceptance.running import DEADLINE, PROGRAMS, Said, ask, environment, run, until

DEFECTS = ("agent.defect", "poll.broken", "listen.broken")
"""What is logged when something is wrong with the agent itself."""


class Agent:
    """One `agent run` after another, on the same configuration and state directory."""

    def __init__(self, home: Path, endpoint: str, config: str, *, before: Sequence[str] = (), **env: str) -> None:
        self.home = home
        self.config = home / "agent.toml"
        self.state = home / "state"
        self.diary = home / "diary"
        """Where handlers of tests write what they do."""
        self.configure(config)
        self.env = environment(home, FORENOTICE_ENDPOINT=endpoint, DIARY=str(self.diary), **env)
        self._log = home / "agent.stderr"
        self._log.touch()
        self._seen = 0
        self.before = before
        """What its command begins with."""
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, config: str) -> None:
        self.config.write_text(config)

    @property
    def flags(self) -> list[str]:
        return ["--config", str(self.config), "--state", str(self.state)]

    # Its life

    def spawn(self) -> None:
        """Without waiting for it."""
        assert self.process is None
        self._seen = self._log.stat().st_size
        command = [*self.before, str(PROGRAMS / "forenotice"), "agent", "run", *self.flags, "--log-format", "json"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )

    def start(self) -> "Agent":
        self.spawn()
        self.until_logged("agent.started")
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """With SIGKILL, and all that it started, as a reboot would."""
        assert self.process is not None
        # It stands still meanwhile, so that nobody is born behind our back.
        self.process.send_signal(signal.SIGSTOP)
        children = list(_descendants(self.process.pid))
        self.process.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait(DEADLINE)
        self.process = None

    def die(self) -> None:
        """By SIGKILL, alone: what it started runs on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE)
        self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        self.process = None
        return code

    def reload(self, config: str) -> None:
        """Another configuration, and SIGHUP; whether it is taken, the log says."""
        self.configure(config)
        self.signal(signal.SIGHUP)

    def lose_state(self) -> None:
        """As a VM that comes back on another host with an empty disk."""
        assert self.process is None
        shutil.rmtree(self.state)

    # What it says

    @property
    def errors(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Of the log, since the last start."""
        with self._log.open("rb") as log:
            log.seek(self._seen)
            lines = log.read().decode().split("\n")[:-1]
        assert self.process is None or self.process.poll() is None, f"the agent has ended: {lines}"
        # What else stands there is the interpreter's.
        return [json.loads(line) for line in lines if line.startswith("{")]

    def logged(self, action: str) -> list[dict[str, Any]]:
        """The lines of this kind since the last start."""
        return [entry for entry in self.lines() if entry["action"] == action]

    def until_logged(self, action: str, seconds: float = DEADLINE, **fields: object) -> dict[str, Any]:
        """The first such line."""

        def found() -> list[dict[str, Any]]:
            return [entry for entry in self.logged(action) if fields.items() <= entry.items()]

        return until(found, seconds, lambda: f"{action} {fields} in the log:\n{self.errors}")[0]

    def until_state(self, *states: str, seconds: float = DEADLINE) -> None:
        """That some event got to one of them since the last start."""
        until(
            lambda: any(entry["state"] in states for entry in self.logged("saga.moved")),
            seconds,
            lambda: f"{states} in the log:\n{self.errors}",
        )

    @property
    def moves(self) -> list[str]:
        """The states that events got to since the last start."""
        return [entry["state"] for entry in self.logged("saga.moved")]

    @property
    def status(self) -> Any:
        """As the file in the state directory says, which is what `agent status` shows."""
        written = self.state / "status.json"
        until(written.exists)
        return json.loads(written.read_text())

    @property
    def why(self) -> str:
        """What the one event that there is waits for."""
        return "; ".join(saga["why"] for saga in self.status["sagas"])

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`agent status` or `agent check` of this agent."""
        return run("forenotice", "agent", *arguments, *self.flags, env=self.env)

    def page(self, path: str) -> Said:
        """Of its listener, wherever that is now."""
        place = self.until_logged("listen.started")
        return ask(f"{place['host']}:{place['port']}", "GET", path)

    # What its handlers do

    @property
    def done(self) -> list[str]:
        """What handlers wrote into the diary when they were done."""
        return _lines(self.diary)

    @property
    def begun(self) -> list[str]:
        """And when they began."""
        return _lines(self.home / "diary.begun")

    def until_done(self, *entries: str, seconds: float = DEADLINE) -> None:
        until(
            lambda: self.lines() and self.done == list(entries),
            seconds,
            lambda: f"{entries} in the diary: {self.done}\n{self.errors}",
        )

    def until_begun(self, entry: str, seconds: float = DEADLINE) -> None:
        until(
            lambda: self.lines() and entry in self.begun,
            seconds,
            lambda: f"{entry} in the diary: {self.begun}\n{self.errors}",
        )

    def forget(self) -> None:
        """What was in the diary."""
        self.diary.write_text("")
        (self.home / "diary.begun").write_text("")

    def hold(self, phase: str) -> None:
        """Handlers of the diary do not end in this phase."""
        (self.home / f"diary.hold-{phase}").touch()

    def release(self, phase: str) -> None:
        (self.home / f"diary.hold-{phase}").unlink()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _descendants(process: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


NOTE = '"$FORENOTICE_PHASE $FORENOTICE_HANDLER $FORENOTICE_ATTEMPT"'
DIARY = (
    f'echo {NOTE} >> "$DIARY.begun";'
    ' while [ -e "$DIARY.hold-$FORENOTICE_PHASE" ]; do sleep 0.05; done;'
    f' echo {NOTE} >> "$DIARY"'
)
PHASES = ("prepare", "on_started", "recover", "undo")


def command(name: str, scripts: Mapping[str, str], **more: object) -> str:
    """A handler that runs a shell script in each phase."""
    commands = {phase: [script] for phase, script in scripts.items()}
    keys = {"name": name, "type": "command", "shell": True, **more, **commands}
    return "[[handler]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def diary(name: str = "drain", phases: Sequence[str] = PHASES, **more: object) -> str:
    """A handler that writes `phase name attempt` into the diary, before and after it is held."""
    return command(name, dict.fromkeys(phases, DIARY), **more)


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
        assert not [entry for entry in found.lines() if entry["action"] in DEFECTS], found.errors
    finally:
        if found.process is not None:
            found.kill()


World = TypeVar("World")


def tell(home: Path, world: World, *stories: Callable[[Path, World], None]) -> None:
    """All at once, each in a directory of its own: they wait for most of their time. Whatever goes wrong is told."""
    with ThreadPoolExecutor(len(stories)) as threads:
        told = [threads.submit(story, home / story.__name__, world) for story in stories]
        errors = [error for story in told if (error := story.exception()) is not None]
    if errors:
        raise BaseExceptionGroup("some went wrong", errors)
