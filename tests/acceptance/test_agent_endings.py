"""Events that end otherwise than they should, and handlers that do."""

from pathlib import Path

from tests.acceptance.agents import Agent, agent, command, diary, tell
from tests.acceptance.guests import SOON, Fleet
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


def cancelled_when_prepared(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, NEVER + diary() + diary("quiet", ["prepare", "recover"])) as guest:
        event_id = vm.restart()
        guest.until_state("prepared")
        vm.cancel(event_id)
        guest.until_state("done")
        # Without an undo of its own, what recovers also undoes.
        assert sorted(guest.done[2:]) == ["undo drain 1", "undo quiet 1"]


def cancelled_before_anything_was_done(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary(when="NotBefore - 1s")) as guest:
        event_id = vm.restart()
        guest.until_logged("saga.seen")
        vm.cancel(event_id)
        guest.until_state("done")
        assert guest.begun == []


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


def gone_unseen_after_its_not_before(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, NEVER + diary()) as guest:
        guest.until_logged("agent.named")
        event_id = vm.maintain_host("host-update", SOON)
        guest.until_state("prepared")
        between.pin()
        vm.until_over(event_id)
        between.unpin()
        guest.until_done("prepare drain 1", "recover drain 1")
        guest.until_state("done")
        assert "started" not in guest.moves


def started_while_preparing(home: Path, fleet: Fleet) -> None:
    """Somebody else in this VM has approved it."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        vm.approve(event_id)
        guest.until_done("on_started drain 1", "recover drain 1")
        guest.until_state("done")
        assert guest.moves == ["preparing", "started", "recovering", "done"]
        assert guest.logged("approval.done") == []


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


def failing_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    scripts = {"prepare": '[ "$FORENOTICE_ATTEMPT" = 2 ]', "recover": '[ "$FORENOTICE_ATTEMPT" = 2 ]'}
    with agent(home, vm.endpoint, command("drain", scripts)) as guest:
        event_id = vm.restart()
        guest.until_logged("step.failed", phase="prepare")
        assert vm.event(event_id)["approved_at"] is None
        guest.until_logged("approval.done")
        guest.until_logged("step.failed", phase="recover")
        guest.until_logged("step.done", phase="recover", attempt=2)
        guest.until_state("done")


def failing_without_blocking(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    flaky = command("flaky", {"prepare": "exit 1", "recover": "true"}, on_failure="continue", retries=0)
    missing = (
        '[[handler]]\nname = "missing"\ntype = "command"\nprepare = ["/nowhere/at/all"]\non_failure = "continue"\n'
    )
    with agent(home, vm.endpoint, flaky + missing + "retries = 0\n" + diary(stage=1)) as guest:
        vm.restart()
        guest.until_logged("approval.done")
        guest.until_state("done")
        assert "prepare drain 1" in guest.done
        assert guest.until_logged("step.failed", handler="missing")["output"] == "there is no program /nowhere/at/all"


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


def hanging_until_the_deadline(home: Path, fleet: Fleet) -> None:
    """However long its timeout is, it has no more time than there is; and then nothing is approved."""
    vm = fleet.alone()
    stop = 'trap \'echo "stopped with $FORENOTICE_SECONDS_LEFT" >> "$DIARY"; exit 0\' TERM'
    with agent(home, vm.endpoint, command("slow", {"prepare": f"{stop}; while :; do sleep 0.1; done"})) as guest:
        guest.until_logged("agent.named")
        event_id = vm.restart_soon()
        said = guest.until_logged("step.failed")["output"]
        assert vm.event(event_id)["status"] == "Scheduled"
        assert "when its time was up" in said
        assert int(guest.done[0].removeprefix("stopped with ")) <= 5
        guest.until_state("done")
        assert vm.event(event_id)["approved_at"] is None


def stubborn_when_the_event_is_cancelled(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    hanging = command("stuck", {"prepare": STUBBORN, "undo": 'echo undone >> "$DIARY"'})
    with agent(home, vm.endpoint, hanging) as guest:
        event_id = vm.restart()
        until((home / "diary.pid").exists)
        vm.cancel(event_id)
        until(lambda: guest.why == "waits until stuck has stopped")
        guest.until_done("undone")
        assert is_gone(guest)
        guest.until_state("done")


def test_endings(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        cancelled_while_preparing,
        cancelled_when_prepared,
        cancelled_before_anything_was_done,
        gone_unseen_after_the_approval,
        gone_unseen_after_its_not_before,
        started_while_preparing,
        failing_for_good,
        failing_at_first,
        failing_without_blocking,
        stubborn_beyond_its_timeout,
        hanging_until_the_deadline,
        stubborn_when_the_event_is_cancelled,
    )
