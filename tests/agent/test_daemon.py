"""The daemon's start, and what ends it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forenotice import settings
from forenotice.agent import daemon
from forenotice.agent.journal import Lock
from forenotice.core import errors


def test_a_state_directory_given_by_a_flag_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.toml").touch()
    given = settings.load_agent({"agent_config": "agent.toml", "state": "here"}, {})
    assert daemon.read(given).state == str(tmp_path / "here")


def test_observing_is_asked_for_by_a_flag_or_a_variable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert [settings.load_agent({}, given).observe for given in ({}, {"FORENOTICE_OBSERVE": "true"})] == [False, True]
    assert daemon.main(["--observe", "--config", str(tmp_path / "nowhere.toml")]) == daemon.USAGE
    assert "nowhere.toml" in capfd.readouterr().err


@pytest.fixture
def own_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("taken", [True, False])
def test_a_state_directory_that_turns_out_to_be_another_agents_or_anybodys_ends_it(tmp_path: Path, taken: bool) -> None:
    (tmp_path / "agent.toml").write_text('name = "web-0"\nendpoint = "http://127.33.0.1:1"\n')
    state = tmp_path / "state"
    state.write_text("in the way")
    given = {"agent_config": str(tmp_path / "agent.toml"), "state": str(state)}
    late = daemon.Agent(settings.load_agent(given, {}))
    state.unlink()
    if taken:
        first = Lock(state)
        with pytest.raises(errors.ConflictError, match="another agent runs"):
            late.run()
        first.release()
    else:
        state.mkdir()
        state.chmod(0o777)
        with pytest.raises(errors.RefusedError, match="can be changed by other users"):
            late.run()
    assert not (state / "journal.db").exists()


def test_a_state_directory_that_others_can_change_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its journal names the programs that recover, and they run as whoever runs the agent."""
    (tmp_path / "agent.toml").touch()
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    assert daemon.main(["--config", str(tmp_path / "agent.toml"), "--state", str(state)]) == daemon.USAGE
    said = f"the state directory {state} can be changed by other users (mode 0777): run `chmod go-w {state}`"
    assert capfd.readouterr().err == f"forenotice: {said}\n"


def test_without_standard_error_it_complains_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("nonsense")
    arguments = ["agent", "run", "--config", str(tmp_path / "agent.toml")]
    command = ["sh", "-c", 'exec "$@" 2>&-', "-", sys.executable, "-m", "forenotice", *arguments]
    assert subprocess.run(command, timeout=60, check=False).returncode == daemon.USAGE
