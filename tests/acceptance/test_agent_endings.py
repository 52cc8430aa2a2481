"""Events that end otherwise than they should, and handlers that do."""

from pathlib import Path

from tests.acceptance.agents import Agent, agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import meddler
from tests.acceptance.running import until

NEVER = '[approve]\nwhen = "never"\n'
STUBBORN = "trap '' TERM; echo $$ > \"$DIARY.pid\"; while :; do sleep 0.1; done"


# The operator changes their mind


def cancelled_while_preparing(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        assert vm.server.cli("event", "cancel", event_id).returncode == 0
        guest.until_state("done")
        assert guest.begun == ["prepare drain 1", "undo drain 1"]
        assert guest.done == ["undo drain 1"]
        assert guest.moves == ["preparing", "undoing", "done"]
        assert guest.logged("approval.done") == []
        assert "as the agent asked" in guest.until_logged("step.failed")["output"]


# It is over before anybody saw it begin


def gone_unseen_after_the_approval(home: Path, fleet: Fleet) -> None:
    """It may have happened; but a reboot of this machine did not."""
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        between.pin()
        guest.release("prepare")
        guest.until_state("approved")
        vm.until_over(event_id)
        between.unpin()
        guest.until_done("prepare drain 1", "undo drain 1")
        guest.until_state("done")
        assert "started" not in guest.moves


# Handlers that fail


def failing_for_good(home: Path, fleet: Fleet) -> None:
    """Tried again, and never approved; the event comes nevertheless, and what was half done is recovered from."""
    vm = fleet.alone()
    scripts = {"prepare": 'echo "no disk"; exit 3', "recover": "true"}
    with agent(home, vm.endpoint, command("drain", scripts, retries=1)) as guest:
        guest.until_logged("agent.named")
        event_id = vm.restart_soon()
        guest.until_logged("step.failed", attempt=1)
        assert guest.until_logged("step.failed", attempt=2)["output"] == "exit code 3: no disk"
        why = "not approved, because preparation failed: drain (exit code 3: no disk)"
        until(lambda: guest.why == why)
        guest.until_state("done")
        assert len(guest.logged("step.failed")) == 2
        assert guest.logged("approval.done") == []
        assert vm.event(event_id)["approved_at"] is None
        assert guest.until_logged("step.done")["phase"] == "recover"


# Handlers that hang


def is_gone(guest: Agent) -> bool:
    return not Path(f"/proc/{(guest.home / 'diary.pid').read_text().strip()}").exists()


def stubborn_beyond_its_timeout(home: Path, fleet: Fleet) -> None:
    """Asked to stop, then killed."""
    vm = fleet.alone()
    hanging = command("stuck", {"prepare": STUBBORN}, timeout="1s", retries=0, on_failure="continue")
    with agent(home, vm.endpoint, hanging) as guest:
        event_id = vm.restart()
        said = guest.until_logged("step.failed")["output"]
        assert said == "stopped after 1 s, when its time was up, and killed 5 s later"
        assert is_gone(guest)
        guest.until_logged("approval.done", event_id=event_id)
        guest.until_state("done")


def test_endings(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        cancelled_while_preparing,
        gone_unseen_after_the_approval,
        failing_for_good,
        stubborn_beyond_its_timeout,
    )
