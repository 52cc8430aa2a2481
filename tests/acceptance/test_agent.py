"""The agent as a real process against the real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.agents import agent, diary
from tests.acceptance.running import Server, serving, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, "--demo", "--speed", "5", covered=False) as started:
        yield started


def test_prepares_approves_recovers(server: Server, tmp_path: Path) -> None:
    with agent(tmp_path / "vm", f"http://{server.guests}", diary()) as vm:
        until(lambda: vm.logged("agent.named"))
        server.schedule("restart", "web-0")
        vm.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        until(lambda: "done" in [entry["state"] for entry in vm.logged("saga.moved")])
    moves = [entry["state"] for entry in vm.logged("saga.moved")]
    # The start may be seen before the answer to the approval is.
    assert [move for move in moves if move != "approved"] == ["preparing", "prepared", "started", "recovering", "done"]
    assert len(vm.logged("approval.done")) == 1
