from pathlib import Path

import pytest

from notbefore import settings
from notbefore.agent import running


def test_a_state_directory_given_by_a_flag_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.toml").touch()
    given = settings.load_agent({"agent_config": "agent.toml", "state": "here"}, {})
    assert running.read(given).state == str(tmp_path / "here")
