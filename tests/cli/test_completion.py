"""What Tab gives: commands and options by themselves, names from the server when it answers quickly."""

import os
import subprocess
import sys

import pytest
from tests.cli.conftest import Run
from tests.cli.test_mistakes import FLEET
from tests.control.running import Control

from forenotice.cli.main import COMMANDS as TABLE


def completed(shell: str, *words: str, **variables: str) -> list[str]:
    """As the shell's script asks for it, with the last word unfinished."""
    asked = {"_FORENOTICE_COMPLETE": f"{shell}_complete", "COMP_CWORD": str(len(words))}
    line = " ".join(("forenotice", *words))
    ran = subprocess.run(
        [sys.executable, "-m", "forenotice"],
        env=os.environ | asked | {"COMP_WORDS": line} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return [word.partition(",")[2] if shell == "bash" else word for word in ran.stdout.split()]


def test_commands_and_options(alone: None) -> None:
    assert completed("bash", "") == list(TABLE)
    assert completed("bash", "host", "un") == ["uncordon"]
    assert "--wait-limit" in completed("bash", "vm", "restart", "--")


def test_names_of_the_server(cli: Run, module_control: Control) -> None:
    module_control.post_fleet(FLEET)
    [operation] = cli("vm", "restart", "web-0", "--json").json["operations"]
    event = operation["events"][0]["id"]
    assert completed("bash", "vm", "restart", "") == ["db", "web-0"]
    assert completed("bash", "event", "explain", event[:4]) == [event]
    assert completed("bash", "rollout", "start", "--hosts", "rack1-a,!rack") == ["rack1-a,!rack1-a", "rack1-a,!rack2-a"]
    assert completed("bash", "host", "update", "rack1-a,rack2") == ["rack1-a,rack2-a"]
    rollout = cli("rollout", "start", "--hosts", "rack2-a", "--kind", "update", "--json").json["id"]
    assert completed("bash", "rollout", "explain", "") == [rollout]
    cli("rollout", "cancel", rollout)
    assert "rack2-a" in " ".join(completed("zsh", "vm", "add", "x", "--host", "rack2"))


def test_no_server_no_names_and_no_noise(alone: None) -> None:
    assert completed("bash", "vm", "show", "", FORENOTICE_CONTROL="http://127.0.0.1:9", FORENOTICE_TOKEN="t") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_what_a_shell_loads(run: Run, shell: str) -> None:
    assert f"_FORENOTICE_COMPLETE={shell}_complete" in run("--show-completion", shell).out
    said = " ".join(completed(shell, _FORENOTICE_COMPLETE=f"{shell}_source"))
    assert f"_FORENOTICE_COMPLETE={shell}_complete" in said
