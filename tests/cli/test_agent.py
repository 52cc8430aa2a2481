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


def test_a_state_directory_that_others_can_change(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").touch()
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    arguments = ["check", "--json", "--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path / "state")]
    (problem,) = json.loads(CliRunner().invoke(app, arguments).stdout)["problems"]
    assert f"the state directory {tmp_path / 'state'} can be changed by other users" in problem
    arguments[-1] += "/not/yet"
    (problem,) = json.loads(CliRunner().invoke(app, arguments).stdout)["problems"]
    assert f"{tmp_path / 'state'}, which leads to {arguments[-1]}, can be changed by other users" in problem


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("", "Freeze, Reboot, Redeploy, Preempt, Terminate"),
        ('[[approve.at_once]]\ntypes = ["Freeze"]', "Reboot, Redeploy, Preempt, Terminate"),
        ('approve = "always"', ""),
    ],
)
def test_events_that_are_not_approved_are_named(tmp_path: Path, text: str, types: str) -> None:
    (tmp_path / "agent.toml").write_text(text)
    arguments = ["check", "--json", "--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path / "state")]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)
    said = f'No handler prepares for {types}: such events are not approved, unless approve = "always" is set.'
    assert (found["ok"], found["warnings"]) == (True, [said] if types else [])
