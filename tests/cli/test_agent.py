"""`forenotice agent check`, beside what it says of handlers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forenotice.cli.agent import app


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('listen = "192.0.2.1:0"', "Nothing can listen on 192.0.2.1:0: Cannot assign requested address."),
        ('act_for = ["web-1", ""]', "A name in act_for is empty: give the names of VMs."),
        ("", ""),
        ('listen = "127.0.0.1:8256"', ""),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "agent.toml").write_text(line)
    told = CliRunner().invoke(
        app, ["check", "--json", "--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path / "a" / "b")]
    )
    found = json.loads(told.stdout)
    assert (found["problems"], found["ok"]) == ([problem] if problem else [], not problem)


def test_a_state_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").touch()
    (tmp_path / "file").touch()
    told = CliRunner().invoke(
        app, ["check", "--json", "--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path / "file" / "b")]
    )
    found = json.loads(told.stdout)
    assert f"{tmp_path / 'file'} is not a directory" in found["problems"][0]
    assert not found["ok"]
