"""When the agent approves, and what it does when that is not answered with yes."""

from pathlib import Path

from tests.acceptance.agents import agent, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import DroppedError, HeldError, meddler, said
from tests.acceptance.running import until

AT_ONCE = '[[approve.at_once]]\nsources = ["User"]\n'
SHORT = '[[approve.at_once]]\ntypes = ["Freeze"]\nshorter_than = "10s"\n'
NEVER = '[approve]\nwhen = "never"\n'


def refused_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        between.fail_first(said(503, b'{"error":"later"}', Retry_After="1"), said(400, b'{"error":"no such event"}'))
        event_id = vm.restart()
        guest.until_logged("approval.done", event_id=event_id)
        first, second, _ = guest.logged("approval.failed")
        assert "answered 503: later" in first["reason"]
        assert "answered 400: no such event" in second["reason"]
        assert between.approved == [[event_id]] * 3
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")


def dropped_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary(), covered=False) as guest:
        between.fail_first(DroppedError)
        event_id = vm.restart()
        guest.until_logged("approval.failed")
        guest.until_logged("approval.done", event_id=event_id)
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")


def never_answered_at_first(home: Path, fleet: Fleet) -> None:
    """It is asked again soon enough for a Preempt's thirty seconds."""
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary(), covered=False) as guest:
        guest.until_logged("agent.named")
        between.fail_first(HeldError)
        vm.restart()
        until(lambda: between.approved)
        guest.until_logged("approval.done", seconds=15)


def at_once(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, AT_ONCE + diary()) as guest:
        event_id = vm.restart()
        guest.until_logged("approval.done", event_id=event_id)
        guest.until_state("done")
        # What was not prepared is not recovered from.
        assert guest.begun == ["on_started drain 1"]


def at_once_only_what_matches(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, SHORT + diary(), covered=False) as guest:
        vm.maintain_host("host-update")
        guest.until_state("done")
        assert guest.begun == ["on_started drain 1"]
        guest.forget()
        vm.restart()
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")


def never(home: Path, fleet: Fleet) -> None:
    """It starts at its NotBefore, and everything else happens as always."""
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, NEVER + diary(), covered=False) as guest:
        event_id = vm.restart_soon()
        until(lambda: guest.why == "ready; this agent is set never to approve")
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        assert between.approved == []
        assert vm.event(event_id)["approved_at"] is None


def test_approvals(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        refused_at_first,
        dropped_at_first,
        never_answered_at_first,
        at_once,
        at_once_only_what_matches,
        never,
    )
